"""
Load the settings of a process.

Three sources over the defaults, each overriding the one before: a TOML file (--config or OUTRIDER_CONFIG), environment
variables (OUTRIDER_*), command-line flags. A variable that is empty counts as not set. One error reports all mistakes
with the names of the settings. It never contains values, because some are secrets.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsError as PydanticSettingsError

from outrider.errors import SettingsError
from outrider.settings.database import ENVIRONMENT_PREFIX, DatabaseSettings, MessageCommandSettings, setting_name
from outrider.settings.relay import RelaySettings
from outrider.settings.scheduler import SchedulerSettings
from outrider.settings.worker import WorkerSettings

KNOWN_SETTINGS = frozenset(
    setting_name(field)
    for model in (RelaySettings, SchedulerSettings, WorkerSettings, MessageCommandSettings)
    for field in model.model_fields
)
"""The settings of all processes: one file may hold the settings of several."""

LARGEST_FILE = 1024**2

# Variables with our prefix that are not settings.
_FOREIGN_VARIABLES = ("OUTRIDER_CONFIG", "OUTRIDER_TEST_", "OUTRIDER_CRASH_")
_FIELD_ALIASES = {"schema": "outrider_schema"}

S = TypeVar("S", bound=DatabaseSettings)


def load_settings(model: type[S], flags: Mapping[str, object], *, config_file: str | None = None) -> S:
    """The settings of one process. SettingsError with every mistake."""
    file = config_file or os.environ.get("OUTRIDER_CONFIG")
    values = _read_toml(Path(file)) if file else {}
    mistakes = [
        f"{variable}: unknown setting{_suggestion(name)}"
        for variable, name in _our_variables()
        if name not in KNOWN_SETTINGS
    ]
    unknown = [name for name in values if name not in KNOWN_SETTINGS]
    mistakes += [f"{name} in {file}: unknown setting{_suggestion(name)}" for name in unknown]
    # pydantic-settings reads the variables, and prefers what it is given.
    variables = {variable.lower() for variable, value in os.environ.items() if value}
    values = {name: value for name, value in values.items() if f"{ENVIRONMENT_PREFIX}{name}".lower() not in variables}
    values |= {name: value for name, value in flags.items() if value is not None}
    try:
        settings = model(**{_FIELD_ALIASES.get(name, name): value for name, value in values.items()})
    except ValidationError as error:
        mistakes += [_describe(detail) for detail in error.errors(include_input=False, include_url=False)]
    except PydanticSettingsError as error:  # a variable that must hold JSON and does not
        mistakes.append(str(error))
    except RecursionError:
        mistakes.append("a variable that must hold JSON is nested too deeply")
    if mistakes:
        raise SettingsError("; ".join(mistakes))
    return settings


def wrong_values(given: Mapping[str, object]) -> list[str]:
    """A line for each of these values that a service refuses, whatever the environment says."""
    required = {"database_url": "postgresql://", "broker_url": "memory://"}
    values: dict[str, Any] = {_FIELD_ALIASES.get(name, name): value for name, value in {**required, **given}.items()}
    mistakes = []
    for model in (RelaySettings, SchedulerSettings):
        try:
            model(**values)
        except ValidationError as error:
            details = error.errors(include_input=False, include_url=False)
            mistakes += [_describe(detail) for detail in details if setting_name(str(detail["loc"][0])) in given]
        except (PydanticSettingsError, RecursionError):
            continue  # a variable of the environment: `load_settings` reports it
    return list(dict.fromkeys(mistakes))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST_FILE + 1)  # bounded: the path may be a device without end
        if len(text) > LARGEST_FILE:
            raise SettingsError(f"the settings file {path} is larger than {LARGEST_FILE // 1024**2} MiB")
        return tomllib.loads(text)
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not a TOML file: {error}") from None
    except (ValueError, RecursionError) as error:  # a NUL in the path; nested too deeply
        raise SettingsError(f"cannot read the settings file {str(path)!r}: {error}") from None


def _our_variables() -> list[tuple[str, str]]:
    return sorted(
        (variable, variable.removeprefix(ENVIRONMENT_PREFIX).lower())
        for variable in os.environ
        if variable.startswith(ENVIRONMENT_PREFIX) and not variable.startswith(_FOREIGN_VARIABLES)
    )


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, KNOWN_SETTINGS, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _describe(detail: ErrorDetails) -> str:
    field, *rest = detail["loc"]
    name = setting_name(str(field))
    where = "".join(f"[{part}]" for part in rest)
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "missing":
        message = f"must be set ({ENVIRONMENT_PREFIX}{name.upper()}, --{name.replace('_', '-')} or the settings file)"
    return f"{name}{where}: {message[:1].lower()}{message[1:]}"
