"""Quote names and strings for SQL and for the commands of a replication connection."""

from __future__ import annotations


def quote_identifier(name: str) -> str:
    """As PostgreSQL's quote_ident, always with quotes. An empty name, or one with a NUL, is a ValueError."""
    if not name or "\0" in name:
        raise ValueError(f"not a name PostgreSQL can have: {name!r}")
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """A string for SQL. One with a backslash needs E'' to mean the same under every standard_conforming_strings."""
    quoted = quote_replication_literal(text)
    return " E" + quoted.replace("\\", "\\\\") if "\\" in text else quoted


def quote_replication_literal(text: str) -> str:
    """A string for a replication command, where a backslash is an ordinary character and E'' does not exist."""
    if "\0" in text:
        raise ValueError("a PostgreSQL string cannot hold a NUL character")
    return "'" + text.replace("'", "''") + "'"
