"""
System checks of the database, each with a hint. Django runs them for `check --database default`, `migrate` and `test`.

outrider.W009  migrations are missing. Not reported by `migrate`, which applies them
outrider.W010  the publication or the slot is missing, or not of this outbox. Not reported in tests
outrider.E012  the database cannot be reached
outrider.W013  the role may not read what is to be examined

Only E012 is an Error: another one would stop `migrate`, which mends W009, or has to run before W010 can be mended.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from django.core import mail
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseError
from django.db import connections

from outrider.operations.setup.facts import PublicationShape, SlotState
from outrider.operations.setup.plan import slot_problem
from outrider.producer.django.checks import check_values
from outrider.producer.django.conf import OutboxSettings, configured, get_settings
from outrider.producer.django.store import first_line
from outrider.storage.sql_files import Queries, migrations, queries_of


def check_database(
    app_configs: Any = None,  # noqa: ARG001
    databases: Sequence[str] | None = None,
    **options: Any,  # noqa: ARG001
) -> list[CheckMessage]:
    settings = get_settings()
    if not isinstance(configured(), dict) or list(check_values(settings)) or settings.database not in (databases or ()):
        return []
    connection = connections[settings.database]
    try:
        connection.ensure_connection()
    except (DatabaseError, ImproperlyConfigured) as error:
        text = f"the database {settings.database!r} cannot be reached: {first_line(error)}"
        return [Error(text, id="outrider.E012")]
    try:
        with connection.cursor() as cursor:
            return list(_examine(cursor, queries_of(settings.schema), settings))
    except DatabaseError as error:
        hint = "use a role that may read the outbox (the observer of sql/roles.sql)"
        return [Warning(f"the outbox cannot be examined: {first_line(error)}", hint=hint, id="outrider.W013")]


def _examine(cursor: Any, queries: Queries, settings: OutboxSettings) -> Iterator[CheckMessage]:
    cursor.execute(queries["schema_tables"], {"schema": settings.schema})
    applied: set[int] = set()
    if ("outbox_migration",) in cursor.fetchall():
        cursor.execute(queries["applied_migrations"])
        applied = {version for (version,) in cursor.fetchall()}
    if missing := [each.version for each in migrations() if each.version not in applied]:
        if not _is_migrating():
            hint = (
                f"run `manage.py migrate --database {settings.database}`; where Django has recorded them as applied "
                "already (DATABASE or SCHEMA was changed), `manage.py outbox_setup`"
            )
            text = f"migrations {missing} of the outbox are not applied to the schema {settings.schema!r}"
            yield Warning(text, hint=hint, id="outrider.W009")
    elif not _is_testing():
        yield from _examine_replication(cursor, queries, settings)


def _examine_replication(cursor: Any, queries: Queries, settings: OutboxSettings) -> Iterator[CheckMessage]:
    for kind, name, problem in (
        ("publication", settings.publication, _publication_problem(cursor, queries, settings)),
        ("slot", settings.slot, _slot_problem(cursor, queries, settings)),
    ):
        if name is not None and problem is not None:
            hint = f"run `manage.py outbox_setup`, or correct OUTRIDER[{kind.upper()!r}] (None: only the scheduler)"
            yield Warning(f"{problem}: the relay cannot deliver", hint=hint, id="outrider.W010")


def _publication_problem(cursor: Any, queries: Queries, settings: OutboxSettings) -> str | None:
    cursor.execute(queries["publication_shape"], {"publication": settings.publication})
    row = cursor.fetchone()
    if row is None:
        return f"there is no publication {settings.publication!r}"
    cursor.execute(queries["publication_has_column_list"], {"publication": settings.publication})
    return PublicationShape(*row, *cursor.fetchone()).problem(settings.schema, str(settings.publication))


def _slot_problem(cursor: Any, queries: Queries, settings: OutboxSettings) -> str | None:
    cursor.execute(queries["slot_state"], {"slot": settings.slot})
    row = cursor.fetchone()
    if row is None:
        return f"there is no slot {settings.slot!r}"
    cursor.execute(queries["state_moment"])
    database = cursor.fetchone()[1]
    return slot_problem(SlotState(*row), database)


def _is_migrating() -> bool:
    """Called from Python, `migrate` runs no checks."""
    return sys.argv[1:2] == ["migrate"]


def _is_testing() -> bool:
    """Django's test environment replaces the mails by a list. Its databases have no slot, and need none."""
    return hasattr(mail, "outbox")
