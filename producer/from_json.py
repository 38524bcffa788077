"""
Build values of a type from what JSON holds: dataclasses, and the field types that encoding.py writes.

Dataclasses (nested ones too), Enum, UUID, Decimal, datetime, date, time, timedelta (seconds), list, tuple, dict, and
unions with None. A Pydantic model validates itself. Any other annotation takes the value as it is. A value that does
not fit raises ValueError or TypeError; extra names in an object are ignored, so that older programs read newer events.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

_CONVERTED: dict[Any, Callable[[Any], Any]] = {
    UUID: UUID,
    Decimal: Decimal,
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    timedelta: lambda seconds: timedelta(seconds=seconds),
}


def from_json(kind: Any, value: Any) -> Any:
    """The value as `kind`, a type or an annotation."""
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise TypeError(f"{getattr(kind, '__qualname__', kind)} is built from an object")
        names: Any = _fields(kind)  # type: ignore[arg-type]  # a class is hashable
        return kind(**{name: from_json(hint, value[name]) for name, hint in names if name in value})  # type: ignore[operator]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _from_union(arguments, value)
    if origin in (list, set, frozenset) and arguments:
        return origin(from_json(arguments[0], each) for each in value)
    if origin is tuple and arguments:
        kinds = (arguments[0],) * len(value) if arguments[1:] == (...,) else arguments
        return tuple(from_json(each, item) for each, item in zip(kinds, value, strict=True))
    if origin is dict and arguments:
        return {from_json(arguments[0], name): from_json(arguments[1], each) for name, each in value.items()}
    if kind in (tuple, set, frozenset):
        return kind(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    return _CONVERTED[kind](value) if kind in _CONVERTED else value


def _from_union(kinds: tuple[Any, ...], value: Any) -> Any:
    """The first of these types that the value fits."""
    if value is None and type(None) in kinds:
        return None
    plain = [kind for kind in kinds if isinstance(kind, type) and type(value) is kind]
    for kind in [*plain, *(each for each in kinds if each is not type(None))]:
        try:
            return from_json(kind, value)
        except (TypeError, ValueError, ArithmeticError):
            continue
    raise ValueError("it fits none of the types of a union")


@cache
def _fields(kind: type[Any]) -> list[tuple[str, Any]]:
    hints = get_type_hints(kind)
    return [(field.name, hints[field.name]) for field in dataclasses.fields(kind) if field.init]
