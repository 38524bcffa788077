"""
Run the steps of a set-up plan and print a line for each; or print the plan as SQL.
"""

from __future__ import annotations

from collections.abc import Iterable

from outrider.cli._output import print_line
from outrider.operations.setup.apply import apply_step
from outrider.operations.setup.plan import Step
from outrider.storage.store import Store


def run_steps(store: Store, steps: Iterable[Step]) -> None:
    for step in steps:
        print_line(f"{step.what}: ", end=False)  # printed before the step runs: a slot waits for running transactions
        try:
            outcome = apply_step(store, step)
        except BaseException:
            print_line("failed")
            raise
        print_line(outcome)
