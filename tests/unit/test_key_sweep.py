"""The sweep over blocked keys: how many keys it asks about at a time, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.cdc_relay.key_sweep import KEYS_AT_ONCE, PAUSE_SECONDS, SWEEP_SECONDS, KeySweep


class Asked:
    """Stands for the store and the pipeline: no key with an even number has a row."""

    def __init__(self, count: int) -> None:
        self.blocked_keys = {str(number) for number in range(count)}
        self.sizes: list[int] = []

    def keys_without_rows(self, keys: Sequence[str]) -> set[str]:
        self.sizes.append(len(keys))
        return {key for key in keys if int(key) % 2 == 0}

    def unblock_keys(self, keys: set[str]) -> None:
        self.blocked_keys -= keys


def test_a_sweep_asks_about_every_key_a_bounded_number_at_a_time() -> None:
    asked: Any = Asked(KEYS_AT_ONCE * 2 + 10)
    now = [0.0]
    sweep = KeySweep(asked, asked, clock=lambda: now[0])
    sweep.run_due()
    assert asked.sizes == []
    now[0] += SWEEP_SECONDS
    for _ in range(4):
        sweep.run_due()
        sweep.run_due()  # not before the pause is over
        now[0] += PAUSE_SECONDS
    assert asked.sizes == [KEYS_AT_ONCE, KEYS_AT_ONCE, 10]
    assert len(asked.blocked_keys) == KEYS_AT_ONCE + 5
    now[0] += SWEEP_SECONDS
    sweep.run_due()
    assert asked.sizes[3:] == [KEYS_AT_ONCE]


def test_without_blocked_keys_nothing_is_asked() -> None:
    asked: Any = Asked(0)
    now = [0.0]
    sweep = KeySweep(asked, asked, clock=lambda: now[0])
    now[0] += SWEEP_SECONDS
    sweep.run_due()
    assert asked.sizes == []
