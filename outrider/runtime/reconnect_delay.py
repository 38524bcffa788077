"""How long to wait before connecting again: longer each time, with jitter, so that many do not come back at once."""

from __future__ import annotations

import random


def reconnect_delay(failures: int, *, shortest_seconds: float = 0.1, longest_seconds: float = 5.0) -> float:
    """Seconds to wait after so many failures in a row."""
    delay = min(shortest_seconds * 2.0 ** min(failures, 10), longest_seconds)
    return delay * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
