"""
The settler: a thread that writes settlements to the table, in batches, on its own connection.

A row that a statement did not find is tried again until its transaction was seen to have ended before the statement
began, because the WAL can be ahead of what other sessions see: for an instant always, for long with synchronous
replication. A row that is still missing then was deleted or claimed by a scheduler. Either way the relay is done with
it.

What the broker confirmed is written first. A row that cannot be written holds up no other (see
outrider.runtime.settling).

The session reads the results: wait for `fileno`, then call `take_settled`. A database error that is not about a row
ends the thread, and `take_settled` raises it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from outrider.cdc_relay.settlements import Delivered, Failed, HandedOver, Settlement
from outrider.runtime.crash_points import crash_point
from outrider.runtime.settling import Settling
from outrider.runtime.wakeable_queue import WakeableQueue
from outrider.storage.decision import Burial, Retry
from outrider.storage.store import Store

BATCH = 1000
GATHER_SECONDS = 0.25
"""
How long settlements are gathered for one statement. A full batch or a pause ends it earlier. Nothing waits for these
rows, and every commit takes processor and disk time from the application. A relay that is killed publishes the gathered
rows again after its restart; one that is stopped gathers no more.
"""
GATHER_SECONDS_WHILE_BLOCKED = 0.05
"""The same while a key is blocked: parked rows of the scheduler may wait until the rows before them are settled."""
PAUSE_SECONDS = 0.02
MISSING_RETRY_SECONDS = 0.05


class SettledBatch(NamedTuple):
    settlements: Sequence[Settlement]
    seconds: float  # the time that the statements took


class Settler:
    """Start it once, close it once. The other methods are for the session's thread."""

    def __init__(self, store: Store, *, archive: bool, blocked_keys: Collection[str]) -> None:
        """`blocked_keys` is read from the settler's thread. While it is empty, settling skips the follower look-up."""
        self._store = store
        self._settling = Settling(store)
        self._blocked_keys = blocked_keys
        self._archive = archive
        self._submitted: WakeableQueue[Settlement] = WakeableQueue()
        self._settled: WakeableQueue[SettledBatch] = WakeableQueue()
        self._error: Exception | None = None
        self._missing: list[Settlement] = []
        self._last_try: set[int] = set()  # missing rows whose transaction has ended: the next try is the last one
        self._closing = False
        self._gathering = True
        self._stop_waiting = threading.Event()
        self._before_settle = crash_point("relay.before_settle")
        self._after_settle_delivered = crash_point("relay.after_settle_delivered")
        self._after_settle_undelivered = crash_point("relay.after_settle_undelivered")
        self._thread = threading.Thread(target=self._run, name="settler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, settlements: Sequence[Settlement]) -> None:
        self._submitted.put(settlements)
        if len(self._submitted) >= BATCH:
            self._stop_waiting.set()

    def fileno(self) -> int:
        """For select(): readable means call take_settled()."""
        return self._settled.fileno()

    def take_settled(self) -> list[SettledBatch]:
        """The batches written since the last call; after the last one, raises the error that ended the thread."""
        if self._error is not None and not self._settled:
            raise self._error
        return self._settled.take()

    def stop_gathering(self) -> None:
        """From now on, write settlements at once."""
        self._gathering = False
        self._stop_waiting.set()

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop after the running statement. Rows that are not settled stay as they are in the table."""
        self._closing = True
        self.stop_gathering()
        self._submitted.put(())
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        self._settled.close()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                if len(self._last_try) < len(self._missing) or not self._missing:
                    self._submitted.wait(MISSING_RETRY_SECONDS if self._missing else 1.0)
                batch = self._missing + self._submitted.take(BATCH)
                if batch:
                    self._settle(batch)
                if not self._last_try:
                    self._gather()
        except Exception as error:
            self._error = error
            self._settled.put(())  # wakes the reader
        finally:
            self._submitted.close()

    def _gather(self) -> None:
        started = time.monotonic()
        before = -1
        while self._gathering and before < len(self._submitted) < BATCH:
            left = started + self._gather_seconds() - time.monotonic()  # a key can become blocked meanwhile
            if left <= 0:
                return
            before = len(self._submitted)
            self._stop_waiting.wait(min(PAUSE_SECONDS, left))
            self._stop_waiting.clear()

    def _gather_seconds(self) -> float:
        if self._missing:
            return MISSING_RETRY_SECONDS
        return GATHER_SECONDS_WHILE_BLOCKED if self._blocked_keys else GATHER_SECONDS

    def _settle(self, batch: list[Settlement]) -> None:
        self._before_settle()
        started = time.perf_counter()
        found: set[int] = set()
        delivered = [item.id for item in batch if isinstance(item, Delivered)]
        if delivered:
            followed = bool(self._blocked_keys)
            found.update(self._settling.settle(delivered, archive=self._archive, followed=followed))
            self._after_settle_delivered()
        if len(delivered) < len(batch):
            found.update(self._settle_undelivered(batch))
            self._after_settle_undelivered()
        self._missing = [item for item in batch if item.id not in found and item.id not in self._last_try]
        missing_ids = {item.id for item in self._missing}
        done = [item for item in batch if item.id not in missing_ids] if missing_ids else batch
        self._last_try = self._missing_with_ended_transactions() if missing_ids else set()
        self._settled.put([SettledBatch(done, time.perf_counter() - started)])

    def _settle_undelivered(self, batch: Iterable[Settlement]) -> list[int]:
        handed_over, retries, burials = [], [], []
        for item in batch:
            if isinstance(item, HandedOver):
                handed_over.append(item.id)
            elif isinstance(item, Failed):
                if isinstance(item.decision, Retry):
                    retries.append(item.decision)
                elif isinstance(item.decision, Burial):
                    burials.append(item.decision)
        found = self._settling.write(self._store.hand_over, handed_over, int)
        return found + self._settling.fail(retries) + self._settling.bury(burials)

    def _missing_with_ended_transactions(self) -> set[int]:
        in_progress = self._store.in_progress({item.xid for item in self._missing})
        return {item.id for item in self._missing if item.xid not in in_progress}
