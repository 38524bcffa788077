"""
The settler: the thread that writes the outcome of each row to the table, in batches, on a connection of its own.

Nothing is assumed done: a row that a statement did not find is looked for again until its transaction is known to have
ended before the statement began. The WAL, and so the relay, can be ahead of what other sessions see: for an instant
always, for long with synchronous replication. A row that is missing after that is gone, or in the hands of a scheduler:
both are an end.

Any error of the database ends the thread and is reported: the session that owns it starts over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from outrider.cdc_relay.pipeline import Delivered, Failed, HandOver, Settlement
from outrider.runtime.crash_points import crash_point
from outrider.runtime.wakeable_queue import WakeableQueue
from outrider.storage.store import Burial, Refusal, Store

BATCH = 1000
GATHER_SECONDS = 0.25
"""
How long rows are gathered for one statement, unless there is a whole batch or a pause before. Nothing waits for it, and
every commit of ours takes the processor and the disk that the application's need. A relay that is killed sends again
what it had gathered; one that is asked to stop gathers no more.
"""
LEFT_BEHIND_SECONDS = 0.05
"""The same while rows are left behind: the scheduler waits for those, and they wait for the rows before them."""
PAUSE_SECONDS = 0.02
UNSEEN_RETRY_SECONDS = 0.05


class Settler:
    """Settles on a thread of its own. Start it once, close it once."""

    def __init__(
        self,
        store: Store,
        *,
        archive: bool,
        has_left_behind: Callable[[], bool],
        on_settled: Callable[[Sequence[Settlement], float], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        """`has_left_behind`: whether any key has rows in the table that could wait for those that are settled."""
        self._store = store
        self._has_left_behind = has_left_behind
        self._archive = archive
        self._on_settled = on_settled
        self._on_crash = on_crash
        self._inbox: WakeableQueue[Settlement] = WakeableQueue()
        self._unseen: list[Settlement] = []
        self._ended: set[int] = set()  # the unseen whose transaction has ended: the next look is the last one
        self._closing = False
        self._gathering = True
        self._enough = threading.Event()
        self._before_settle = crash_point("relay.before_settle")
        self._after_settle = crash_point("relay.after_settle")
        self._after_leave_behind = crash_point("relay.after_leave_behind")
        self._thread = threading.Thread(target=self._run, name="settler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, settlements: Sequence[Settlement]) -> None:
        self._inbox.put(settlements)
        if len(self._inbox) >= BATCH:
            self._enough.set()

    def hurry(self) -> None:
        """From now on, settle what there is at once."""
        self._gathering = False
        self._enough.set()

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop after the statement that is running; what was not settled stays as it is in the table."""
        self._closing = True
        self.hurry()
        self._inbox.put(())
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        try:
            while not self._closing:
                if len(self._ended) < len(self._unseen) or not self._unseen:
                    self._inbox.wait(UNSEEN_RETRY_SECONDS if self._unseen else 1.0)
                batch = self._unseen + self._inbox.take(BATCH)
                if batch:
                    self._settle(batch)
                if not self._ended:
                    self._gather()
        except Exception as error:
            self._on_crash(error)
        finally:
            self._inbox.close()

    def _gather(self) -> None:
        started = time.monotonic()
        before = -1
        while self._gathering and before < len(self._inbox) < BATCH:
            left = started + self._patience_seconds() - time.monotonic()  # rows can be left behind meanwhile
            if left <= 0:
                return
            before = len(self._inbox)
            self._enough.wait(min(PAUSE_SECONDS, left))
            self._enough.clear()

    def _patience_seconds(self) -> float:
        if self._unseen:
            return UNSEEN_RETRY_SECONDS
        return LEFT_BEHIND_SECONDS if self._has_left_behind() else GATHER_SECONDS

    def _settle(self, batch: list[Settlement]) -> None:
        self._before_settle()
        started = time.perf_counter()
        found: set[int] = set()
        delivered = [item.id for item in batch if isinstance(item, Delivered)]
        if delivered:
            followed = self._has_left_behind()
            found.update(self._store.settle(delivered, archive=self._archive, followed=followed))
            self._after_settle()
        if len(delivered) < len(batch):
            found.update(self._leave_behind(batch))
            self._after_leave_behind()
        self._unseen = [item for item in batch if item.id not in found and item.id not in self._ended]
        unseen = {item.id for item in self._unseen}
        done = [item for item in batch if item.id not in unseen] if unseen else batch
        self._ended = self._with_ended_transactions() if unseen else set()
        self._on_settled(done, time.perf_counter() - started)

    def _leave_behind(self, batch: Iterable[Settlement]) -> list[int]:
        handed_over, refusals, burials = [], [], []
        for item in batch:
            if isinstance(item, HandOver):
                handed_over.append(item.id)
            elif isinstance(item, Failed):
                if isinstance(item.verdict, Refusal):
                    refusals.append(item.verdict)
                elif isinstance(item.verdict, Burial):
                    burials.append(item.verdict)
        found = self._store.hand_over(handed_over) if handed_over else []
        found += self._store.fail(refusals) if refusals else []
        return found + (self._store.bury(burials) if burials else [])

    def _with_ended_transactions(self) -> set[int]:
        in_progress = self._store.in_progress({item.xid for item in self._unseen})
        return {item.id for item in self._unseen if item.xid not in in_progress}
