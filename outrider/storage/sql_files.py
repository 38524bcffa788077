"""
Read the project's SQL: the named queries of sql/queries/, and the scripts that an operator can also run with psql.

The files use psql's notation for variables, so that `psql -v schema=... -f` runs the scripts: :"name" becomes a quoted
identifier, :'name' a quoted literal. In sql/queries/, :fragment includes another block of that folder. Nothing here
connects to a database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import LiteralString, NamedTuple

from outrider.storage.quoting import quote_identifier, quote_literal

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


def script(path: str, **variables: str) -> LiteralString:
    """The text of a file of sql/ with its variables replaced. Raises KeyError for a variable that is not given."""
    return _substitute((sql_directory() / path).read_text(encoding="utf-8"), variables)


def migrations() -> list[Migration]:
    """Every migration, in order."""
    files = sorted((sql_directory() / "migrations").glob("[0-9][0-9][0-9][0-9]_*.sql"))
    return [Migration(int(file.name[:4]), file.stem[5:], f"migrations/{file.name}") for file in files]


class Queries(dict[str, LiteralString]):
    """The named queries of sql/queries/ for one PostgreSQL schema."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        blocks = _read_blocks()
        # Queries are bound with %(name)s, so a percent sign in the schema's name must be doubled.
        variables = {"schema": schema.replace("%", "%%")}
        super().__init__({name: _substitute(_expand(text, blocks), variables) for name, text in blocks.items()})


@lru_cache(maxsize=64)
def queries_of(schema: str) -> Queries:
    """The queries of a schema, built once per process. Not to be changed."""
    return Queries(schema)


@cache
def _read_blocks() -> dict[str, str]:
    """The text of every block by its name, without comments."""
    blocks: dict[str, str] = {}
    for file in sorted((sql_directory() / "queries").glob("*.sql")):
        _, *parts = _BLOCK.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            if name in blocks:
                raise ValueError(f"sql/queries has two blocks called {name}, one of them in {file.name}")
            lines = [line for line in text.splitlines() if line.strip() and not line.startswith("--")]
            blocks[name] = "\n".join(lines).rstrip(";")
    return blocks


def _expand(text: str, blocks: Mapping[str, str]) -> str:
    return _FRAGMENT.sub(lambda match: _expand(blocks[match[1]], blocks), text)


def _substitute(text: str, variables: Mapping[str, str]) -> LiteralString:
    """The result is no literal for the type checker, but every name that is put into it is quoted here."""

    def quoted(match: re.Match[str]) -> str:
        if match[1]:
            return quote_identifier(variables[match[1]])
        return quote_literal(variables[match[2]])

    return _VARIABLE.sub(quoted, text)
