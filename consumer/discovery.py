"""
Find the consumers of an application's modules, and its database, by name: what `outrider worker` is given.

Names are imported here and nowhere else. A name that leads nowhere is a SettingsError in one line; an exception that
the application's own code raises while it is imported is its own, with its traceback.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from outrider.consumer.definition import AnyConsumer, Consumer
from outrider.errors import SettingsError


def prepare_imports() -> None:
    """Let applications be found from the working directory, as `python -m` does; set Django up, where it is used."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if os.environ.get("DJANGO_SETTINGS_MODULE"):
        import django

        django.setup()


def find_consumers(modules: Iterable[str]) -> list[AnyConsumer]:
    """Every Consumer that is an attribute of one of these modules; SettingsError where a module has none."""
    found: dict[int, AnyConsumer] = {}
    for name in modules:
        module = _import(name)
        consumers = [value for value in vars(module).values() if isinstance(value, Consumer)]
        if not consumers:
            raise SettingsError(f"{name} has no consumers: decorate a function of it with @consume(...)")
        found |= {id(consumer): consumer for consumer in consumers}
    return list(found.values())


def find_database(name: str) -> Any:
    """What `package.module:attribute` names; a name without a colon is a Django alias."""
    module, colon, attribute = name.partition(":")
    if not colon:
        return name
    target = _import(module)
    try:
        for part in attribute.split("."):
            target = getattr(target, part)
    except AttributeError:
        raise SettingsError(f"inbox_database: {module} has no {attribute}") from None
    return target


def _import(name: str) -> Any:
    if not all(part.isidentifier() for part in name.split(".")):
        raise SettingsError(f"{name!r} is not the name of a module, such as shop.consumers")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only if it is this very module that is missing, and not one that it imports.
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise SettingsError(f"there is no module {name} (looked in the working directory and sys.path)") from None
