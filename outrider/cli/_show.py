"""
Show one stored message with all its fields, and as much of its payload as the settings allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from outrider.cli._output import print_fields, print_json
from outrider.errors import SettingsError
from outrider.operations.redaction import Redact, load_redactor
from outrider.operations.stored_content import StoredContent
from outrider.settings.database import MessageCommandSettings
from outrider.settings.loading import load_settings
from outrider.storage.connection import connect
from outrider.storage.store import Store
from outrider.storage.task_id import task_id_of


@contextmanager
def open_store_and_redactor(config: str | None, flags: Mapping[str, object]) -> Iterator[tuple[Store, Redact | None]]:
    settings = load_settings(MessageCommandSettings, flags, config_file=config)
    try:
        redact = load_redactor(settings.redactor) if settings.redactor else None
    except ValueError as error:  # raised before anything is shown: no message may be shown without its redactor
        raise SettingsError(f"{error}: is it on PYTHONPATH?") from None
    with connect(settings.database_dsn, application_name="outrider") as connection:
        yield Store(connection, settings.schema_name), redact


def print_message(
    summary: Mapping[str, Any], content: StoredContent, redact: Redact | None, *, with_payload: bool, as_json: bool
) -> None:
    shown = content.visible_fields(str(summary["event_type"]), redact, with_payload=with_payload)
    task_id = task_id_of(str(summary["event_id"]), shown["headers"], shown["properties"])
    fields = {**summary, **({"task_id": task_id} if task_id else {}), **shown}
    (print_json if as_json else print_fields)(fields)
