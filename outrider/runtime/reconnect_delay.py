"""The backoff before a reconnect: exponential, with jitter so that many services do not reconnect at once."""

from __future__ import annotations

import random

STEADY_SECONDS = 10.0
"""After a connection that lasted this long, a loss counts as the first failure again."""


def reconnect_delay(failures: int, *, longest_seconds: float = 5.0) -> float:
    """Seconds to wait after this many failures in a row."""
    delay = min(0.1 * 2.0 ** min(failures, 10), longest_seconds)
    return delay * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
