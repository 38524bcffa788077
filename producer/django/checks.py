"""
System checks of the settings, each with a hint. Mistakes are findings, never exceptions.

outrider.E001  OUTRIDER is not a dict
outrider.E002  unknown key
outrider.E003  wrong value
outrider.E004  no such database
outrider.E005  not PostgreSQL
outrider.E006  the redactor cannot be imported, or does not take (event_type, payload, headers)
outrider.E007  the Celery app cannot be imported
outrider.W008  the Celery app does not capture its tasks
outrider.E011  unknown setting of the services, or a wrong value of one
outrider.W014  the Celery app writes its tasks to another database or schema than OUTRIDER says

outrider.producer.django.database_checks has the others.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any, get_args

from django.core.checks import CheckMessage, Error, Warning
from django.db import connections

from outrider.operations.redaction import load_redactor
from outrider.producer.context import Context
from outrider.producer.django.conf import KNOWN, OutboxSettings, configured, get_settings
from outrider.producer.django.services import unknown_settings, wrong_settings
from outrider.producer.outbox import OutsideTransaction

NAME_BYTES = 63


def check_settings(app_configs: Any = None, **options: Any) -> list[CheckMessage]:  # noqa: ARG001
    given = configured()
    if not isinstance(given, dict):
        return [Error("OUTRIDER is not a dict", id="outrider.E001")]
    settings = get_settings()
    if wrong := list(check_values(settings)):
        return [*_check_keys(given), *wrong]
    return [*_check_keys(given), *_check_functions(settings), *_check_services(settings.services)]


def check_values(settings: OutboxSettings) -> Iterator[CheckMessage]:
    """The values that everything else depends on: their types, the names in PostgreSQL, the database."""
    for key, problem in _wrong_values(settings):
        yield Error(f"OUTRIDER[{key!r}] {problem}", id="outrider.E003")
    alias: Any = settings.database
    if not isinstance(alias, str):
        return
    if alias not in connections.settings:
        yield Error(f"OUTRIDER['DATABASE']: there is no database {alias!r}", id="outrider.E004")
    elif connections[alias].vendor != "postgresql":
        vendor = connections[alias].vendor
        yield Error(f"the outbox is in PostgreSQL, and {alias!r} is {vendor}", id="outrider.E005")


def _check_keys(given: dict[str, Any]) -> Iterator[CheckMessage]:
    for key in given:
        if key not in KNOWN:
            close = difflib.get_close_matches(str(key).upper(), KNOWN, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(KNOWN)}"
            yield Error(f"OUTRIDER has an unknown key {key!r}", hint=hint, id="outrider.E002")


def _wrong_values(settings: OutboxSettings) -> Iterator[tuple[str, str]]:
    for key, name in KNOWN.items():
        value = getattr(settings, name)
        if name in ("services", "context"):
            if not isinstance(value, Mapping):
                yield key, f"must be a dict, not {type(value).__name__}"
        elif name in ("redactor", "celery_app", "publication", "slot", "health_permission"):
            if not isinstance(value, str | None):
                yield key, f"must be a str or None, not {type(value).__name__}"
        elif not isinstance(value, str):
            yield key, f"must be a str, not {type(value).__name__}"
    for key in ("SCHEMA", "PUBLICATION"):
        value = getattr(settings, KNOWN[key])
        if isinstance(value, str) and ("\0" in value or not 0 < len(value.encode(errors="replace")) <= NAME_BYTES):
            yield key, f"must be a name of 1 to {NAME_BYTES} bytes"
    if isinstance(settings.slot, str) and not re.fullmatch(rf"[a-z0-9_]{{1,{NAME_BYTES}}}", settings.slot):
        yield "SLOT", "may contain only lower-case letters, digits and underscores: it names a replication slot"
    allowed = get_args(OutsideTransaction)
    value = getattr(settings, KNOWN["OUTSIDE_TRANSACTION"])
    if isinstance(value, str) and value not in allowed:
        yield "OUTSIDE_TRANSACTION", f"must be one of {', '.join(allowed)}"
    context: Any = settings.context
    if isinstance(context, Mapping):
        yield from _wrong_context(context)


def _wrong_context(context: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    known = [field.name for field in fields(Context)]
    for name, value in context.items():
        if name not in known:
            yield "CONTEXT", f"has an unknown key {name!r}; known are {', '.join(known)}"
        elif name == "structlog" and not isinstance(value, bool):
            if not isinstance(value, list | tuple | set | frozenset) or not all(
                isinstance(each, str) for each in value
            ):
                yield "CONTEXT", "['structlog'] must be True, False or a list of names"
        elif not isinstance(value, bool):
            yield "CONTEXT", f"[{name!r}] must be True or False"


def _check_functions(settings: OutboxSettings) -> Iterator[CheckMessage]:
    """What the dotted paths name."""
    if settings.redactor is not None:
        try:
            load_redactor(settings.redactor)
        except ValueError as error:
            yield Error(f"OUTRIDER['REDACTOR']: {error}", id="outrider.E006")
    if settings.celery_app is not None:
        yield from _check_celery(settings.celery_app, settings)
    elif "outrider.producer.celery" in sys.modules:
        from celery import current_app

        yield from _check_target("the current Celery application", current_app, settings)


def _check_celery(path: str, settings: OutboxSettings) -> Iterator[CheckMessage]:
    module, _, name = path.rpartition(".")
    try:
        app = getattr(import_module(module), name)
        from outrider.producer.celery.app import Capturing
    except Exception as error:  # a module of the application can raise anything at import
        cause = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        yield Error(f"OUTRIDER['CELERY_APP']: {path!r} cannot be imported: {cause}", id="outrider.E007")
        return
    if not isinstance(app, Capturing):
        hint = "make it an OutboxCelery, or call outrider.producer.celery.capture_tasks"
        yield Warning(
            f"{path} does not capture its tasks: it sends them to the broker directly", hint=hint, id="outrider.W008"
        )
    yield from _check_target(path, app, settings)


def _check_target(name: str, app: Any, settings: OutboxSettings) -> Iterator[CheckMessage]:
    """Whether the tasks of an application go where OUTRIDER says."""
    outbox: Any = getattr(app, "outbox", None)
    if outbox is None or outbox.alias is None:
        return
    if (outbox.alias, outbox.schema) != (settings.database, settings.schema):
        yield Warning(
            f"{name} writes its tasks to the database {outbox.alias!r}, schema {outbox.schema!r}, and OUTRIDER says "
            f"{settings.database!r}, {settings.schema!r}",
            hint="TaskOutbox(django=True) follows OUTRIDER",
            id="outrider.W014",
        )


def _check_services(given: Mapping[str, Any]) -> Iterator[CheckMessage]:
    for message in unknown_settings(given) or wrong_settings(given):
        yield Error(f"OUTRIDER['SERVICES']: {message}", id="outrider.E011")
