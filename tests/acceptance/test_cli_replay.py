"""`outrider replay` as an operator meets it."""

from __future__ import annotations

from outrider.producer import Outbox
from outrider.producer.streams import EventStreams
from outrider.storage.store import Store
from tests.fixtures.database import Database
from tests.fixtures.repair import outbox, outbox_json
from tests.fixtures.rows import insert_rows, query, store_of


def sent(store: Store) -> list[tuple[str, str, str, str]]:
    """What waits in the outbox, which is emptied."""
    rows = query(
        store.connection,
        "WITH gone AS (DELETE FROM outbox RETURNING *) SELECT event_type, exchange, routing_key, headers::text "
        "FROM gone ORDER BY id",
    )
    assert isinstance(rows, list)
    return rows


def test_events_of_streams_are_sent_once_more(database: Database) -> None:
    streams = EventStreams(Outbox("shop"))
    with store_of(database) as store:
        with store.connection.transaction():
            for stream in ("order:1", "order:2"):
                events = [{"event_type": f"order.{verb}", "payload": {}} for verb in ("placed", "paid", "sent")]
                streams.append(store.connection, stream, events)
        original = sent(store)
        assert len(original) == 6

        assert "say what to replay" in outbox(database, "replay", "--exchange", "shop", status=2)
        assert "say --exchange" in outbox(database, "replay", "--stream", "order:1", status=2)
        preview = outbox(database, "replay", "--type", "order.p*", "--dry-run").splitlines()
        assert preview[0] == "would replay 4"
        assert [line.split()[:2] for line in preview[2:]] == [["order.paid", "2"], ["order.placed", "2"]]
        assert sent(store) == []

        told = outbox(database, "replay", "--stream", "order:1", "--after", "1", "--exchange", "again", "--rate", "50")
        assert told == "replayed 2\n"
        assert sent(store) == [
            ("order.paid", "again", "order.paid", '{"stream":"order:1","stream_version":2,"replayed": true}'),
            ("order.sent", "again", "order.sent", '{"stream":"order:1","stream_version":3,"replayed": true}'),
        ]
        route = ("--exchange", "", "--routing-key", "all")
        assert outbox_json(database, "replay", "--since", "1h", "--until", "2999-01-01T00:00Z", *route) == [
            {"replayed": 6}
        ]
        assert [(kind, key) for kind, _, key, _ in sent(store)] == [(kind, "all") for kind, _, _, _ in original]


def test_archived_messages_are_sent_where_they_went_or_as_told(database: Database) -> None:
    with store_of(database) as store:
        ids = insert_rows(store.connection, 3, routing_key="q{n}", exchange="shop", headers='{"tenant": "a"}')
        ids += insert_rows(store.connection, event_type="order.paid", properties='{"expiration": 60}')
        event_ids = query(store.connection, "SELECT event_id FROM outbox ORDER BY id")
        store.settle(ids, archive=True)
        store.connection.execute("UPDATE outbox_archive SET created_at = created_at - interval '1 day'")

        assert outbox(database, "replay", "--archive", "--all") == "replayed 4\n"
        replayed = query(
            store.connection,
            "SELECT event_id, created_at > clock_timestamp() - interval '1 hour' FROM outbox ORDER BY id",
        )
        assert replayed == [(event_id, True) for event_id in event_ids]  # or the broker would drop what has expired
        assert sent(store)[:1] == [("order.placed", "shop", "q0", '{"replayed": true,"tenant": "a"}')]
        options = ("--type", "*.placed", "--exchange", "elsewhere", "--routing-key", "r")
        assert outbox_json(database, "replay", "--archive", *options) == [{"replayed": 3}]
        assert {row[1:3] for row in sent(store)} == {("elsewhere", "r")}
