"""
Find consumers and the inbox database by name, from the arguments and settings of `outrider worker`.

This is the only module that imports the application's modules by name. A name that does not exist raises a one-line
SettingsError. An exception that the application's own code raises during the import is passed on with its traceback.
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
    """Add the working directory to sys.path, like `python -m`, and set up Django if DJANGO_SETTINGS_MODULE is set."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if os.environ.get("DJANGO_SETTINGS_MODULE"):
        import django

        django.setup()


def find_consumers(modules: Iterable[str]) -> list[AnyConsumer]:
    """Every Consumer that is an attribute of one of these modules. Raises SettingsError for a module without one."""
    found: dict[int, AnyConsumer] = {}
    for name in modules:
        module = _import(name)
        consumers = [value for value in vars(module).values() if isinstance(value, Consumer)]
        if not consumers:
            raise SettingsError(f"{name} has no consumers: decorate a function in it with @consume(...)")
        found |= {id(consumer): consumer for consumer in consumers}
    return list(found.values())


def find_database(name: str) -> Any:
    """The object that `package.module:attribute` names. A name without a colon is returned as a Django alias."""
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
        # Only if this module is missing, not one that it imports.
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise SettingsError(f"there is no module {name} (looked in the working directory and sys.path)") from None
