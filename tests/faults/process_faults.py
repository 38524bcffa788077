"""Faults of single processes: killed, suspended, stopped, started with a wrong clock."""

from __future__ import annotations

import signal
from random import Random

from tests.faults.environment import SERVICES, Environment
from tests.faults.fault import Fault

HOUR_SECONDS = 3600


class _ProcessFault(Fault):
    """A fault of one process; of a relay or scheduler unless a subclass says otherwise."""

    prefixes: tuple[str, ...] = SERVICES

    def __init__(self, environment: Environment, choice: Random) -> None:
        super().__init__(environment, choice)
        self.process = choice.choice(environment.processes.named(*self.prefixes))
        self.target = self.process.name
        self.touches = frozenset({self.target})


class ServiceKilled(_ProcessFault):
    name = "SIGKILL of a service"
    causes_duplicates = True  # published and confirmed, but not settled
    lasts = (0.0, 3.0)

    def inject(self) -> None:
        self.process.pause_supervision()
        self.process.kill()

    def heal(self) -> None:
        self.process.resume_supervision()


class ConsumerKilled(ServiceKilled):
    name = "SIGKILL of a consumer"
    prefixes = ("consumer",)


class ProducerKilled(ServiceKilled):
    """Its open transaction is rolled back."""

    name = "SIGKILL of a producer"
    prefixes = ("producer",)
    causes_duplicates = False


class ServiceFrozen(_ProcessFault):
    """Sometimes longer than handover_after or a lease: another service publishes its messages, then it continues."""

    name = "SIGSTOP of a service"
    causes_duplicates = True
    lasts = (0.5, 9.0)

    def inject(self) -> None:
        self.process.pause_supervision()
        if self.process.is_running:
            self.process.service.signal(signal.SIGSTOP)

    def heal(self) -> None:
        if self.process.is_running:
            self.process.service.signal(signal.SIGCONT)
        self.process.resume_supervision()


class ServiceStopped(_ProcessFault):
    """An orderly stop causes no duplicates."""

    name = "SIGTERM of a service"
    causes_duplicates = False
    lasts = (0.0, 2.0)

    def inject(self) -> None:
        self.process.pause_supervision()
        self.process.stop()

    def heal(self) -> None:
        self.process.resume_supervision()


class ClockShifted(_ProcessFault):
    """Restarted with a wall clock that is an hour fast or slow, until the process ends."""

    name = "clock of a service an hour off"
    causes_duplicates = True  # the process is killed first
    lasts = (2.0, 6.0)

    def __init__(self, environment: Environment, choice: Random) -> None:
        super().__init__(environment, choice)
        self._shift_seconds = choice.choice((-HOUR_SECONDS, HOUR_SECONDS))
        self.target += f" {self._shift_seconds:+d} s"

    def inject(self) -> None:
        self.process.pause_supervision()
        self.process.kill()
        self.process.start(shifted_seconds=self._shift_seconds)

    def heal(self) -> None:
        self.process.resume_supervision()


PROCESS_FAULTS = (ServiceKilled, ConsumerKilled, ProducerKilled, ServiceFrozen, ServiceStopped, ClockShifted)
