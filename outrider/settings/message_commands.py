"""
MessageCommandSettings: the settings of commands that show a message (`outrider dead show`, `outrider pending show`).
"""

from __future__ import annotations

from pydantic import Field

from outrider.settings.database import DatabaseSettings


class MessageCommandSettings(DatabaseSettings):
    redactor: str | None = Field(
        default=None,
        min_length=1,
        description="dotted path of a function that returns what operators may see of a payload",
    )
