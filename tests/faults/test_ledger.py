"""
The crash ledger in short: some twenty seconds, with the faults that are over soon. `make faults` is the long one.

SEED repeats other choices than the usual ones, DURATION (seconds) makes it longer.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.faults.checker import check
from tests.faults.nemesis import QUICK_FAULTS
from tests.faults.report import figures_text, violations_text
from tests.faults.run import Run
from tests.fixtures.servers import skip_without_rabbitmq

SEED = int(os.environ.get("SEED") or 11)
DURATION_SECONDS = float(os.environ.get("DURATION") or 10)


def test_what_is_committed_is_delivered_in_order_whatever_is_killed_or_cut_off(tmp_path: Path) -> None:
    skip_without_rabbitmq()
    result = Run(tmp_path, seed=SEED, seconds=DURATION_SECONDS, kinds=QUICK_FAULTS)()
    print(figures_text(result))
    violations = check(result.history)
    assert not violations, violations_text(result, violations)
    assert result.history.faults
    assert len(result.history.deliveries) > 100
