"""
A whole run: a calm start, the nemesis, healing, draining within a bounded time, and the history of it all.

Nothing is judged here. What does not drain in time is part of the history, and the checker says what it breaks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.faults.cast import Life
from tests.faults.consumer import LINE_BYTES, read_deliveries
from tests.faults.fault import Fault
from tests.faults.history import Committed, DeadLetter, Delivery, History
from tests.faults.nemesis import ALL_FAULTS, Kinds, Nemesis
from tests.faults.producer import QUEUES
from tests.faults.world import SERVICES, SLOT, World
from tests.fixtures.waiting import wait_for

CALM_SECONDS = 3.0
DRAIN_SECONDS = 120.0
QUIET_SECONDS = 30.0
PROGRESS_SECONDS = 1.0
SUPPORTED_VERSION = 1

Tell = Callable[["Progress"], None]


@dataclass(frozen=True, slots=True)
class Progress:
    elapsed: float
    faults: int
    committed: int
    delivered: int
    doing: str


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    began_at: float
    """The wall clock at second 0 of the run, for reading logs."""
    seconds: float
    """From the first process to the last delivery."""
    history: History
    deadlocks: int
    not_to_be_had: list[str]
    """Faults that could not be injected on this machine."""
    lives: list[Life]


class Run:
    """One run of the ledger, in a directory that keeps the logs."""

    def __init__(
        self, directory: Path, *, seed: int, seconds: float, kinds: Kinds = ALL_FAULTS, tell: Tell = lambda _: None
    ) -> None:
        self._world = World(directory, seed, small_disk=any(kind.name.endswith("disk full") for kind in kinds))
        self._seconds = seconds
        self._kinds = kinds
        self._tell = tell
        self._committed = 0
        self._doing = "starting"
        self._faults = 0
        self._ended = threading.Event()

    def __call__(self) -> Result:
        with self._world as world:
            teller = threading.Thread(target=self._keep_telling, name="progress", daemon=True)
            teller.start()
            try:
                wait_for(self._is_flowing, message="no message is delivered before any fault")
                self._doing = "calm"
                time.sleep(CALM_SECONDS)
                nemesis = Nemesis(world, self._kinds, on_fault=self._note_fault)
                # At least half of the time, however long the start took: a slow machine must not spare us the faults.
                nemesis.run(max(self._seconds / 2, self._seconds - world.now()))
                remarks = self._settle_down()
                seconds = world.now()
                history = self._history(nemesis, remarks)
            finally:
                self._ended.set()
                teller.join()
            return Result(
                seed=world.seed,
                began_at=time.time() - world.now(),
                seconds=seconds,
                history=history,
                # Its statistics would not do: they are lost in a crash.
                deadlocks=world.postgres.log().count("deadlock detected"),
                not_to_be_had=nemesis.not_to_be_had,
                lives=world.cast.lives(),
            )

    # -- progress -----------------------------------------------------------------------------------------------------

    def _note_fault(self, fault: Fault) -> None:
        self._faults += 1
        self._doing = f"{fault.name}: {fault.target}"

    def _delivered(self) -> int:
        files = map(self._world.notes_of, QUEUES)
        return sum(file.stat().st_size for file in files if file.exists()) // LINE_BYTES

    def _keep_telling(self) -> None:
        while not self._ended.wait(PROGRESS_SECONDS):
            try:
                with self._world.connect(connect_timeout=2) as connection:
                    row = connection.execute("SELECT count(*) FROM ledger").fetchone()
                self._committed = row[0] if row else 0
            except psycopg.Error:
                pass  # the nemesis has it: the last figure stands
            self._tell(Progress(self._world.now(), self._faults, self._committed, self._delivered(), self._doing))

    def _is_flowing(self) -> bool:
        return self._delivered() > 20

    # -- the end ------------------------------------------------------------------------------------------------------

    def _settle_down(self) -> list[str]:
        """Stop the producers, wait until everything is delivered and quiet, stop the rest; what was not right."""
        world = self._world
        self._doing = "draining"
        for actor in world.cast.named("producer"):
            actor.leave_ended()
            actor.stop()
        remarks = [*_late(self._is_drained, DRAIN_SECONDS, "not everything was delivered")]
        with world.connect() as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        position = str(row[0]) if row else ""
        remarks += _late(lambda: self._confirmed(position), QUIET_SECONDS, f"the slot did not confirm {position}")
        remarks += _late(lambda: not self._idle_transactions(), QUIET_SECONDS, "a service is idle in a transaction")
        last = world.cast.named(*SERVICES, "consumer")
        for actor in last:
            actor.leave_ended()
            if not actor.is_running:
                remarks.append(f"{actor.name} does not run in the end")
            actor.lives[-1].sample()
            actor.ask_to_stop()
        for actor in last:
            actor.see_stopped()
        for actor in world.cast.actors.values():
            remarks += actor.bad_exits
            remarks += [
                f"{life.service.name} wrote a traceback" for life in actor.lives if "Traceback" in life.service.output()
            ]
        return remarks

    def _is_drained(self) -> bool:
        with self._world.connect() as connection:
            row = connection.execute(
                "SELECT count(*) FROM outbox WHERE schema_version <= %s", [SUPPORTED_VERSION]
            ).fetchone()
            if row is None or row[0]:
                return False
            delivered = {delivery.event_id for delivery in self._deliveries()}
            return all(
                message.event_id in delivered for message in self._ledger(connection) if message.fate == "delivered"
            )

    def _confirmed(self, position: str) -> bool:
        with self._world.connect() as connection:
            row = connection.execute(
                "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
                [position, SLOT],
            ).fetchone()
        return row == (True,)

    def _idle_transactions(self) -> list[tuple[str]]:
        with self._world.connect() as connection:
            return connection.execute(
                "SELECT application_name FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
            ).fetchall()

    # -- the history --------------------------------------------------------------------------------------------------

    def _history(self, nemesis: Nemesis, remarks: list[str]) -> History:
        world = self._world
        with world.connect() as connection:
            rows = connection.execute(
                "SELECT event_id::text, concat('owner ', owner, ', due ', next_attempt_at, ', attempts ', attempts, "
                "', claimed by ', claimed_by, ', ', last_error) FROM outbox"
            ).fetchall()
            letters = connection.execute("SELECT event_id::text, reason, last_error FROM outbox_dead_letter").fetchall()
            committed = self._ledger(connection)
        services = world.cast.named(*SERVICES)
        memory = [life.memory() for actor in services for life in actor.lives[-1:]]
        rolled_back = world.rolled_back.read_text().split() if world.rolled_back.exists() else []
        return History(
            committed=committed,
            deliveries=self._deliveries(),
            faults=sorted(nemesis.records, key=lambda record: record.began),
            dead_letters=[DeadLetter(*letter) for letter in letters],
            left=dict(rows),
            rolled_back=frozenset(rolled_back),
            memory=[each for each in memory if each is not None],
            remarks=remarks,
        )

    def _ledger(self, connection: psycopg.Connection[tuple[object, ...]]) -> list[Committed]:
        # The database's clock is this machine's wall clock.
        began = time.time() - self._world.now()
        rows = connection.execute(
            "SELECT event_id::text, kind, extract(epoch FROM written_at)::float8 - %(began)s::float8, key, version, "
            "extract(epoch FROM not_before)::float8 - %(began)s::float8 FROM ledger ORDER BY written_at",
            {"began": began},
        ).fetchall()
        return [Committed(*row) for row in rows]  # type: ignore[arg-type]  # as the columns are

    def _deliveries(self) -> list[Delivery]:
        """Of both queues, by time; sorting is stable, so that the order of each is kept."""
        notes = [read_deliveries(self._world.notes_of(queue), self._world.began) for queue in QUEUES]
        return sorted((delivery for queue in notes for delivery in queue), key=lambda delivery: delivery.at)


def _late(condition: Callable[[], object], seconds: float, remark: str) -> list[str]:
    try:
        wait_for(condition, deadline_seconds=seconds)
    except AssertionError:
        return [f"{remark} within {seconds:g} s"]
    return []
