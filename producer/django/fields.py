"""Fields for what Django's own do not read: json (not jsonb) columns, and instants that can be infinite."""

from __future__ import annotations

import json
from typing import Any

from django.db import models


class JsonText(models.Field):  # type: ignore[type-arg]
    """A json column. psycopg gives values, psycopg2 under Django text."""

    def db_type(self, connection: Any) -> str:  # noqa: ARG002
        return "json"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:  # noqa: ARG002
        return json.loads(value) if isinstance(value, str) else value

    def get_prep_value(self, value: Any) -> Any:
        return None if value is None else json.dumps(value)


class Instant(models.DateTimeField):  # type: ignore[type-arg]
    """Infinity, where a row waits behind the head of its key, is read as None: Python has no such datetime."""

    def select_format(self, compiler: Any, sql: str, params: Any) -> Any:  # noqa: ARG002
        return f"nullif({sql}, 'infinity')", params
