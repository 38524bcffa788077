"""
The nemesis: injects faults one after another, at times two at once, and records each with its time.

Kinds are drawn from a bag that is filled again when it is empty, so that a run of some minutes has all of them. Which
kind, on what, for how long: the seed alone decides. In the middle of a long run there is a calm, in which repeated
messages have no excuse.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from random import Random

from tests.faults.broker_faults import BROKER_FAULTS
from tests.faults.checker import REPEATS_AFTER_SECONDS
from tests.faults.database_faults import DATABASE_FAULTS, DatabaseCrash, SettlersEnded, WalsenderEnded
from tests.faults.fault import Fault
from tests.faults.history import FaultRecord
from tests.faults.network_faults import NETWORK_FAULTS
from tests.faults.poison_faults import POISON_FAULTS
from tests.faults.process_faults import PROCESS_FAULTS
from tests.faults.world import World

Kinds = Sequence[type[Fault]]

ALL_FAULTS: Kinds = (*PROCESS_FAULTS, *NETWORK_FAULTS, *BROKER_FAULTS, *DATABASE_FAULTS, *POISON_FAULTS)
QUICK_FAULTS: Kinds = (*PROCESS_FAULTS, *NETWORK_FAULTS, *POISON_FAULTS, DatabaseCrash, SettlersEnded, WalsenderEnded)
"""Those that are over soon: for a short run."""

TWO_AT_ONCE = 0.3
PAUSE_SECONDS = (0.2, 2.0)
CALM_IN_RUNS_OF_SECONDS = 120.0
CALM_SECONDS = REPEATS_AFTER_SECONDS + 8.0


class Nemesis:
    """Owns the choice of faults. `run` it once."""

    def __init__(self, world: World, kinds: Kinds, *, on_fault: Callable[[Fault], None] = lambda _: None) -> None:
        self.records: list[FaultRecord] = []
        self.not_to_be_had = [kind.name for kind in kinds if not kind.can_be_had(world)]
        self._world = world
        self._kinds = [kind for kind in kinds if kind.can_be_had(world)]
        self._choice = Random(world.seed)
        self._bag: list[type[Fault]] = []
        self._on_fault = on_fault
        self._stopping = threading.Event()

    def run(self, seconds: float) -> None:
        """For about so long; what was injected is healed in the end, whatever happens."""
        end = self._world.now() + seconds
        calm_at = end - seconds / 2 if seconds >= CALM_IN_RUNS_OF_SECONDS else end
        while self._world.now() < end:
            if self._world.now() >= calm_at:
                self._stopping.wait(CALM_SECONDS)
                calm_at = end
            self._strike()
            self._stopping.wait(self._choice.uniform(*PAUSE_SECONDS))

    def _strike(self) -> None:
        faults = [self._draw()]
        if self._choice.random() < TWO_AT_ONCE:
            faults += self._companions(faults[0])
        # Chosen before anything is done: what the world does must not change what comes next.
        seconds = [self._how_long(*fault.lasts) for fault in faults]
        self._suffer(list(zip(faults, seconds, strict=True)))

    def _how_long(self, shortest: float, longest: float) -> float:
        """Mostly short, so that there are many."""
        return shortest + (longest - shortest) * self._choice.random() ** 3

    def _draw(self) -> Fault:
        if not self._bag:
            self._bag = self._choice.sample(self._kinds, len(self._kinds))
        return self._bag.pop()(self._world, self._choice)

    def _companions(self, first: Fault) -> Iterator[Fault]:
        second = self._draw()
        if first.touches & second.touches:
            self._bag.append(type(second))
        else:
            yield second

    def _suffer(self, faults: list[tuple[Fault, float]]) -> None:
        """One inside the other: the last one injected is healed first."""
        if not faults:
            return
        fault, seconds = faults[0]
        self._on_fault(fault)
        began = self._world.now()
        try:
            fault.inject()
            self._suffer(faults[1:])
            self._stopping.wait(seconds)
        finally:
            fault.heal()
            self.records.append(FaultRecord(fault.name, fault.target, began, self._world.now(), fault.repeats))
