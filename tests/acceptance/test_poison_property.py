"""
Property: whatever a row holds and whatever the broker answers, it ends delivered or dead, and good rows arrive once.

The services run on while the examples go through them, so a row that harms them harms the next example too.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg import sql

from outrider import Outbox
from tests.fixtures.broker import Broker
from tests.fixtures.poisoned import Poisoned, delivered
from tests.fixtures.stage import Stage

ROWS = 20
GOOD_ROWS = 5
DEADLINE_SECONDS = 60.0
NAMES = st.sampled_from(["a", "x" * 300, "a\0b", "\ud800", "\x1b[31m\u202e", "__type__", "event", ""]) | st.text(
    max_size=5
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, 2**70, -(2**63) - 1, 10**400, math.inf, -math.inf, 1e308, 0.1])
    | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=3)
PROPERTIES = st.dictionaries(
    st.sampled_from(
        ["priority", "expiration", "timestamp", "message_id", "user_id", "delivery_mode", "type", "reply_to", "headers"]
    ),
    VALUES,
    max_size=2,
)
QUEUES = st.dictionaries(
    st.sampled_from(["name", "exchange", "durable", "queue_arguments", "bindings", "type", "max_length", "expires"]),
    VALUES | st.sampled_from([{"x-max-length": math.inf}, {"x-max-length": "many"}, {"x-queue-type": 5}]),
    max_size=3,
)
ROW = st.fixed_dictionaries(
    {
        "headers": OBJECTS,
        "properties": st.just({}) | PROPERTIES,
        "declarations": st.none() | st.lists(QUEUES, max_size=2),
        "context": st.none() | OBJECTS,
        # Broker answers: confirmed, returned, nacked, and a channel or connection that is closed.
        "route": st.sampled_from(
            [("", "good"), ("", "nowhere"), ("", "full"), ("nowhere", ""), ("\x1b\u202e", "%s %(x)s")]
        ),
    }
)
# The broker closed the channel: what was in flight on it is sent again.
CLOSED = ("NotFound", "PreconditionFailed", "AccessRefused", "ChannelClosed", "BrokerCrashed", "ResourceLocked")


def to_json(value: Any) -> str:
    """JSON as PostgreSQL takes it: infinity is a number that is too large, a surrogate an escape."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{to_json(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_json, value)) + "]"
    if isinstance(value, float) and math.isinf(value):
        return "1e400" if value > 0 else "-1e400"
    return json.dumps(value)


def insert(connection: psycopg.Connection[Any], route: tuple[str, str], owned: dict[str, Any], **columns: Any) -> str:
    values = {"event_type": "e", "payload": b"{}", "exchange": route[0], "routing_key": route[1], **owned, **columns}
    statement = sql.SQL("INSERT INTO outbox ({}) VALUES ({}) RETURNING event_id::text").format(
        sql.SQL(", ").join(map(sql.Identifier, values)), sql.SQL(", ").join(map(sql.Placeholder, values))
    )
    row = connection.execute(statement, values).fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.parametrize("services", ["scheduler", "both"])
def test_every_row_ends_delivered_or_dead_and_every_good_row_is_delivered_once(
    stage: Stage, rabbit_vhost: Broker, services: str
) -> None:
    broker = rabbit_vhost
    good_queue = broker.declare_queue("only-good")
    broker.declare_queue("good")
    broker.declare_queue("full", max_length=1, queue_arguments={"x-overflow": "reject-publish"})
    poisoned = Poisoned(stage, services, broker.url, max_attempts=1, archive=True, poll_seconds=0.1)
    outbox = Outbox(context=None)

    @settings(
        max_examples=5,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(ROW, min_size=ROWS, max_size=ROWS))
    def check(rows: list[dict[str, Any]]) -> None:
        stage.connection.execute("TRUNCATE outbox_archive, outbox_dead_letter")
        owned = poisoned.owned()
        written: list[str] = []
        with stage.database.connect(autocommit=False) as connection:
            for row in rows:
                columns = {name: row[name] for name in ("headers", "properties", "declarations", "context")}
                given_columns = {name: to_json(value) for name, value in columns.items() if value is not None}
                written.append(insert(connection, row["route"], owned, **given_columns))
                exchange, routing_key = row["route"]
                options: dict[str, Any] = {"exchange": exchange, "routing_key": routing_key, "headers": row["headers"]}
                try:
                    receipt = outbox.publish(connection, "e", row["context"], **options)
                except (TypeError, ValueError):
                    continue  # refused in the caller's transaction, which goes on
                written.append(str(receipt.event_id))
            if owned:
                connection.execute("UPDATE outbox SET owner = 'scheduler', next_attempt_at = clock_timestamp()")
            good = [insert(connection, ("", good_queue), owned) for _ in range(GOOD_ROWS)]
            connection.commit()
        stage.wait_until_empty(DEADLINE_SECONDS)
        archived = Counter(row["event_id"] for row in stage.rows("outbox_archive"))
        dead = poisoned.dead()
        assert archived + Counter([*dead]) == Counter([*written, *good])
        assert all(reason and error for reason, error in dead.values())
        arrived = delivered(broker, good_queue)
        assert arrived.keys() == set(good)
        if not any(error.startswith(CLOSED) for _, error in dead.values()):
            assert arrived == Counter(good)

    check()
    assert all(service.is_running for service in poisoned.running)
    assert not any("Traceback" in service.output() for service in poisoned.running)
