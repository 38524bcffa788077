"""`outrider replay` against a real database."""

from __future__ import annotations

from outrider.producer import Outbox
from outrider.producer.streams import EventStreams
from outrider.storage.store import Store
from tests.fixtures.database import Database
from tests.fixtures.message_commands import run_cli, run_cli_json
from tests.fixtures.rows import insert_rows, query, store_of

REPLAY = "00000000-0000-4000-8000-00000000000a"


def take_rows(store: Store) -> list[tuple[str, str, str, str]]:
    """Delete all rows of the outbox, and return them."""
    rows = query(
        store.connection,
        "WITH gone AS (DELETE FROM outbox RETURNING *) SELECT event_type, exchange, routing_key, headers::text "
        "FROM gone ORDER BY id",
    )
    assert isinstance(rows, list)
    return rows


def test_events_of_streams_are_replayed(database: Database) -> None:
    streams = EventStreams(Outbox("shop"))
    with store_of(database) as store:
        with store.connection.transaction():
            for stream in ("order:1", "order:2"):
                events = [{"event_type": f"order.{verb}", "payload": {}} for verb in ("placed", "paid", "sent")]
                streams.append(store.connection, stream, events)
        original = take_rows(store)
        assert len(original) == 6

        assert "select what to replay" in run_cli(database, "replay", "--exchange", "shop", status=2)
        assert "give --exchange" in run_cli(database, "replay", "--stream", "order:1", status=2)
        assert "give --exchange" in run_cli(database, "replay", "--stream", "order:1", "--dry-run", status=2)
        preview = run_cli(database, "replay", "--type", "order.p*", "--exchange", "shop", "--dry-run").splitlines()
        assert preview[0] == "would replay 4"
        assert [line.split()[:2] for line in preview[2:]] == [["order.paid", "2"], ["order.placed", "2"]]
        assert take_rows(store) == []

        output = run_cli(
            database,
            "replay",
            "--stream",
            "order:1",
            "--after",
            "1",
            "--exchange",
            "again",
            "--rate",
            "50",
            "--replay-id",
            REPLAY,
        )
        assert output == "replayed 2\n"
        assert take_rows(store) == [
            (
                f"order.{verb}",
                "again",
                f"order.{verb}",
                f'{{"stream":"order:1","stream_version":{version},"aggregate_type":"order","aggregate_id":"1",'
                f'"replayed": true,"replay_id":"{REPLAY}"}}',
            )
            for version, verb in ((2, "paid"), (3, "sent"))
        ]
        route = ("--exchange", "", "--routing-key", "all", "--replay-id", REPLAY)
        assert run_cli_json(database, "replay", "--since", "1h", "--until", "2999-01-01T00:00Z", *route) == [
            {"replayed": 6, "replay_id": REPLAY}
        ]
        assert [(kind, key) for kind, _, key, _ in take_rows(store)] == [(kind, "all") for kind, _, _, _ in original]


def test_archived_messages_are_replayed_to_their_old_or_a_given_exchange(database: Database) -> None:
    with store_of(database) as store:
        ids = insert_rows(store.connection, 3, routing_key="q{n}", exchange="shop", headers='{"tenant": "a"}')
        ids += insert_rows(store.connection, event_type="order.paid", properties='{"expiration": 60}')
        event_ids = query(store.connection, "SELECT event_id FROM outbox ORDER BY id")
        store.settle(ids, archive=True)
        store.connection.execute("UPDATE outbox_archive SET created_at = created_at - interval '1 day'")

        again = ("--replay-id", REPLAY)
        assert run_cli(database, "replay", "--archive", "--all", *again) == "replayed 4\n"
        replayed = query(
            store.connection,
            "SELECT event_id, created_at > clock_timestamp() - interval '1 hour' FROM outbox ORDER BY id",
        )
        assert replayed == [(event_id, True) for event_id in event_ids]  # or the broker would drop what has expired
        assert take_rows(store)[:1] == [
            ("order.placed", "shop", "q0", f'{{"tenant": "a","replayed": true,"replay_id":"{REPLAY}"}}')
        ]
        options = ("--type", "*.placed", "--exchange", "elsewhere", "--routing-key", "r")
        assert run_cli_json(database, "replay", "--archive", *options, *again) == [{"replayed": 3, "replay_id": REPLAY}]
        assert {row[1:3] for row in take_rows(store)} == {("elsewhere", "r")}
