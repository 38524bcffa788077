"""Faults of the network between one kind of service and a server: cut, silent, slow, torn."""

from __future__ import annotations

from random import Random

from tests.faults.environment import Environment
from tests.faults.fault import Fault
from tests.fixtures.proxy import Direction


class _NetworkFault(Fault):
    causes_duplicates = True  # the confirm or the settlement is lost
    directions: tuple[Direction, Direction] = ("to_server", "to_client")

    def __init__(self, environment: Environment, choice: Random) -> None:
        super().__init__(environment, choice)
        self.target = choice.choice(list(environment.proxies))
        self.touches = frozenset({self.target})
        self.proxy = environment.proxies[self.target]

    def heal(self) -> None:
        self.proxy.heal()


class ConnectionsCut(_NetworkFault):
    name = "connections cut"
    lasts = (0.0, 0.5)

    def inject(self) -> None:
        self.proxy.cut()


class ConnectionsRefused(_NetworkFault):
    name = "connections cut and refused"

    def inject(self) -> None:
        self.proxy.refuse()
        self.proxy.cut()


class BlackHole(_NetworkFault):
    """Nothing passes in one direction; the data arrives after the fault is healed."""

    name = "black hole"
    lasts = (0.5, 7.0)

    def __init__(self, environment: Environment, choice: Random) -> None:
        super().__init__(environment, choice)
        self._direction = choice.choice(self.directions)
        self.target += f", {self._direction.replace('_', ' ')}"

    def inject(self) -> None:
        self.proxy.blackhole(self._direction)


class AnswerLost(_NetworkFault):
    """The server executes the request, and its answer is lost."""

    name = "answer lost"
    lasts = (0.1, 1.0)

    def inject(self) -> None:
        self.proxy.blackhole("to_client")

    def heal(self) -> None:
        self.proxy.cut()
        self.proxy.heal()


class Latency(_NetworkFault):
    name = "latency"
    lasts = (2.0, 5.0)

    def __init__(self, environment: Environment, choice: Random) -> None:
        super().__init__(environment, choice)
        self._seconds = choice.uniform(0.02, 0.4)
        self.target += f", {self._seconds * 1000:.0f} ms each way"

    def inject(self) -> None:
        self.proxy.latency(self._seconds)


class TornFrame(_NetworkFault):
    """The connection ends in the middle of a frame."""

    name = "torn frame"

    def __init__(self, environment: Environment, choice: Random) -> None:
        super().__init__(environment, choice)
        self._direction = choice.choice(self.directions)
        self._bytes = choice.randint(1, 3000)
        self.target += f", {self._direction.replace('_', ' ')} after {self._bytes} bytes"

    def inject(self) -> None:
        self.proxy.tear_after(self._bytes, self._direction)


NETWORK_FAULTS = (ConnectionsCut, ConnectionsRefused, BlackHole, AnswerLost, Latency, TornFrame)
