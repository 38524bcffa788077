"""
Settings: `OUTRIDER = {...}` in Django's settings. Every key is optional.

DATABASE             the alias of the database that holds the outbox ('default')
SCHEMA               the PostgreSQL schema of its tables ('public')
EXCHANGE             the exchange of events that name none ('amq.topic'); '' is the broker's default exchange
OUTSIDE_TRANSACTION  'warn', 'raise' or 'allow' ('warn')
CONTEXT              a dict: the arguments of outrider.producer.context.Context, for events and tasks:
                     {'structlog': ['request_id']} ({}: its defaults for events, no context for tasks)
REDACTOR             dotted path of the function that redacts payloads for the admin (None: payloads are not shown)
CELERY_APP           dotted path of the Celery application; a check imports it and tests that it captures tasks (None)
HEALTH_PERMISSION    the permission that the views of outrider.producer.django.urls need; None: none
                     ('outrider.view_outboxmessage')
PUBLICATION, SLOT    what the relay reads; a check tests that they exist ('outbox'). None: no relay, only the scheduler
SERVICES             a dict: settings for `manage.py outbox_relay` and `outbox_retry_scheduler`, by their names in
                     capitals: {'BROKER_URL': ..., 'ARCHIVE': True}. DATABASE_URL is the alias' unless given
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from django.conf import settings

from outrider.storage.message import DEFAULT_EXCHANGE
from outrider.storage.quoting import quote_identifier


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    database: str = "default"
    schema: str = "public"
    exchange: str = DEFAULT_EXCHANGE
    outside_transaction: str = "warn"
    context: Mapping[str, Any] = field(default_factory=dict)
    redactor: str | None = None
    celery_app: str | None = None
    health_permission: str | None = "outrider.view_outboxmessage"
    publication: str | None = "outbox"
    slot: str | None = "outbox"
    services: Mapping[str, Any] = field(default_factory=dict)


KNOWN = {field.name.upper(): field.name for field in fields(OutboxSettings)}


def get_settings() -> OutboxSettings:
    """The current settings. Unknown keys are left out; the system checks report mistakes."""
    given = configured()
    known = {KNOWN[key]: value for key, value in given.items() if key in KNOWN} if isinstance(given, dict) else {}
    return OutboxSettings(**known)


def configured() -> Any:
    return getattr(settings, "OUTRIDER", {})


def table_name(table: str) -> str:
    """A model's db_table. Django does not quote a name that is quoted already. A wrong schema is left to the checks."""
    schema: Any = get_settings().schema
    if schema == "public" or not isinstance(schema, str) or not schema or "\0" in schema:
        return table
    return f'{quote_identifier(schema)}."{table}"'
