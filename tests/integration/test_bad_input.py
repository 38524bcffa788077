"""
Hostile and huge values: refused before anything is written, delivered unchanged, or buried with a reason.

They never cause an endless retry that delays other messages, and never end a service. Hostile HTTP requests are in
test_http_endpoints.py, hostile command lines in tests/acceptance/test_bad_input_cli.py.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from outrider.errors import SettingsError
from outrider.producer import EventStreams, Outbox
from outrider.settings.loading import load_settings
from outrider.settings.relay import RelaySettings
from outrider.storage.sql_files import script
from outrider.telemetry.health import Health
from tests.fixtures.broker import Broker, Received
from tests.fixtures.database import Database
from tests.fixtures.handles import Stack, every_stack, settled
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


# -- what a producer gives ---------------------------------------------------------------------------------------------

LONE = "a\ud800b"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "NUL in the type": ({"event_type": "a\0b"}, "event_type must not contain a NUL"),
    "NUL in the routing key": ({"routing_key": "a\0b"}, "routing_key must not contain a NUL"),
    "NUL in an ordering key": ({"ordering_key": "a\0b"}, "ordering_key must not contain a NUL"),
    "NUL in an aggregate": ({"aggregate": "a\0b:1", "ordering_key": None}, "type must not contain a NUL"),
    "NUL deep in a header": ({"headers": {"x": [{"y": "a\0b"}]}}, "header must not contain a NUL"),
    "NUL in a name deep in a header": ({"headers": {"x": {"a\0b": 2**70}}}, "header must not contain a NUL"),
    "NUL in JSON": ({"payload": {"x": ["a\0b"]}}, "payload must not contain a NUL"),
    "half a character as type": ({"event_type": LONE}, "event_type holds a lone surrogate"),
    "half a character as text": ({"payload": LONE}, "payload holds a lone surrogate"),
    "half a character in JSON": ({"payload": {"x": LONE}}, "payload holds a lone surrogate"),
    "half a character in a header": ({"headers": {"x": LONE}}, "header holds a lone surrogate"),
    "half a character deep in a header": ({"headers": {"x": {"y": {LONE: 1}}}}, "header holds a lone surrogate"),
    "infinity deep in a header": ({"headers": {"x": [{"y": math.inf}]}}, "Out of range float"),
    "half a character as header": ({"headers": {LONE: 1}}, "header's name holds a lone surrogate"),
    "half a character as aggregate": ({"aggregate": ("order", LONE)}, "id holds a lone surrogate"),
    "half a character as dedup key": ({"dedup_key": LONE}, "dedup_key holds a lone surrogate"),
    "10,000 levels of JSON": ({"payload": nested(10_000)}, "nested too deeply"),
    "10,000 levels of headers": ({"headers": {"x": nested(10_000)}}, "nested too deeply"),
    "a header without a name": ({"headers": {"": 1}}, "header's name must be 1 to 255 bytes"),
    "a header's name of 256 bytes": ({"headers": {"ä" * 128: 1}}, "header's name must be 1 to 255 bytes"),
    "a header's name that is none": ({"headers": {1: 1}}, "header's name is a str, not int"),
    "NaN in a header": ({"headers": {"x": math.nan}}, "Out of range float"),
    "a routing key of 256 bytes": ({"routing_key": "ä" * 128}, "routing_key must be 0 to 255 bytes"),
    "an exchange of 256 bytes": ({"exchange": "ä" * 128}, "exchange must be 0 to 255 bytes"),
    "a type of 256 bytes": ({"event_type": "ä" * 128, "routing_key": "q"}, "event_type must be 1 to 255 bytes"),
    "an ordering key of 1001 bytes": ({"ordering_key": "x" * 1001}, "ordering_key must be 1 to 1000 bytes"),
    "a time that is none": ({"expires": math.nan}, "expires must not be negative, infinite or NaN"),
    "a time without end": ({"deliver_after": math.inf}, "deliver_after must not be negative, infinite or NaN"),
    "a time beyond floats": ({"expires": 10**400}, "expires must not be negative, infinite or NaN"),
    "a time before the year 1": (
        {"expires": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))},
        "expires must lie between the years 1 and 9999",
    ),
    "SQL as event_id": ({"event_id": "'); DROP TABLE outbox; --"}, "badly formed hexadecimal UUID"),
    "a number as event_id": ({"event_id": 5}, "event_id is a UUID or its text, not int"),
}

SQL = """'); DROP TABLE outbox; -- "%s" %(event_id)s :name $1 \\' {} ¿? \t \n \r \\N \\. \b"""
TAKEN: dict[str, Any] = {
    "event_type": SQL,
    "payload": b"\xff\xfe\x00 no UTF-8",
    "aggregate": (SQL.replace(":", ""), SQL),
    "exchange": SQL,
    "routing_key": "ä" * 127,
    "headers": {SQL: SQL, "control": "\1\x1b", "deep": nested(500), "long": "x" * 2**20},
    "expires": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    "dedup_key": SQL,
}

SCHEMA = "we\"ird'; DROP TABLE public.outbox; -- %s $1 :x"


@every_stack
def test_the_producer_refuses_bad_values_before_writing_and_writes_the_others_unchanged(
    stack: Stack, database: Database
) -> None:
    with database.connect() as connection:
        connection.execute(script("schema.sql", schema=SCHEMA))
    outbox = Outbox(schema=SCHEMA, context=None)

    async def scenario() -> None:
        async with stack.transaction(database.dsn) as (handle, _):
            for case, (fields, words) in REFUSED.items():
                with pytest.raises((ValueError, TypeError)) as error:
                    await settled(outbox.publish(handle, **{"event_type": "e", "payload": {}, **fields}))
                assert words in str(error.value), case
                with pytest.raises((ValueError, TypeError)):
                    await settled(outbox.publish_many(handle, [{"event_type": "e", "payload": {}, **fields}]))
            with pytest.raises(ValueError, match="stream must not contain a NUL"):
                await settled(EventStreams(outbox).append(handle, "s\0", [{"event_type": "e", "payload": {}}]))
            # None of it has harmed the transaction.
            await settled(outbox.publish(handle, **TAKEN))
            await settled(outbox.publish_many(handle, [{**TAKEN, "dedup_key": None}]))

    asyncio.run(scenario())
    with database.connect() as connection:
        rows = connection.execute(
            sql.SQL(
                "SELECT event_type, payload, aggregate_type, aggregate_id, exchange, routing_key, headers::text, "
                "expires_at, dedup_key FROM {}.outbox ORDER BY id"
            ).format(sql.Identifier(SCHEMA))
        ).fetchall()
        assert connection.execute("SELECT count(*) FROM public.outbox").fetchone() == (0,)
    assert [row[-1] for row in rows] == [SQL, None]
    for event_type, payload, aggregate_type, aggregate_id, exchange, routing_key, headers, expires_at, _ in rows:
        assert (event_type, payload, exchange, routing_key) == (SQL, TAKEN["payload"], SQL, TAKEN["routing_key"])
        assert (aggregate_type, aggregate_id) == TAKEN["aggregate"]
        assert {**json.loads(headers), **TAKEN["headers"]} == json.loads(headers)
        assert expires_at == TAKEN["expires"]


# -- what is in the table, whoever wrote it ----------------------------------------------------------------------------


def brackets(levels: int) -> str:
    return "[" * levels + "]" * levels


DELIVERED: dict[str, dict[str, Any]] = {
    "16 MB": {"payload": bytes(range(256)) * 62_500},
    "no UTF-8 in JSON": {"payload": b'{"x": "\xff\xfe\x00"}'},
    "10,000 levels in the payload": {"payload": brackets(10_000).encode()},
    "200 levels in a header": {"headers": f'{{"x": {brackets(200)}}}'},
    "NUL in headers": {"headers": '{"a\\u0000b": "c\\u0000d"}'},
    "half a character in a header": {"headers": '{"x": "\\ud800"}'},
    "a header without a name": {"headers": '{"": 1}'},
    "SQL as key": {"ordering_key": "'; DROP TABLE outbox; --"},
    "an encoding that nobody has": {"content_encoding": "latin-9000"},
    "properties of nobody": {"properties": '{"headers": {"x": 1}, "exchange": "evil", "body": [1]}'},
    "expires in 7973 years": {"expires_at": datetime(9999, 12, 31, tzinfo=UTC)},
    "attempts beyond counting": {"attempts": 2**31 - 1},
    "the same message_id": {"properties": '{"message_id": "same"}'},
    "the same message_id again": {"properties": '{"message_id": "same"}'},
    "a pickle": {"payload": b"\x80\x04N.", "content_type": "application/x-python-serialize"},
}

BURIED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a type of 300 bytes": ({"event_type": "x" * 300}, "undecodable", "type"),
    "a header's name of 256 bytes": ({"headers": json.dumps({"x" * 256: 1})}, "undecodable", "longer than 255 bytes"),
    "a header beyond 64 bits": ({"headers": json.dumps({"x": 2**70})}, "undecodable", "int too large"),
    "an infinite header": ({"headers": '{"x": 1e400}'}, "undecodable", "not a finite number"),
    "5,000 levels in a header": ({"headers": f'{{"x": {brackets(5000)}}}'}, "undecodable", "headers does not decode"),
    "1 MB in a header": ({"headers": json.dumps({"x": "x" * 2**20})}, "undecodable", "exceed an AMQP frame"),
    "a UUID that is none": (
        {"headers": '{"x": {"__type__": "uuid", "__value__": {"hex": "zz"}}}'},
        "undecodable",
        "headers does not decode",
    ),
    "priority 300": ({"properties": '{"priority": 300}'}, "undecodable", "priority: ubyte"),
    "an expiration that is no number": ({"properties": '{"expiration": "5"}'}, "undecodable", "expiration is a str"),
    "a timestamp before time": ({"properties": '{"timestamp": -1}'}, "undecodable", "timestamp"),
    "a reply_to of 300 bytes": ({"properties": json.dumps({"reply_to": "x" * 300})}, "undecodable", "reply_to"),
    "a delivery mode of nobody": ({"properties": '{"delivery_mode": 99}'}, "max attempts", "PreconditionFailed"),
    "another user's name": ({"properties": '{"user_id": "root"}'}, "max attempts", "PreconditionFailed"),
    "declarations that are none": ({"declarations": "[1]"}, "undecodable", "no queue"),
    "an infinite number in declarations": (
        {"declarations": '[{"name": "q", "queue_arguments": {"x-max-length": 1e400}}]'},
        "undecodable",
        "not finite",
    ),
    "half a character in declarations": ({"declarations": '[{"name": "\\ud800"}]'}, "undecodable", "UTF-8 cannot"),
    "NUL in a name of what is not storable": (
        {"headers": '{"x": {"a\\u0000b": 1180591620717411303424}}'},
        "undecodable",
        "a\\x00b",
    ),
    "half a character as name of infinity": ({"headers": '{"\\ud800": 1e400}'}, "undecodable", "\\ud800"),
    "5,000 levels in declarations": ({"declarations": brackets(5000)}, "undecodable", "declarations does not decode"),
    "nowhere, after attempts beyond counting": (
        {"routing_key": "nowhere", "attempts": 2**31 - 1},
        "max attempts",
        "NoRoute",
    ),
    "nowhere, with half a character": (
        {"routing_key": "nowhere", "headers": '{"\\ud800": 1}'},
        "max attempts",
        "NoRoute",
    ),
    "nowhere, with 5,000 levels of context": (
        {"routing_key": "nowhere", "context": f'{{"x": {brackets(5000)}}}'},
        "max attempts",
        "NoRoute",
    ),
    "nowhere, with a context that plays logger": (
        {"routing_key": "nowhere", "context": '{"event": 1, "exc_info": true, "_record": [], "a b": "\\ud800"}'},
        "max attempts",
        "NoRoute",
    ),
}
EXPIRED = {"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}


def insert(connection: psycopg.Connection[Any], queue: str, owner: str, columns: Mapping[str, Any]) -> str:
    now = datetime.now(UTC)
    values = {
        "event_type": "test.happened",
        "routing_key": queue,
        "payload": b"{}",
        "owner": owner,
        "next_attempt_at": now + timedelta(hours=1) if owner == "relay" else now,
        **columns,
    }
    row = connection.execute(
        sql.SQL("INSERT INTO outbox ({}) VALUES ({}) RETURNING event_id::text").format(
            sql.SQL(", ").join(map(sql.Identifier, values)), sql.SQL(", ").join(map(sql.Placeholder, values))
        ),
        values,
    ).fetchone()
    assert row is not None
    return str(row[0])


def dead_letters(connection: psycopg.Connection[Any]) -> dict[str, tuple[str, str]]:
    rows = connection.execute("SELECT event_id::text, reason, last_error FROM outbox_dead_letter")
    return {event_id: (reason, error) for event_id, reason, error in rows}


@pytest.mark.parametrize("owner", ["relay", "scheduler"])
def test_a_bad_row_is_delivered_unchanged_or_buried_with_its_reason_and_delays_no_other(
    owner: str, stage: Stage, rabbit: Broker
) -> None:
    queue = rabbit.declare_queue()
    connection = stage.connection
    settings = {"max_attempts": 1, "send_timeout_seconds": 20, "lease_seconds": 120}
    environment = stage.environment(rabbit.url, **settings)
    service = stage.run_service(
        "outrider.cdc_relay" if owner == "relay" else "outrider.retry_scheduler", env=environment
    )
    service.wait_for_line("broker_connected" if owner == "relay" else "scheduler_active")
    delivered = {case: insert(connection, queue, owner, columns) for case, columns in DELIVERED.items()}
    buried = {case: insert(connection, queue, owner, columns) for case, (columns, _, _) in BURIED.items()}
    expired = insert(connection, queue, owner, EXPIRED)
    good = insert(connection, queue, owner, {})

    # The relay hands an expired message over; no scheduler runs that could bury it.
    left = 1 if owner == "relay" else 0
    wait_for(lambda: stage.count() == left, message=f"rows are left: {[row['id'] for row in stage.rows()]}")
    assert service.is_running
    assert "Traceback" not in service.output()
    if owner == "relay":
        assert [(row["event_id"], row["owner"], row["due"]) for row in stage.rows()] == [(expired, "scheduler", True)]
        assert stage.run_service("outrider.retry_scheduler", "--once", env=environment).wait() == 0
    assert service.stop() == 0

    found = dead_letters(connection)
    assert found.pop(expired)[0] == "expired"
    assert found.keys() == set(buried.values())
    for case, (_, reason, words) in BURIED.items():
        assert found[buried[case]][0] == reason, case
        assert words in found[buried[case]][1], case
    # Some arrive twice: when the broker closes a channel because of one message, the others are sent again.
    arrived = {identity(message): message for message in rabbit.take_what_is_there(queue)}
    assert good in arrived
    for case in ("16 MB", "no UTF-8 in JSON", "10,000 levels in the payload", "a pickle"):
        assert arrived[delivered[case]].body == DELIVERED[case]["payload"], case
    renamed = {delivered["the same message_id"], delivered["the same message_id again"]}
    assert arrived.keys() == {good, "same", *delivered.values()} - renamed


def identity(message: Received) -> str:
    return message.message_id or ""


# -- settings of an operator -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("schema", "a\0b", "schema: string should match"),
        ("schema", "ä" * 40, "schema: must be at most 63 bytes"),
        ("publication", "x" * 64, "publication: string should have at most 63"),
        ("slot", '"; DROP', "slot: string should match"),
        ("backoff_seconds", "1e300", "backoff_seconds: input should be less than"),
        ("hold_seconds", "nan", "hold_seconds: 'nan' is not a duration"),
        ("send_timeout_seconds", "inf", "send_timeout_seconds: 'inf' is not a duration"),
        ("http_port", "65536", "http_port: input should be less than"),
        ("database_url", "host=x password='sekret", "database_url: not a libpq connection string"),
    ],
)
def test_the_error_of_a_setting_out_of_range_has_its_name_and_not_its_value(name: str, value: str, words: str) -> None:
    given = {"database_url": "dbname=x", "broker_url": "amqp://127.0.0.1:1//", name: value}
    with pytest.raises(SettingsError) as error:
        load_settings(RelaySettings, given)
    assert words in str(error.value)
    assert "sekret" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("../../../../../../../../etc/passwd", "is not a TOML file"),
        ("/dev/zero", "is larger than 1 MiB"),
        ("/", "Is a directory"),
        ("a\0b", "null"),
        ("x" * 5000, "File name too long"),
    ],
)
def test_a_wrong_settings_file_is_an_error_in_one_line_without_its_content(path: str, words: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(RelaySettings, {}, config_file=path)
    assert words in str(error.value)
    assert "root:" not in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_that_are_nested_too_deeply_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("labelled_types = " + brackets(20_000))
    with pytest.raises(SettingsError, match="cannot read the settings file"):
        load_settings(RelaySettings, {}, config_file=str(file))
    monkeypatch.setenv("OUTRIDER_LABELLED_TYPES", brackets(50_000))
    with pytest.raises(SettingsError):
        load_settings(RelaySettings, {"database_url": "dbname=x", "broker_url": "amqp://127.0.0.1:1//"})


def test_a_liveness_file_can_be_neither_another_file_nor_a_link_to_it(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "below").mkdir()
    for path in (victim, tmp_path / "link", tmp_path / "below/../victim", tmp_path, Path("/dev/null")):
        with pytest.raises(SettingsError, match="exists and is not an empty file"), Health(liveness_file=path):
            pass
    with pytest.raises(SettingsError, match="liveness_file: cannot"), Health(liveness_file=victim / "x"):
        pass
    assert victim.read_text() == "precious"
