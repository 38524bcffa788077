"""
DatabaseSettings: what every command needs to find the outbox (MessageCommandSettings: and to show a message); and the
types that all settings share.

A settings object is frozen and validated. `--help` is made from the descriptions. Durations are in seconds; `90s`, `1h`
and other durations with a unit are accepted wherever a number of seconds is.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from outrider.settings.durations import LONGEST_SECONDS, in_seconds
from outrider.settings.lists import as_list

ENVIRONMENT_PREFIX = "OUTRIDER_"


def _must_fit_63_bytes(name: str) -> str:
    if len(name.encode()) > 63:
        raise ValueError("must be at most 63 bytes: PostgreSQL would truncate it")
    return name


Seconds = Annotated[float, Field(ge=0, le=LONGEST_SECONDS, allow_inf_nan=False), BeforeValidator(in_seconds)]
PositiveSeconds = Annotated[float, Field(gt=0, le=LONGEST_SECONDS, allow_inf_nan=False), BeforeValidator(in_seconds)]
# NoDecode: pydantic-settings would accept only JSON from the environment.
Texts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(as_list)]
Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[^\x00]+$"), AfterValidator(_must_fit_63_bytes)]
SlotName = Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9_]+$")]


class DatabaseSettings(BaseSettings):
    """Where the outbox is, and how to log."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    database_url: SecretStr = Field(description="libpq connection string or URL of the database that holds the outbox")
    replication_url: SecretStr | None = Field(
        default=None,
        description="connection string for replication, if database_url goes through a pooler; default: database_url",
    )
    # Called `schema` everywhere outside: a pydantic model cannot have a field of that name. The alias is also the name
    # of the environment variable.
    schema_name: Name = Field(
        default="public", validation_alias="outrider_schema", description="PostgreSQL schema of the outbox tables"
    )
    publication: Name = Field(default="outbox", description="name of the publication of the outbox table")
    slot: SlotName = Field(default="outbox", description="name of the logical replication slot")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="lowest level that is logged"
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="format of the log; auto: console on a terminal, otherwise json"
    )

    @field_validator("database_url", "replication_url")
    @classmethod
    def _must_be_a_conninfo(cls, value: SecretStr | None) -> SecretStr | None:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict

        if value is not None:
            try:
                conninfo_to_dict(value.get_secret_value())
            except ProgrammingError:
                # The parser's own message can quote a part of the string, and so of the password.
                sqlalchemy = re.match(r"(postgres(?:ql)?)\+\w+://", value.get_secret_value())
                remedy = f": write {sqlalchemy[1]}:// instead of {sqlalchemy[0]}" if sqlalchemy else ""
                raise ValueError(f"not a libpq connection string or postgresql:// URL{remedy}") from None
        return value

    @property
    def replication_dsn(self) -> str:
        return (self.replication_url or self.database_url).get_secret_value()

    @property
    def database_dsn(self) -> str:
        return self.database_url.get_secret_value()


class MessageCommandSettings(DatabaseSettings):
    """For commands that show a message: `outrider dead show`, `outrider pending show`."""

    redactor: str | None = Field(
        default=None,
        min_length=1,
        description="dotted path of a function that returns what operators may see of a payload",
    )


def setting_name(field: str) -> str:
    """The name of a field in the environment, in the TOML file and on the command line."""
    return "schema" if field in ("schema_name", "outrider_schema") else field
