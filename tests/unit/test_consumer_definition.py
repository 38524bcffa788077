"""A consumer is checked at its definition and can be called like its function."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel

from outrider import Outbox
from outrider.consumer import GENERATED, Consumer, Delivery, Reject, consume
from outrider.consumer.arguments import KNOWN_PARAMETERS
from outrider.consumer.errors import Undecodable
from outrider.settings.durations import parse_duration


class Order(BaseModel):
    number: int


@dataclass
class Point:
    x: int


class Opaque:
    def __init__(self, something: Any) -> None: ...


def make_delivery(**fields: Any) -> Delivery:
    defaults: dict[str, Any] = {
        "body": b"{}",
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": {},
        "exchange": "shop",
        "routing_key": "order.placed",
        "queue": "billing",
        "event_id": str(uuid4()),
        "event_type": "order.placed",
        "aggregate": None,
        "tracking_ids": (),
        "attempt": 1,
        "redelivered": False,
        "timestamp": None,
        "expires_at": None,
    }
    return Delivery(**{**defaults, **fields})


def bind(function: Callable[..., Any], **fields: Any) -> dict[str, Any]:
    return Consumer(function, queue="q").arguments.bind(make_delivery(**fields))


def test_a_consumer_is_called_like_its_function() -> None:
    @consume("order.*", queue="billing", retry_delays=())
    def bill(order: Order, *, tax: int = 0) -> int:
        """Bill it."""
        return order.number + tax

    @consume(queue="later")
    async def later(body: Any) -> Any:
        return body

    assert bill(Order(number=1), tax=2) == 3
    assert asyncio.run(later(5)) == 5
    assert (bill.__name__, bill.__doc__) == ("bill", "Bill it.")
    assert (bill.is_async, later.is_async) == (False, True)
    assert (bill.routing_keys, bill.queue, bill.name, bill.retry_delays) == (("order.*",), "billing", "billing", ())
    assert later.routing_keys == ()


def test_a_partial_and_an_object_with_call_are_handlers_too() -> None:
    async def handle(database: Any, order: Order) -> None: ...

    class Handler:
        async def __call__(self, order: Order) -> None: ...

    bound: Callable[..., Any] = functools.partial(handle, "db")
    assert Consumer(bound, queue="q").is_async
    assert Consumer(Handler(), queue="q").is_async
    assert bind(bound, body=b'{"number": 3}') == {"order": Order(number=3)}


def test_the_body_is_decoded_by_its_annotation() -> None:
    def raw(body: bytes) -> None: ...
    def untyped(whatever) -> None: ...  # type: ignore[no-untyped-def]
    def table(body: dict) -> None: ...  # type: ignore[type-arg]
    def typed(body: dict[str, int]) -> None: ...
    def model(order: Order) -> None: ...
    def several(orders: list[Order]) -> None: ...
    def plain(point: Point) -> None: ...
    def optional(order: Order | None) -> None: ...

    assert bind(raw, body=b"\xff") == {"body": b"\xff"}
    assert bind(untyped, body=b"[1]") == {"whatever": [1]}
    assert bind(table, body=b'{"a": 1}') == {"body": {"a": 1}}
    assert bind(typed, body=b'{"a": 1}') == {"body": {"a": 1}}
    assert bind(model, body=b'{"number": 1}') == {"order": Order(number=1)}
    assert bind(several, body=b'[{"number": 1}]') == {"orders": [Order(number=1)]}
    assert bind(plain, body=b'{"x": 1}') == {"point": Point(1)}
    assert bind(optional, body=b"null") == {"order": None}


def test_text_is_text_and_json_text_is_its_value() -> None:
    def text(body: str) -> None: ...
    def untyped(body) -> None: ...  # type: ignore[no-untyped-def]
    def optional(body: str | None) -> None: ...
    def model(body: Order) -> None: ...

    as_text = {"content_type": "text/plain", "content_encoding": "utf-8"}
    for function in (text, untyped, optional):
        assert bind(function, body="42 äpfel".encode(), **as_text) == {"body": "42 äpfel"}
        assert bind(function, body=b'"a"') == {"body": "a"}
    assert bind(text, body=b"\xe4", content_type="text/plain", content_encoding="latin-1") == {"body": "ä"}
    assert bind(model, body=b'{"number": 1}', **as_text) == {"body": Order(number=1)}
    for body, encoding in ((b"\xff", "utf-8"), (b"x", "gzip"), (b"x", "no such")):
        with pytest.raises(Undecodable, match="not text"):
            bind(text, body=body, content_type="text/plain", content_encoding=encoding)


def test_a_parameter_that_is_annotated_bytes_takes_the_body_whatever_it_is() -> None:
    def named_like_another(message: bytes, event_id: str) -> None: ...
    def with_a_default(raw: bytes = b"") -> None: ...
    def optional(raw: bytes | None) -> None: ...

    for content_type in ("application/json", "text/plain", "", "application/x-unknown"):
        body = {"body": b"\xff{", "content_type": content_type, "content_encoding": "no such"}
        assert bind(named_like_another, event_id="e", **body) == {"message": b"\xff{", "event_id": "e"}
        assert bind(with_a_default, **body) == bind(optional, **body) == {"raw": b"\xff{"}


@pytest.mark.parametrize("annotation", [list[str], Sequence[str], tuple[str, ...], Iterable[str], list, Any])
def test_tracking_ids_can_be_any_sequence(annotation: Any) -> None:
    def handle(tracking_ids: Any) -> None: ...

    handle.__annotations__["tracking_ids"] = annotation
    given = bind(handle, tracking_ids=("a", "b"))["tracking_ids"]
    assert list(given) == ["a", "b"]
    assert isinstance(given, list if annotation in (list[str], list) else tuple)


def misspelt_message_id(mesage_id: str) -> None: ...
def misspelt_attempt(body: Any, atempt: int = 1) -> None: ...
def misspelt_queue(body: Any, queues: str = "") -> None: ...
def misspelt_connection(body: Any, conection: Any = None) -> None: ...


@pytest.mark.parametrize("function", [misspelt_message_id, misspelt_attempt, misspelt_queue, misspelt_connection])
def test_a_misspelt_parameter_is_an_error_that_lists_the_names(function: Callable[..., Any]) -> None:
    meant = function.__name__.removeprefix("misspelt_")
    with pytest.raises(TypeError, match=rf"did you mean {meant} by .*queue.*message_id.*attempt.*connection"):
        Consumer(function, queue="q", inbox=True)


def module_level(body: Any) -> None: ...


def test_a_generated_queue_is_named_after_the_function() -> None:
    assert Consumer(module_level, queue=GENERATED).queue == f"{__name__}.module_level"
    for unstable in (lambda body: None, functools.partial(module_level)):
        with pytest.raises(TypeError, match="needs a function at the top of a module"):
            Consumer(unstable, queue=GENERATED)


def test_a_worker_fills_in_what_a_consumer_leaves_open() -> None:
    bare = Consumer(module_level, queue="q")
    filled = bare.with_defaults(exchange="shop", retry_delays=(parse_duration("0s"),), prefetch=3)
    assert (filled.exchange, filled.prefetch) == ("shop", 3)
    assert [delay.text for delay in filled.retry_delays or ()] == ["0s"]
    assert (bare.exchange, bare.retry_delays, bare.prefetch) == (None, None, None)
    own = Consumer(module_level, queue="q", exchange="own", retry_delays=(), prefetch=1)
    kept = own.with_defaults(exchange="shop", retry_delays=(parse_duration("1s"),), prefetch=3)
    assert (kept.exchange, kept.retry_delays, kept.prefetch) == ("own", (), 1)
    assert bare.with_defaults().exchange == Outbox().exchange == "amq.topic"


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"", b"[1", b'{"number": "hunter2"}', b'{"number": [42.5]}'])
def test_a_body_that_does_not_decode_is_described_and_not_repeated(body: bytes) -> None:
    def handle(order: Order) -> None: ...

    with pytest.raises(Undecodable) as error:
        bind(handle, body=body)
    assert "hunter2" not in str(error.value)
    assert "42.5" not in str(error.value)


def test_json_of_another_kind_than_annotated_does_not_decode() -> None:
    def handle(body: dict) -> None: ...  # type: ignore[type-arg]

    with pytest.raises(Undecodable, match="JSON of type list, not dict"):
        bind(handle, body=b"[]")


def test_all_other_parameters_are_filled_by_name() -> None:
    def handle(
        message: Delivery,
        headers: Mapping[str, Any],
        event_id: UUID,
        event_type: str,
        aggregate: tuple[str, str] | None,
        tracking_ids: tuple[str, ...],
        attempt: int,
        routing_key: str,
        queue: str,
        message_id: str,
    ) -> None: ...

    delivery = make_delivery(aggregate=("order", "1"), tracking_ids=("a",), attempt=3, headers={"h": 1})
    given = Consumer(handle, queue="q").arguments.bind(delivery)
    assert set(given) == set(KNOWN_PARAMETERS)
    assert given["message"] is delivery
    assert given["event_id"] == UUID(delivery.event_id)
    assert (given["message_id"], given["queue"]) == (delivery.event_id, "billing")
    assert (given["headers"], given["aggregate"], given["attempt"]) == ({"h": 1}, ("order", "1"), 3)


def two_bodies(a: Any, b: Any) -> None: ...
def many(*args: Any) -> None: ...
def keywords(body: Any, **rest: Any) -> None: ...
def positional(body: Any, /) -> None: ...
def wrong_type(attempt: str) -> None: ...
def no_inbox(body: Any, connection: Any) -> None: ...
def opaque(body: Opaque) -> None: ...


@pytest.mark.parametrize("function", [two_bodies, many, keywords, positional, wrong_type, no_inbox, opaque])
def test_a_signature_that_cannot_be_filled_is_refused_with_a_list_of_parameters(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=rf"{function.__name__}: .*a handler takes .*routing_key.*tracking_ids"):
        Consumer(function, queue="q")


def test_an_annotation_that_does_not_exist_at_run_time_is_refused() -> None:
    def handle(body: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(TypeError, match="annotations cannot be read"):
        Consumer(handle, queue="q")


def test_with_an_inbox_the_handler_can_take_its_connection_or_session() -> None:
    def handle(body: Any, session: Any) -> None: ...
    def both(connection: Any, session: Any) -> None: ...

    assert Consumer(handle, queue="q", inbox=True).arguments.handle == "session"
    with pytest.raises(TypeError, match="keep one"):
        Consumer(both, queue="q", inbox=True)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"queue": ""}, "queue must be a non-empty string"),
        ({"queue": "q" * 252}, "more than 251 bytes"),
        ({"queue": "q", "retry_delays": "1s"}, "sequence of durations"),
        ({"queue": "q", "retry_delays": ("soon",)}, "is not a duration"),
        ({"queue": "q", "retry_delays": (1,)}, "is text such as 500ms"),
        ({"queue": "q", "retry_delays": ("71583m",)}, "at most 4294967295 ms"),
        ({"queue": "q", "prefetch": 0}, "1 to 65535"),
        ({"queue": "q", "exchange": ""}, "exchange must be a non-empty string"),
    ],
)
def test_wrong_options_are_refused_when_the_consumer_is_defined(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        Consumer(lambda body: None, **options)


def test_consume_without_parentheses_is_explained() -> None:
    with pytest.raises(TypeError, match="queue"):
        consume(lambda body: None, queue="q")  # type: ignore[arg-type]


def test_reject_is_an_exception_with_a_reason() -> None:
    assert str(Reject("no such customer")) == "no such customer"
