"""
Text from outside (rows, broker, names in the database) made safe to print: the only function for it.

A terminal obeys control characters, and text direction marks make it show something else than what is there. Both are
written as escapes. Commands, logs for people and metric labels use it; JSON documents use `printable_json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime


def printable(value: object) -> str:
    """The value as one line of text without control characters."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    text = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else str(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def printable_lines(text: str) -> str:
    """Text of several lines, such as a script or a traceback."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(value: object, default: Callable[[object], object] = str) -> str:
    """A JSON document on one line, in ASCII. DEL is the one control character that json.dumps leaves as it is."""
    return json.dumps(value, default=default).replace("\x7f", "\\u007f")
