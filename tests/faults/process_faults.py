"""Faults of single processes: killed, frozen, asked to stop, started with a wrong clock."""

from __future__ import annotations

import signal
from random import Random

from tests.faults.fault import Fault
from tests.faults.world import SERVICES, World

HOUR_SECONDS = 3600


class _OfProcess(Fault):
    """A fault of one actor: more often a service than what surrounds it."""

    victims: tuple[str, ...] = SERVICES

    def __init__(self, world: World, choice: Random) -> None:
        super().__init__(world, choice)
        self.actor = choice.choice(world.cast.named(*self.victims))
        self.target = self.actor.name
        self.touches = frozenset({self.target})


class ServiceKilled(_OfProcess):
    name = "SIGKILL of a service"
    repeats = True  # published and confirmed, not settled yet
    lasts = (0.0, 3.0)

    def inject(self) -> None:
        self.actor.leave_ended()
        self.actor.kill()

    def heal(self) -> None:
        self.actor.return_to_life()


class ConsumerKilled(ServiceKilled):
    name = "SIGKILL of a consumer"
    victims = ("consumer",)


class ProducerKilled(ServiceKilled):
    """Its open transaction is rolled back."""

    name = "SIGKILL of a producer"
    victims = ("producer",)
    repeats = False


class ServiceFrozen(_OfProcess):
    """Longer than hand-over or lease at times: somebody else sends what it holds, and then it wakes up."""

    name = "SIGSTOP of a service"
    repeats = True
    lasts = (0.5, 9.0)

    def inject(self) -> None:
        self.actor.leave_ended()
        if self.actor.is_running:
            self.actor.service.signal(signal.SIGSTOP)

    def heal(self) -> None:
        if self.actor.is_running:
            self.actor.service.signal(signal.SIGCONT)
        self.actor.return_to_life()


class ServiceStopped(_OfProcess):
    """An orderly end repeats nothing."""

    name = "SIGTERM of a service"
    repeats = False
    lasts = (0.0, 2.0)

    def inject(self) -> None:
        self.actor.leave_ended()
        self.actor.stop()

    def heal(self) -> None:
        self.actor.return_to_life()


class ClockOff(_OfProcess):
    """Started again with a clock that is an hour off, either way; it stays so until the process ends."""

    name = "clock of a service an hour off"
    repeats = True  # the process is killed for it
    lasts = (2.0, 6.0)

    def __init__(self, world: World, choice: Random) -> None:
        super().__init__(world, choice)
        self._shift_seconds = choice.choice((-HOUR_SECONDS, HOUR_SECONDS))
        self.target += f" {self._shift_seconds:+d} s"

    def inject(self) -> None:
        self.actor.leave_ended()
        self.actor.kill()
        self.actor.start(shifted_seconds=self._shift_seconds)

    def heal(self) -> None:
        self.actor.return_to_life()


PROCESS_FAULTS = (ServiceKilled, ConsumerKilled, ProducerKilled, ServiceFrozen, ServiceStopped, ClockOff)
