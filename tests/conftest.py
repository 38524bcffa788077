"""
What every test run has: the fixtures, a marker per tier, and a closing line that counts the tests of each tier.

The tier of a test is its directory: unit, integration, acceptance, faults. `pytest -m unit` runs one of them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import hypothesis
import pytest
from _pytest.terminal import TerminalReporter

pytest_plugins = [
    "tests.fixtures.servers",
    "tests.fixtures.database",
    "tests.fixtures.broker",
    "tests.fixtures.proxy",
    "tests.fixtures.pgbouncer",
    "tests.fixtures.services",
    "tests.fixtures.stage",
    "tests.fixtures.worker",
    "tests.fixtures.wheel",
]

# A busy machine is slow, not wrong.
hypothesis.settings.register_profile(
    "any machine", deadline=None, max_examples=60, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

TIERS = ("unit", "integration", "acceptance", "faults")  # their markers are described in pyproject.toml
HERE = Path(__file__).parent
OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and (tier := item.path.relative_to(HERE).parts[0]) in TIERS:
            item.add_marker(tier)


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """One line that shows which tiers really ran: `tiers: unit 12 passed | integration 8 passed, 1 skipped | ...`."""
    counts = {tier: Counter[str]() for tier in TIERS}
    for outcome in OUTCOMES:
        for report in terminalreporter.stats.get(outcome, []):
            for tier in TIERS:
                if f"tests/{tier}/" in getattr(report, "nodeid", ""):
                    counts[tier][outcome] += 1
    described = (
        f"{tier} " + (", ".join(f"{number} {outcome}" for outcome, number in counted.items()) or "none")
        for tier, counted in counts.items()
    )
    terminalreporter.write_line("tiers: " + " | ".join(described))
