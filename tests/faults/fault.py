"""Fault: one failure that is injected into the environment and healed a little later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random
from typing import ClassVar

from tests.faults.environment import Environment


class Fault(ABC):
    """
    One fault, chosen but not injected yet. The constructor makes all choices, from `choice` alone.

    target   the part that fails, for the record
    touches  the parts that it needs or breaks: two simultaneous faults must not share one
    """

    name: ClassVar[str]
    causes_duplicates: ClassVar[bool]
    """Whether messages may be delivered twice because of it."""
    lasts: ClassVar[tuple[float, float]] = (0.5, 3.0)
    """Shortest and longest time between injecting and healing, in seconds."""

    target: str
    touches: frozenset[str]

    def __init__(self, environment: Environment, choice: Random) -> None:
        self.environment = environment

    @classmethod
    def is_available(cls, environment: Environment) -> bool:
        """Whether it can be injected on this machine."""
        return True

    @abstractmethod
    def inject(self) -> None: ...

    @abstractmethod
    def heal(self) -> None:
        """Undo it, except for what the services must repair themselves."""
