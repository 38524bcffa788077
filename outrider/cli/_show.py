"""
Show one stored message, whole, with as much of its payload as the settings allow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from outrider.cli._output import print_fields, print_json
from outrider.errors import OutboxError, SettingsError
from outrider.operations.redaction import Redact, load_redactor
from outrider.operations.stored_content import StoredContent
from outrider.settings.loading import load_settings
from outrider.settings.models import RepairSettings
from outrider.storage.store import Store, connect

Found = tuple[Mapping[str, Any], StoredContent]
"""What operators see of a message in a list, and what it says."""


def show(
    look_up: Callable[[Store], Found | None],
    missing: str,
    *,
    config: str | None,
    flags: Mapping[str, object],
    with_payload: bool,
    as_json: bool,
) -> None:
    """Print the message that `look_up` finds, or fail with `missing`."""
    settings = load_settings(RepairSettings, flags, config_file=config)
    redact = _redactor(settings.redactor)
    with connect(settings.database_dsn, application_name="outrider") as connection:
        found = look_up(Store(connection, settings.schema_name))
    if found is None:
        raise OutboxError(missing)
    fields, content = found
    whole = {**fields, **content.shown(str(fields["event_type"]), redact, with_payload=with_payload)}
    (print_json if as_json else print_fields)(whole)


def _redactor(path: str | None) -> Redact | None:
    # Before anything is read: a redactor that is set and cannot be had must not mean that there is none.
    try:
        return load_redactor(path) if path else None
    except ValueError as error:
        raise SettingsError(f"{error}: is it on PYTHONPATH?") from None
