"""Fields for json (not jsonb) columns and for timestamps that can be infinite, which Django's own do not read."""

from __future__ import annotations

import json
from typing import Any

from django.db import models


class JsonText(models.Field):  # type: ignore[type-arg]
    """A json column. With psycopg it is read as a value, with psycopg2 as text."""

    def db_type(self, connection: Any) -> str:  # noqa: ARG002
        return "json"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:  # noqa: ARG002
        return json.loads(value) if isinstance(value, str) else value

    def get_prep_value(self, value: Any) -> Any:
        return None if value is None else json.dumps(value)


class Instant(models.DateTimeField):  # type: ignore[type-arg]
    """Infinity (a parked row) is read as None, because Python has no such datetime."""

    def select_format(self, compiler: Any, sql: str, params: Any) -> Any:  # noqa: ARG002
        return f"nullif({sql}, 'infinity')", params
