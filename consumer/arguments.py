"""
Arguments: read a handler's signature once, and build its arguments for every message.

A parameter is recognised by its name (see KNOWN_PARAMETERS). The parameter with any other name and no default takes the
body, and so does a parameter that is annotated `bytes`, whatever its name. The body's annotation selects the decoding:
`bytes` passes it unchanged; no annotation (or Any, dict, list, ...) means JSON; any other type that Pydantic can
validate (a model, a dataclass, a TypedDict, `list[Order]`) means JSON validated by Pydantic. A message of the content
type text/... is text, where the annotation allows it (str, Any or none, `str | None`, an Enum, ...).

A signature that cannot be filled raises TypeError when the consumer is defined, with a list of what is possible. So
does a name that is nearly a known one: `atempt: int = 1` would otherwise never be filled.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from outrider.consumer.delivery import Delivery
from outrider.consumer.errors import Undecodable

KNOWN_PARAMETERS: Final[Mapping[str, tuple[type, ...]]] = {
    "routing_key": (str,),
    "queue": (str,),
    "message": (Delivery,),
    "headers": (Mapping, dict),
    "event_id": (str, UUID),
    "message_id": (str, UUID),
    "event_type": (str,),
    "aggregate": (tuple,),
    "tracking_ids": (tuple, list, Sequence, Collection, Iterable),
    "attempt": (int,),
}
"""Parameter names, and the annotations that each accepts."""

HANDLES: Final = ("connection", "session")
"""Parameter names for the connection or session of the inbox's transaction."""

NEARLY: Final = 0.85
"""A name at least so similar to a known one is a misspelt one."""

_PLAIN_JSON: Final = (Any, object, dict, list, str, int, float, bool, inspect.Parameter.empty)
_POSSIBLE: Final = (
    "a handler takes its message's body (any other name; bytes, JSON or a type Pydantic validates, by its annotation) "
    f"and any of {', '.join(KNOWN_PARAMETERS)}; with inbox=True also {' or '.join(HANDLES)}"
)

Decode = Callable[[Delivery], Any]


class Arguments(NamedTuple):
    """How to build the arguments of one handler."""

    values: tuple[tuple[str, Decode], ...]
    handle: str | None
    """Name of the parameter that takes the inbox's connection or session."""

    def bind(self, delivery: Delivery) -> dict[str, Any]:
        """Return the arguments for a message. Raises Undecodable if its body does not match the annotation."""
        return {name: decode(delivery) for name, decode in self.values}


def plan_arguments(function: Callable[..., Any], *, inbox: bool = False) -> Arguments:
    """Read the signature of a handler. Raises TypeError if it cannot be filled."""
    name = getattr(function, "__qualname__", repr(function))
    hints = _hints(function, name)
    values: list[tuple[str, Decode]] = []
    bodies: list[str] = []
    handle: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{name}: {parameter} cannot be passed by name; {_POSSIBLE}")
        annotation = hints.get(parameter.name, parameter.empty)
        if _alternatives_without_none(annotation) == {bytes}:
            bodies.append(parameter.name)
            values.append((parameter.name, lambda delivery: delivery.body))
        elif parameter.name in KNOWN_PARAMETERS:
            values.append((parameter.name, _decode_known(name, parameter.name, annotation)))
        elif parameter.name in HANDLES:
            if not inbox or handle is not None:
                wrong = "needs inbox=True" if not inbox else f"and {handle} are the same: keep one"
                raise TypeError(f"{name}: {parameter.name} {wrong}; {_POSSIBLE}")
            handle = parameter.name
        elif close := difflib.get_close_matches(parameter.name, (*KNOWN_PARAMETERS, *HANDLES), n=1, cutoff=NEARLY):
            raise TypeError(f"{name}: did you mean {close[0]} by {parameter.name}? If not, rename it; {_POSSIBLE}")
        elif parameter.default is parameter.empty:
            bodies.append(parameter.name)
            values.append((parameter.name, _decode_body(name, parameter.name, annotation)))
    if len(bodies) > 1:
        raise TypeError(f"{name}: only one of {', '.join(bodies)} can take the body; {_POSSIBLE}")
    return Arguments(tuple(values), handle)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    if not inspect.isroutine(target):
        target = target.__call__
    try:
        return get_type_hints(target)
    except Exception as error:
        raise TypeError(f"{name}: the annotations cannot be read at run time: {error}") from None


