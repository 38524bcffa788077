"""
System checks of the settings and the database, each with a hint.

outrider.E001  OUTRIDER is not a dict
outrider.E002  unknown key
outrider.E003  wrong value
outrider.E004  no such database
outrider.E005  not PostgreSQL
outrider.E006  the redactor cannot be imported
outrider.E007  the Celery app cannot be imported
outrider.W008  the Celery app does not capture its tasks
outrider.E009  tables or migrations are missing (`manage.py migrate`)
outrider.W010  the publication or the slot is missing (`outrider setup`)
outrider.E011  unknown setting of the services

E009 and W010 query the database. Django runs them for `check --database default` and `migrate`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, get_args

from django.core.checks import CheckMessage, Error, Warning
from django.db import connections

from outrider.operations.redaction import load_redactor
from outrider.producer.django.conf import KNOWN, OutboxSettings, configured, get_settings
from outrider.producer.django.services import unknown_settings
from outrider.producer.outbox import OutsideTransaction
from outrider.storage.sql_files import Queries, migrations


def check_settings(app_configs: Any = None, **options: Any) -> list[CheckMessage]:  # noqa: ARG001
    given = configured()
    if not isinstance(given, dict):
        return [Error("OUTRIDER is not a dict", id="outrider.E001")]
    return [*_check_keys(given), *_check_values(get_settings())]


def check_database(
    app_configs: Any = None,  # noqa: ARG001
    databases: Sequence[str] | None = None,
    **options: Any,  # noqa: ARG001
) -> list[CheckMessage]:
    settings = get_settings()
    if settings.database not in (databases or ()) or list(_check_alias(settings)):
        return []
    queries = Queries(settings.schema)
    with connections[settings.database].cursor() as cursor:
        cursor.execute(queries["schema_tables"], {"schema": settings.schema})
        applied: set[int] = set()
        if ("outbox_migration",) in cursor.fetchall():
            cursor.execute(queries["applied_migrations"])
            applied = {version for (version,) in cursor.fetchall()}
        if missing := [each.version for each in migrations() if each.version not in applied]:
            hint = f"run `manage.py migrate outrider --database {settings.database}`"
            return [Error(f"migrations {missing} of the outbox are not applied", hint=hint, id="outrider.E009")]
        return list(_check_replication(cursor, queries, settings))


def _check_keys(given: dict[str, Any]) -> Iterator[CheckMessage]:
    for key in given:
        if key not in KNOWN:
            close = difflib.get_close_matches(str(key).upper(), KNOWN, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(KNOWN)}"
            yield Error(f"OUTRIDER has an unknown key {key!r}", hint=hint, id="outrider.E002")


def _check_values(settings: OutboxSettings) -> Iterator[CheckMessage]:
    for key, name in KNOWN.items():
        if name == "services":
            continue
        value = getattr(settings, name)
        optional = name in ("redactor", "celery_app", "publication", "slot")
        if not (isinstance(value, str) or (optional and value is None)):
            yield Error(f"OUTRIDER[{key!r}] must be a str", id="outrider.E003")
    if settings.outside_transaction not in get_args(OutsideTransaction):
        allowed = ", ".join(get_args(OutsideTransaction))
        yield Error(f"OUTRIDER['OUTSIDE_TRANSACTION'] must be one of {allowed}", id="outrider.E003")
    yield from _check_alias(settings)
    yield from _check_services(settings.services)
    if isinstance(settings.redactor, str):
        try:
            load_redactor(settings.redactor)
        except ValueError as error:
            yield Error(f"OUTRIDER['REDACTOR']: {error}", id="outrider.E006")
    if isinstance(settings.celery_app, str):
        yield from _check_celery(settings.celery_app)


def _check_alias(settings: OutboxSettings) -> Iterator[CheckMessage]:
    if settings.database not in connections.settings:
        yield Error(f"OUTRIDER['DATABASE']: there is no database {settings.database!r}", id="outrider.E004")
    elif connections[settings.database].vendor != "postgresql":
        vendor = connections[settings.database].vendor
        yield Error(f"the outbox is in PostgreSQL, and {settings.database!r} is {vendor}", id="outrider.E005")


def _check_services(given: Any) -> Iterator[CheckMessage]:
    if not isinstance(given, Mapping):
        yield Error("OUTRIDER['SERVICES'] must be a dict", id="outrider.E003")
        return
    for message in unknown_settings(given):
        yield Error(f"OUTRIDER['SERVICES']: {message}", id="outrider.E011")


def _check_celery(path: str) -> Iterator[CheckMessage]:
    module, _, name = path.rpartition(".")
    try:
        app = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        yield Error(f"OUTRIDER['CELERY_APP']: {path!r} cannot be imported", id="outrider.E007")
        return
    from outrider.producer.celery.app import Capturing

    if not isinstance(app, Capturing):
        hint = "make it an OutboxCelery, or call outrider.producer.celery.capture_tasks"
        yield Warning(
            f"{path} does not capture its tasks: it sends them to the broker directly", hint=hint, id="outrider.W008"
        )


def _check_replication(cursor: Any, queries: Queries, settings: OutboxSettings) -> Iterator[CheckMessage]:
    for kind, name, query in (
        ("publication", settings.publication, "publication_shape"),
        ("slot", settings.slot, "slot_state"),
    ):
        if name is None:
            continue
        cursor.execute(queries[query], {kind: name})
        if cursor.fetchone() is None:
            hint = "run `outrider setup`, or set it to None in OUTRIDER where only the scheduler delivers"
            yield Warning(f"there is no {kind} {name!r}: the relay cannot deliver", hint=hint, id="outrider.W010")
