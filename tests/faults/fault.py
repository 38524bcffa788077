"""What a fault is: something that is done to the world, and undone a little later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random
from typing import ClassVar

from tests.faults.world import World


class Fault(ABC):
    """
    One fault, chosen and not injected yet. All choices are made by the constructor, from `choice` alone.

    target   what it is done to, for the record
    touches  the parts of the world that it needs or breaks: two faults at a time must not share one
    """

    name: ClassVar[str]
    repeats: ClassVar[bool]
    """Whether messages may come twice because of it."""
    lasts: ClassVar[tuple[float, float]] = (0.5, 3.0)
    """Seconds between injecting and healing, at least and at most."""

    target: str
    touches: frozenset[str]

    def __init__(self, world: World, choice: Random) -> None:
        self.world = world

    @classmethod
    def can_be_had(cls, world: World) -> bool:
        """Whether it can be injected on this machine."""
        return True

    @abstractmethod
    def inject(self) -> None: ...

    @abstractmethod
    def heal(self) -> None:
        """Undo it, as far as that is not the services' own business."""
