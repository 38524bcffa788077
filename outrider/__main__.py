"""
The commands `outrider` (also `python -m outrider`), `cdc-relay` and `retry-scheduler`.

A missing dependency is an error in one line that says what to install.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

MODULES = {
    "outrider": "outrider.cli",
    "cdc-relay": "outrider.cdc_relay.__main__",
    "retry-scheduler": "outrider.retry_scheduler.__main__",
}


def main() -> None:
    _run("outrider")


def cdc_relay() -> None:
    _run("cdc-relay")


def retry_scheduler() -> None:
    _run("retry-scheduler")


def load_command(name: str) -> Any:
    """The click command of `cdc-relay`, `outrider doctor` and others. ModuleNotFoundError for what is not installed."""
    script, _, subcommand = name.partition(" ")
    module = MODULES[script]
    return importlib.import_module(f"{module}.{subcommand}" if subcommand else module).command


def _run(script: str) -> None:
    try:
        run = importlib.import_module(MODULES[script]).main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "outrider":
            raise
        print(f"{script}: error: {error.name} is not installed: pip install 'outrider[services]'", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
