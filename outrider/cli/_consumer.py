"""
Import a module of outrider.consumer when a command needs it, so that the other commands work without its extra.
"""

from __future__ import annotations

import importlib
from typing import Any

from outrider.errors import SettingsError


def import_consumer(module: str) -> Any:
    """SettingsError with what to install, if a dependency is missing."""
    try:
        return importlib.import_module(f"outrider.consumer.{module}")
    except ModuleNotFoundError as error:
        raise SettingsError(f"{error.name} is not installed: pip install 'outrider[consumer]'") from None
