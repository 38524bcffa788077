"""
`outrider publish`: write one message into the outbox, in one transaction; with --wait, report how it ended.

A value that the database or the broker would refuse is refused here, before anything is written.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NoReturn
from uuid import uuid4

import click

from outrider.cli._options import Number, database_flags, duration_or_time, json_flag, open_store, text
from outrider.cli._output import print_json, print_line
from outrider.errors import OutboxError
from outrider.producer.event import check_expiry
from outrider.producer.row import Row, is_delayed, make_row
from outrider.storage.store import Store

LARGEST_PAYLOAD = 128 * 1024 * 1024
"""Bytes; more than RabbitMQ accepts in its default configuration."""

FIRST_PAUSE_SECONDS = 0.01
LONGEST_PAUSE_SECONDS = 0.25

EXIT_STATUS = """\
Exit status: 0 written (with --wait: delivered); 1 an error of the database, or with --wait: dead or still pending;
2 wrong usage or settings, and nothing was written."""


def _headers(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for header in given:
        name, equals, value = header.partition("=")
        if not equals or not 0 < len(name.encode()) <= 255:
            raise click.BadParameter("must be NAME=VALUE, with a name of 1 to 255 bytes", ctx, param)
        headers[name] = value
    return headers


@click.command(name="publish", epilog=EXIT_STATUS)
@click.argument("event_type", metavar="EVENT_TYPE", type=text(1, 255))
@click.option(
    "--payload",
    default="{}",
    show_default=True,
    metavar="JSON|@FILE|-",
    help="the body; - reads it from standard input",
)
@click.option("--content-type", type=text(1, 255), metavar="TEXT", default="application/json", show_default=True)
@click.option("--exchange", type=text(0, 255), metavar="TEXT", default="", help="default: the default exchange")
@click.option("--routing-key", type=text(0, 255), metavar="TEXT", help="default: EVENT_TYPE")
@click.option(
    "--header",
    "headers",
    type=text(),
    multiple=True,
    callback=_headers,
    metavar="NAME=VALUE",
    help="header of the message; can be repeated",
)
@click.option("--ordering-key", type=text(1, 1000), metavar="TEXT", help="messages of one key are delivered in order")
@click.option(
    "--deliver-after",
    type=duration_or_time,
    metavar="WHEN",
    help="deliver not before: 15m from now, or 2026-01-31T12:00Z",
)
@click.option(
    "--expires", type=duration_or_time, metavar="WHEN", help="deliver not after: 1h from now, or 2026-01-31T12:00Z"
)
@click.option(
    "--dedup-key", type=text(1, 1000), metavar="TEXT", help="write nothing while a message with this key is pending"
)
@click.option(
    "--wait",
    type=Number(0, 86_400),
    metavar="SECONDS",
    help="wait until it has left the outbox, and report whether it was delivered",
)
@json_flag
@database_flags
def command(
    config: str | None,
    event_type: str,
    payload: str,
    content_type: str,
    exchange: str,
    routing_key: str | None,
    headers: dict[str, str],
    ordering_key: str | None,
    deliver_after: float | datetime | None,
    expires: float | datetime | None,
    dedup_key: str | None,
    wait: float | None,
    as_json: bool,
    **flags: object,
) -> None:
    """
    Write one message into the outbox, and print its event_id.

    Useful as a smoke test: `outrider publish ping --routing-key some.queue --wait 10`.
    """
    if ordering_key is not None and deliver_after is not None:
        raise click.UsageError("a delayed message cannot be ordered: give either --deliver-after or --ordering-key")
    if deliver_after is not None and expires is not None:
        try:
            check_expiry(deliver_after, expires)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    deliver_at, deliver_in_seconds = _time_or_delay(deliver_after)
    expires_at, expires_in_seconds = _time_or_delay(expires)
    body = _read_payload(payload)
    event_id = str(uuid4())
    row = make_row(
        event_id=event_id,
        event_type=event_type,
        ordering_key=ordering_key,
        exchange=exchange,
        routing_key=event_type if routing_key is None else routing_key,
        payload=body,
        content_type=content_type,
        content_encoding=_check_encoding(body, content_type),
        headers=json.dumps(headers),
        dedup_key=dedup_key,
        expires_at=expires_at,
        expires_in_seconds=expires_in_seconds,
        deliver_at=deliver_at,
        deliver_in_seconds=deliver_in_seconds,
    )
    with open_store(config, flags) as store:
        row_id = _enqueue(store, row, find_id=wait is not None)
        if not as_json:
            print_line(event_id)
        outcome = None if wait is None or row_id is None else _wait_for_outcome(store, row_id, wait)
    if as_json:
        print_json({"event_id": event_id} | (outcome or {}))
    elif outcome:
        print_line(": ".join(part for part in outcome.values() if part is not None))
    if outcome and outcome["outcome"] != "delivered":
        sys.exit(1)


def _enqueue(store: Store, row: Row, *, find_id: bool) -> int | None:
    """Write the row. `find_id`: return its id, which needs SELECT on the table (the producer role has INSERT only)."""
    with store.connection.transaction():
        newest = store.newest_id() if find_id else 0
        if not store.enqueue(row, delayed=is_delayed(row)):
            raise OutboxError("a message with this dedup_key is pending: nothing was written")
        # Read in the same transaction: after the commit the row may already be delivered and deleted.
        return store.enqueued_id(row["event_id"], after=newest) if find_id else None


def _wait_for_outcome(store: Store, row_id: int, seconds: float) -> dict[str, str | None]:
    deadline = time.monotonic() + seconds
    pause = FIRST_PAUSE_SECONDS
    while (status := store.delivery_status(row_id)) is not None:
        reason, _, error = status
        if reason is not None:
            return {"outcome": "dead", "reason": reason, "error": error}
        left = deadline - time.monotonic()
        if left <= 0:
            return {"outcome": "still pending", "reason": None, "error": error}
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)
    return {"outcome": "delivered", "reason": None, "error": None}


def _read_payload(payload: str) -> bytes:
    """The value of --payload, or the content of the file that it names."""
    try:
        if payload == "-":
            return _read_bounded(sys.stdin.buffer)
        if payload.startswith("@"):
            with Path(payload[1:]).open("rb") as file:
                return _read_bounded(file)
        return payload.encode()
    except OSError as error:
        _refuse(f"cannot be read: {error.strerror}")
    except UnicodeEncodeError:
        _refuse("is not UTF-8 text")
    except ValueError as error:  # a path with a NUL
        _refuse(f"cannot be read: {error}")


def _read_bounded(file: BinaryIO) -> bytes:
    body = file.read(LARGEST_PAYLOAD + 1)
    if len(body) > LARGEST_PAYLOAD:
        _refuse(f"is larger than {LARGEST_PAYLOAD // 1024**2} MiB")
    return body


def _check_encoding(body: bytes, content_type: str) -> str:
    """The content encoding of the body. UsageError if the body does not match its content type."""
    if content_type != "application/json" and not content_type.startswith("text/"):
        return "binary"
    try:
        decoded = body.decode()
    except UnicodeDecodeError:
        _refuse(f"is not UTF-8 text, which {content_type} must be: give another --content-type")
    if content_type == "application/json":
        try:
            json.loads(decoded, parse_int=str, parse_constant=_refuse_constant)
        except RecursionError:
            _refuse("is nested too deeply")
        except ValueError as error:
            place = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
            _refuse(f"is not JSON{place}: quote it for the shell, or give --content-type text/plain")
    return "utf-8"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _refuse(problem: str) -> NoReturn:
    raise click.UsageError(f"--payload {problem}")


def _time_or_delay(moment: float | datetime | None) -> tuple[str | None, str | None]:
    """A time, or the seconds that the database adds to its own clock."""
    if isinstance(moment, datetime):
        return moment.astimezone(UTC).isoformat(), None
    return None, None if moment is None else repr(moment)
