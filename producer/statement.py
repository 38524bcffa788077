"""
Statement: one named query in the placeholder notations of PostgreSQL drivers.

sql/queries/ uses pyformat (`%(name)s`: psycopg, psycopg2, Django). asyncpg needs `$1` and a list of arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, LiteralString

_PARAMETER = re.compile(r"%\((\w+)\)s|%%")

Parameters = Mapping[str, Any]


class Statement:
    def __init__(self, pyformat: LiteralString) -> None:
        self.pyformat = pyformat

    @cached_property
    def binary(self) -> LiteralString:
        """For psycopg 3, with binary parameters: twice as fast for arrays."""
        return _PARAMETER.sub(lambda m: f"%({m[1]})b" if m[1] else "%%", self.pyformat)

    @cached_property
    def numeric(self) -> str:
        """The text with $1, $2, ...; a name that is used twice keeps its number."""
        return _PARAMETER.sub(lambda m: f"${self.names.index(m[1]) + 1}" if m[1] else "%", self.pyformat)

    @cached_property
    def plain(self) -> LiteralString:
        """For a statement without parameters, in which drivers do not unescape percent signs."""
        return self.pyformat.replace("%%", "%")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters in the order of their numbers."""
        return tuple(dict.fromkeys(match[1] for match in _PARAMETER.finditer(self.pyformat) if match[1]))

    def arguments(self, parameters: Parameters) -> list[Any]:
        return [parameters[name] for name in self.names]
