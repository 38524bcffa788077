"""
The fault schedule: injects one fault after another, sometimes two at a time, and records each with its time.

All kinds are drawn once in random order before a kind is drawn again, so that a run of some minutes has all of them.
The seed alone decides kind, target and duration. In the middle of a long run no fault is injected for a while:
duplicates in that time are violations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from random import Random

from tests.faults.broker_faults import BROKER_FAULTS
from tests.faults.checker import DUPLICATES_AFTER_SECONDS
from tests.faults.database_faults import DATABASE_FAULTS, DatabaseCrash, SettlersTerminated, WalsenderTerminated
from tests.faults.environment import Environment
from tests.faults.fault import Fault
from tests.faults.history import FaultRecord
from tests.faults.network_faults import NETWORK_FAULTS
from tests.faults.poison_faults import POISON_FAULTS
from tests.faults.process_faults import PROCESS_FAULTS

Kinds = Sequence[type[Fault]]

ALL_FAULTS: Kinds = (*PROCESS_FAULTS, *NETWORK_FAULTS, *BROKER_FAULTS, *DATABASE_FAULTS, *POISON_FAULTS)
QUICK_FAULTS: Kinds = (
    *PROCESS_FAULTS,
    *NETWORK_FAULTS,
    *POISON_FAULTS,
    DatabaseCrash,
    SettlersTerminated,
    WalsenderTerminated,
)
"""The faults that end soon, for a short run."""

TWO_AT_ONCE = 0.3
PAUSE_SECONDS = (0.2, 2.0)
PAUSE_IN_RUNS_OF_SECONDS = 120.0
LONG_PAUSE_SECONDS = DUPLICATES_AFTER_SECONDS + 8.0


class FaultSchedule:
    """Chooses and injects the faults of one run. Call `run` once."""

    def __init__(
        self, environment: Environment, kinds: Kinds, *, on_fault: Callable[[Fault], None] = lambda _: None
    ) -> None:
        self.records: list[FaultRecord] = []
        self.unavailable_faults = [kind.name for kind in kinds if not kind.is_available(environment)]
        self._environment = environment
        self._kinds = [kind for kind in kinds if kind.is_available(environment)]
        self._choice = Random(environment.seed)
        self._remaining_kinds: list[type[Fault]] = []
        self._on_fault = on_fault
        self._stopping = threading.Event()

    def run(self, seconds: float) -> None:
        """Inject faults for about this long. Every injected fault is healed, also after an error."""
        end = self._environment.now() + seconds
        pause_at = end - seconds / 2 if seconds >= PAUSE_IN_RUNS_OF_SECONDS else end
        while self._environment.now() < end:
            if self._environment.now() >= pause_at:
                self._stopping.wait(LONG_PAUSE_SECONDS)
                pause_at = end
            self._inject_next()
            self._stopping.wait(self._choice.uniform(*PAUSE_SECONDS))

    def _inject_next(self) -> None:
        faults = [self._draw()]
        if self._choice.random() < TWO_AT_ONCE:
            faults += self._second_fault(faults[0])
        # Chosen before the injection: the behaviour of the services must not influence the next choices.
        seconds = [self._duration(*fault.lasts) for fault in faults]
        self._inject_nested(list(zip(faults, seconds, strict=True)))

    def _duration(self, shortest: float, longest: float) -> float:
        """Mostly short, so that there are many faults."""
        return shortest + (longest - shortest) * self._choice.random() ** 3

    def _draw(self) -> Fault:
        if not self._remaining_kinds:
            self._remaining_kinds = self._choice.sample(self._kinds, len(self._kinds))
        return self._remaining_kinds.pop()(self._environment, self._choice)

    def _second_fault(self, first: Fault) -> Iterator[Fault]:
        second = self._draw()
        if first.touches & second.touches:
            self._remaining_kinds.append(type(second))
        else:
            yield second

    def _inject_nested(self, faults: list[tuple[Fault, float]]) -> None:
        """Inject in order and heal in reverse order."""
        if not faults:
            return
        fault, seconds = faults[0]
        self._on_fault(fault)
        began = self._environment.now()
        try:
            fault.inject()
            self._inject_nested(faults[1:])
            self._stopping.wait(seconds)
        finally:
            fault.heal()
            self.records.append(
                FaultRecord(fault.name, fault.target, began, self._environment.now(), fault.causes_duplicates)
            )
