"""Messages that make the broker close the channel on which others are in flight."""

from __future__ import annotations

import os
import threading
from random import Random

from tests.faults.fault import Fault
from tests.faults.producer import CLOSING_POISON, Writer
from tests.faults.world import World

MOST = 6


class PoisonSent(Fault):
    """Some in one transaction. They die in the end, and what was in flight beside them may be sent again."""

    name = "poison that closes the channel"
    repeats = True
    lasts = (0.0, 2.0)
    touches = frozenset({"database"})

    def __init__(self, world: World, choice: Random) -> None:
        super().__init__(world, choice)
        self._kinds = choice.choices(CLOSING_POISON, k=choice.randint(1, MOST))
        self._choice = Random(choice.random())
        self.target = ", ".join(self._kinds)

    def inject(self) -> None:
        with open(os.devnull, "wb") as nowhere, self.world.connect(autocommit=False) as connection:  # noqa: PTH123
            writer = Writer(self._choice, threading.Event(), nowhere.fileno())
            for kind in self._kinds:
                writer.poison(connection, kind)

    def heal(self) -> None:
        """The services bury them."""


POISON_FAULTS = (PoisonSent,)
