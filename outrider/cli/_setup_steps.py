"""
Run the steps of a set-up plan and print a line for each; or print the plan as SQL.
"""

from __future__ import annotations

from collections.abc import Iterable

import click

from outrider.operations.setup.apply import apply_step
from outrider.operations.setup.plan import Step
from outrider.storage.store import Store


def run_steps(store: Store, steps: Iterable[Step]) -> None:
    for step in steps:
        click.echo(f"{step.what}: ", nl=False)  # printed before the step runs: a slot waits for running transactions
        try:
            outcome = apply_step(store, step)
        except BaseException:
            click.echo("failed")
            raise
        click.echo(outcome)
