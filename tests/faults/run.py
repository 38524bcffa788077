"""
One complete run: a start without faults, the fault schedule, draining with a time limit, and the history.

Nothing is judged here: messages that are not delivered in time are part of the history, which the checker judges.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.faults.consumer import LINE_BYTES, read_deliveries
from tests.faults.environment import SERVICES, SLOT, Environment
from tests.faults.fault import Fault
from tests.faults.fault_schedule import ALL_FAULTS, FaultSchedule, Kinds
from tests.faults.history import Committed, DeadLetterRecord, Delivery, History
from tests.faults.processes import ProcessRun
from tests.faults.producer import QUEUES
from tests.fixtures.waiting import wait_for

FAULTLESS_SECONDS = 3.0
DRAIN_SECONDS = 120.0
IDLE_SECONDS = 30.0
PROGRESS_SECONDS = 1.0
SUPPORTED_VERSION = 1

OnProgress = Callable[["Progress"], None]


@dataclass(frozen=True, slots=True)
class Progress:
    elapsed: float
    faults: int
    committed: int
    delivered: int
    phase: str


@dataclass(frozen=True, slots=True)
class FaultRunResult:
    seed: int
    began_at: float
    """Wall clock time at second 0 of the run, to match the logs."""
    seconds: float
    """From the start of the first process to the last delivery."""
    history: History
    deadlocks: int
    unavailable_faults: list[str]
    """Faults that could not be injected on this machine."""
    runs: list[ProcessRun]


class FaultRun:
    """One run; its logs are written to `directory`."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        seconds: float,
        kinds: Kinds = ALL_FAULTS,
        on_progress: OnProgress = lambda _: None,
    ) -> None:
        self._environment = Environment(
            directory, seed, small_disk=any(kind.name.endswith("disk full") for kind in kinds)
        )
        self._seconds = seconds
        self._kinds = kinds
        self._on_progress = on_progress
        self._committed = 0
        self._phase = "starting"
        self._faults = 0
        self._ended = threading.Event()

    def run(self) -> FaultRunResult:
        with self._environment as environment:
            reporter = threading.Thread(target=self._report_progress, name="progress", daemon=True)
            reporter.start()
            try:
                wait_for(self._is_flowing, message="no message is delivered before the first fault")
                self._phase = "no faults yet"
                time.sleep(FAULTLESS_SECONDS)
                schedule = FaultSchedule(environment, self._kinds, on_fault=self._on_fault)
                # At least half of the time, even if the start was slow: a slow machine must run faults too.
                schedule.run(max(self._seconds / 2, self._seconds - environment.now()))
                problems = self._drain_and_stop()
                seconds = environment.now()
                history = self._history(schedule, problems)
            finally:
                self._ended.set()
                reporter.join()
            return FaultRunResult(
                seed=environment.seed,
                began_at=time.time() - environment.now(),
                seconds=seconds,
                history=history,
                # From the log: PostgreSQL's statistics are lost in a crash.
                deadlocks=environment.postgres.log().count("deadlock detected"),
                unavailable_faults=schedule.unavailable_faults,
                runs=environment.processes.runs(),
            )

    # -- progress -----------------------------------------------------------------------------------------------------

    def _on_fault(self, fault: Fault) -> None:
        self._faults += 1
        self._phase = f"{fault.name}: {fault.target}"

    def _delivered(self) -> int:
        files = map(self._environment.deliveries_file, QUEUES)
        return sum(file.stat().st_size for file in files if file.exists()) // LINE_BYTES

    def _report_progress(self) -> None:
        while not self._ended.wait(PROGRESS_SECONDS):
            try:
                with self._environment.connect(connect_timeout=2) as connection:
                    row = connection.execute("SELECT count(*) FROM committed_message").fetchone()
                self._committed = row[0] if row else 0
            except psycopg.Error:
                pass  # the database is down: keep the last figure
            self._on_progress(
                Progress(self._environment.now(), self._faults, self._committed, self._delivered(), self._phase)
            )

    def _is_flowing(self) -> bool:
        return self._delivered() > 20

    # -- draining -----------------------------------------------------------------------------------------------------

    def _drain_and_stop(self) -> list[str]:
        """Stop the producers, wait until everything is delivered, stop the other processes. Returns the problems."""
        environment = self._environment
        self._phase = "draining"
        for process in environment.processes.named("producer"):
            process.pause_supervision()
            process.stop()
        problems = [*_wait_or_report(self._is_drained, DRAIN_SECONDS, "not every message was delivered")]
        with environment.connect() as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        position = str(row[0]) if row else ""
        problems += _wait_or_report(
            lambda: self._confirmed(position), IDLE_SECONDS, f"the slot did not confirm {position}"
        )
        problems += _wait_or_report(
            lambda: not self._idle_transactions(), IDLE_SECONDS, "a service is idle in a transaction"
        )
        last = environment.processes.named(*SERVICES, "consumer")
        for process in last:
            process.pause_supervision()
            if not process.is_running:
                problems.append(f"{process.name} does not run at the end")
            process.runs[-1].sample()
            process.send_sigterm()
        for process in last:
            process.wait_for_stop()
        for process in environment.processes:
            problems += process.bad_exits
            problems += [
                f"{run.service.name} wrote a traceback" for run in process.runs if "Traceback" in run.service.output()
            ]
        return problems

    def _is_drained(self) -> bool:
        with self._environment.connect() as connection:
            row = connection.execute(
                "SELECT count(*) FROM outbox WHERE schema_version <= %s", [SUPPORTED_VERSION]
            ).fetchone()
            if row is None or row[0]:
                return False
            delivered = {delivery.event_id for delivery in self._deliveries()}
            return all(
                message.event_id in delivered
                for message in self._committed_messages(connection)
                if message.expected_end == "delivered"
            )

    def _confirmed(self, position: str) -> bool:
        with self._environment.connect() as connection:
            row = connection.execute(
                "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
                [position, SLOT],
            ).fetchone()
        return row == (True,)

    def _idle_transactions(self) -> list[tuple[str]]:
        with self._environment.connect() as connection:
            return connection.execute(
                "SELECT application_name FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
            ).fetchall()

    # -- history ------------------------------------------------------------------------------------------------------

    def _history(self, schedule: FaultSchedule, problems: list[str]) -> History:
        environment = self._environment
        with environment.connect() as connection:
            rows = connection.execute(
                "SELECT event_id::text, concat('owner ', owner, ', due ', next_attempt_at, ', attempts ', attempts, "
                "', claimed by ', claimed_by, ', ', last_error) FROM outbox"
            ).fetchall()
            letters = connection.execute("SELECT event_id::text, reason, last_error FROM outbox_dead_letter").fetchall()
            committed = self._committed_messages(connection)
        services = environment.processes.named(*SERVICES)
        memory = [run.memory() for process in services for run in process.runs[-1:]]
        rolled_back = environment.rolled_back.read_text().split() if environment.rolled_back.exists() else []
        return History(
            committed=committed,
            deliveries=self._deliveries(),
            faults=sorted(schedule.records, key=lambda record: record.began),
            dead_letters=[DeadLetterRecord(*letter) for letter in letters],
            left=dict(rows),
            rolled_back=frozenset(rolled_back),
            memory=[each for each in memory if each is not None],
            problems=problems,
        )

    def _committed_messages(self, connection: psycopg.Connection[tuple[object, ...]]) -> list[Committed]:
        # The database's clock is this machine's wall clock.
        began = time.time() - self._environment.now()
        rows = connection.execute(
            "SELECT event_id::text, kind, extract(epoch FROM written_at)::float8 - %(began)s::float8, key, version, "
            "extract(epoch FROM not_before)::float8 - %(began)s::float8 FROM committed_message ORDER BY written_at",
            {"began": began},
        ).fetchall()
        return [Committed(*row) for row in rows]  # type: ignore[arg-type]  # the columns match the fields

    def _deliveries(self) -> list[Delivery]:
        """Deliveries of both queues by time. The sort is stable and keeps the order of each queue."""
        queues = [
            read_deliveries(self._environment.deliveries_file(queue), self._environment.began) for queue in QUEUES
        ]
        return sorted((delivery for queue in queues for delivery in queue), key=lambda delivery: delivery.at)


def _wait_or_report(condition: Callable[[], object], seconds: float, problem: str) -> list[str]:
    try:
        wait_for(condition, deadline_seconds=seconds)
    except AssertionError:
        return [f"{problem} within {seconds:g} s"]
    return []
