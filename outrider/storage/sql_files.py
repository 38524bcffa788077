"""
Read the project's SQL: the named queries of sql/queries.sql, and the scripts that an operator can also run by hand.

The files use psql's own notation for names, so that `psql -v schema=... -f` runs them too: :"name" becomes a quoted
identifier, :'name' a quoted literal. In queries.sql, :fragment stands for another block of that file. Nothing here
connects to a database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import LiteralString, NamedTuple

_BLOCK = re.compile(r"^-- (\w+) --$", re.MULTILINE)
_VARIABLE = re.compile(r""":"(\w+)"|:'(\w+)'""")
_FRAGMENT = re.compile(r"(?<![:\w]):([a-z]\w*)")


class Migration(NamedTuple):
    version: int
    name: str
    path: str


def sql_directory() -> Path:
    """The folder of the SQL files: `outrider/sql`, in a source tree a link to `sql/` at its top."""
    return Path(__file__).parents[1] / "sql"


def quote_identifier(name: str) -> str:
    """As PostgreSQL's quote_ident, always with quotes. A NUL cannot be part of any name."""
    if not name or "\0" in name:
        raise ValueError(f"not a name PostgreSQL can have: {name!r}")
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """A standard string literal; one with a backslash in it needs E'' to mean the same under every setting."""
    if "\0" in text:
        raise ValueError("a PostgreSQL string cannot hold a NUL character")
    quoted = "'" + text.replace("'", "''") + "'"
    return " E" + quoted.replace("\\", "\\\\") if "\\" in text else quoted


def script(path: str, **variables: str) -> LiteralString:
    """A file of sql/ with its variables in place; KeyError for one that is not given."""
    return _substitute((sql_directory() / path).read_text(encoding="utf-8"), variables)


def migrations() -> list[Migration]:
    """Every migration, in order."""
    files = sorted((sql_directory() / "migrations").glob("[0-9][0-9][0-9][0-9]_*.sql"))
    return [Migration(int(file.name[:4]), file.stem[5:], f"migrations/{file.name}") for file in files]


class Queries(Mapping[str, LiteralString]):
    """The named queries of queries.sql for one PostgreSQL schema."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        blocks = _read_blocks()
        # Queries are bound with %(name)s, so a percent sign in the schema's name must be doubled.
        variables = {"schema": schema.replace("%", "%%")}
        self._queries = {name: _substitute(_expand(text, blocks), variables) for name, text in blocks.items()}

    def __getitem__(self, name: str) -> LiteralString:
        return self._queries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._queries)

    def __len__(self) -> int:
        return len(self._queries)


@cache
def _read_blocks() -> dict[str, str]:
    _, *parts = _BLOCK.split((sql_directory() / "queries.sql").read_text(encoding="utf-8"))
    blocks: dict[str, str] = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        if name in blocks:
            raise ValueError(f"queries.sql has two blocks called {name}")
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("--")]
        blocks[name] = "\n".join(lines).rstrip(";")
    return blocks


def _expand(text: str, blocks: Mapping[str, str]) -> str:
    return _FRAGMENT.sub(lambda match: _expand(blocks[match[1]], blocks), text)


def _substitute(text: str, variables: Mapping[str, str]) -> LiteralString:
    """What comes out is not literal in the type checker's sense; every name in it has been quoted here."""

    def put(match: re.Match[str]) -> str:
        if match[1]:
            return quote_identifier(variables[match[1]])
        return quote_literal(variables[match[2]])

    return _VARIABLE.sub(put, text)
