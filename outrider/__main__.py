"""
The commands `outrider` (also `python -m outrider`), `cdc-relay` and `retry-scheduler`.

A missing dependency is an error in one line that says what to install.
"""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    _run("outrider", "outrider.cli")


def cdc_relay() -> None:
    _run("cdc-relay", "outrider.cdc_relay.__main__")


def retry_scheduler() -> None:
    _run("retry-scheduler", "outrider.retry_scheduler.__main__")


def _run(command: str, module: str) -> None:
    try:
        run = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "outrider":
            raise
        print(f"{command}: error: {error.name} is not installed: pip install 'outrider[services]'", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
