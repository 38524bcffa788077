"""
A short fault run of about twenty seconds, with the faults that end soon. `make faults` runs the long one.

SEED selects other choices than the default, DURATION (seconds) makes it longer.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.faults.checker import check
from tests.faults.fault_schedule import QUICK_FAULTS
from tests.faults.report import figures_text, violations_text
from tests.faults.run import FaultRun
from tests.fixtures.servers import skip_without_rabbitmq

SEED = int(os.environ.get("SEED") or 11)
DURATION_SECONDS = float(os.environ.get("DURATION") or 10)


def test_every_committed_message_is_delivered_in_order_under_faults(tmp_path: Path) -> None:
    skip_without_rabbitmq()
    result = FaultRun(tmp_path, seed=SEED, seconds=DURATION_SECONDS, kinds=QUICK_FAULTS).run()
    print(figures_text(result))
    violations = check(result.history)
    assert not violations, violations_text(result, violations)
    assert result.history.faults
    assert len(result.history.deliveries) > 100