def _decode_known(function: str, name: str, annotation: Any) -> Decode:
    kinds = _alternatives_without_none(annotation)
    if not kinds <= {*KNOWN_PARAMETERS[name], Any, object, inspect.Parameter.empty}:
        allowed = " or ".join(kind.__name__ for kind in KNOWN_PARAMETERS[name])
        raise TypeError(f"{function}: {name} is {allowed}, not {_describe(annotation)}; {_POSSIBLE}")
    if name == "message":
        return lambda delivery: delivery
    if name in ("event_id", "message_id") and UUID in kinds:
        return _event_uuid
    if name == "tracking_ids" and list in kinds:
        return lambda delivery: list(delivery.tracking_ids)
    return lambda delivery: getattr(delivery, name)


def _decode_body(function: str, name: str, annotation: Any) -> Decode:
    if (get_origin(annotation) or annotation) in _PLAIN_JSON and not get_args(annotation):
        expected = annotation if annotation in (dict, list, str, int, float, bool) else None
        if annotation in (str, Any, object, inspect.Parameter.empty):
            return lambda delivery: _text(delivery) if _is_text(delivery) else _load_json(delivery, expected)
        return lambda delivery: _load_json(delivery, expected)
    try:
        from pydantic import TypeAdapter
    except ImportError:
        raise TypeError(
            f"{function}: {name}: {_describe(annotation)} needs Pydantic, which is not installed; {_POSSIBLE}"
        ) from None
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    except Exception:
        raise TypeError(f"{function}: Pydantic cannot validate {name}: {_describe(annotation)}; {_POSSIBLE}") from None
    return lambda delivery: _validate(adapter, delivery)


def _is_text(delivery: Delivery) -> bool:
    return delivery.content_type.startswith("text/")


def _text(delivery: Delivery) -> str:
    try:
        return delivery.body.decode(delivery.content_encoding or "utf-8")
    except (LookupError, UnicodeDecodeError) as error:
        raise Undecodable(f"the body is not text: {type(error).__name__}") from None


def _load_json(delivery: Delivery, expected: type | None) -> Any:
    try:
        value = json.loads(delivery.body)
    except ValueError as error:
        # A JSONDecodeError has a position; the text of a UnicodeDecodeError would quote a byte of the body.
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise Undecodable(f"the body is not JSON{where}") from None
    if expected is not None and not isinstance(value, (int, float) if expected is float else expected):
        raise Undecodable(f"the body is JSON of type {type(value).__name__}, not {expected.__name__}")
    return value


def _validate(adapter: Any, delivery: Delivery) -> Any:
    from pydantic import ValidationError

    if _is_text(delivery):
        with suppress(ValidationError):
            return adapter.validate_python(_text(delivery))
    try:
        return adapter.validate_json(delivery.body)
    except ValidationError as error:
        details = error.errors(include_input=False, include_url=False, include_context=False)
        mistakes = (f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in details)
        raise Undecodable("the body does not validate: " + "; ".join(mistakes)) from None


def _event_uuid(delivery: Delivery) -> UUID:
    try:
        return UUID(delivery.event_id)
    except ValueError:
        raise Undecodable("the message's id is not a UUID") from None


def _alternatives_without_none(annotation: Any) -> set[Any]:
    """`tuple[str, str] | None` is {tuple}."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    return {get_origin(each) or each for each in (get_args(annotation) if is_union else (annotation,))} - {type(None)}


def _describe(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
