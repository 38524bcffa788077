"""Faults of the network between a kind of service and a server: cut, silent, slow, torn. Others are not concerned."""

from __future__ import annotations

from random import Random

from tests.faults.fault import Fault
from tests.faults.world import World
from tests.fixtures.proxy import Way


class _OfNetwork(Fault):
    repeats = True  # the answer, or the settlement, is lost
    ways: tuple[Way, Way] = ("to_server", "to_client")

    def __init__(self, world: World, choice: Random) -> None:
        super().__init__(world, choice)
        self.target = choice.choice(list(world.proxies))
        self.touches = frozenset({self.target})
        self.proxy = world.proxies[self.target]

    def heal(self) -> None:
        self.proxy.heal()


class ConnectionsCut(_OfNetwork):
    name = "connections cut"
    lasts = (0.0, 0.5)

    def inject(self) -> None:
        self.proxy.cut()


class ConnectionsRefused(_OfNetwork):
    name = "connections cut and refused"

    def inject(self) -> None:
        self.proxy.refuse()
        self.proxy.cut()


class BlackHole(_OfNetwork):
    """Nothing gets through one way; what was held back arrives when it is over."""

    name = "black hole"
    lasts = (0.5, 7.0)

    def __init__(self, world: World, choice: Random) -> None:
        super().__init__(world, choice)
        self._way = choice.choice(self.ways)
        self.target += f", {self._way.replace('_', ' ')}"

    def inject(self) -> None:
        self.proxy.blackhole(self._way)


class AnswerLost(_OfNetwork):
    """The server does what it was asked, and nobody learns it."""

    name = "answer lost"
    lasts = (0.1, 1.0)

    def inject(self) -> None:
        self.proxy.blackhole("to_client")

    def heal(self) -> None:
        self.proxy.cut()
        self.proxy.heal()


class Latency(_OfNetwork):
    name = "latency"
    lasts = (2.0, 5.0)

    def __init__(self, world: World, choice: Random) -> None:
        super().__init__(world, choice)
        self._seconds = choice.uniform(0.02, 0.4)
        self.target += f", {self._seconds * 1000:.0f} ms each way"

    def inject(self) -> None:
        self.proxy.latency(self._seconds)


class TornFrame(_OfNetwork):
    """The connection ends in the middle of a frame."""

    name = "torn frame"

    def __init__(self, world: World, choice: Random) -> None:
        super().__init__(world, choice)
        self._way = choice.choice(self.ways)
        self._bytes = choice.randint(1, 3000)
        self.target += f", {self._way.replace('_', ' ')} after {self._bytes} bytes"

    def inject(self) -> None:
        self.proxy.tear_after(self._bytes, self._way)


NETWORK_FAULTS = (ConnectionsCut, ConnectionsRefused, BlackHole, AnswerLost, Latency, TornFrame)
