"""`outrider pending` against a real database."""

from __future__ import annotations

from outrider.storage.decision import Retry
from tests.fixtures.database import Database
from tests.fixtures.message_commands import CARD, PAYLOAD, run_cli, run_cli_json
from tests.fixtures.rows import insert_rows, query, store_of


def test_pending_messages_are_listed_by_state_shown_and_made_due_in_order(database: Database) -> None:
    with store_of(database) as store:
        connection = store.connection
        (claimed,) = insert_rows(connection, event_type="order.paid")
        store.claim_due("s/1", batch_size=10, lease_seconds=600)
        (fresh,) = insert_rows(connection, event_type="order.sent", due_in="30 seconds", payload=PAYLOAD)
        (head,) = insert_rows(connection, ordering_key="k\x1b[2J", due_in="30 seconds")
        store.fail([Retry(head, "Nacked: full", 600)])
        (parked,) = insert_rows(connection, ordering_key="k\x1b[2J", owner="scheduler", due_in="infinity", attempts=1)

        listed = run_cli_json(database, "pending", "list")
        assert [(each["id"], each["state"]) for each in listed] == [
            (claimed, "claimed"),
            (fresh, "relay"),
            (head, "waiting"),
            (parked, "parked"),
        ]
        assert (listed[3]["behind_head"], listed[3]["next_attempt_at"]) == (True, None)
        narrowed = run_cli_json(database, "pending", "list", "--key", "k\x1b[2J", "--owner", "scheduler", "--failed")
        assert [each["id"] for each in narrowed] == [head]
        table = run_cli(database, "pending", "list", "--type", "order.p*", "--limit", "2")
        assert "order.placed" in table
        assert "k\\x1b[2J" in table
        assert "order.sent" not in table

        shown = run_cli(database, "pending", "show", str(fresh))
        assert CARD not in shown
        assert f"<{len(PAYLOAD)} bytes of application/json>" in shown
        assert "outrider dead show" in run_cli(database, "pending", "show", "999", status=1)

        assert "select messages by ids" in run_cli(database, "pending", "retry-now", status=2)
        skipped = "1 claimed by a scheduler, 1 behind an earlier message of their ordering key"
        output = run_cli(database, "pending", "retry-now", "--all", "--reset-attempts", "--dry-run")
        assert output == f"would be due now: 2; skipped: {skipped}\n"
        assert run_cli_json(database, "pending", "list", "--due") == []
        output = run_cli(database, "pending", "retry-now", "--all", "--reset-attempts")
        assert output == f"due now: 2; skipped: {skipped}\n"
        assert query(connection, "SELECT id FROM outbox WHERE next_attempt_at <= clock_timestamp() ORDER BY id") == [
            fresh,
            head,
        ]
        assert query(
            connection, "SELECT owner, attempts, claimed_by, next_attempt_at = 'infinity' FROM outbox ORDER BY id"
        ) == [
            ("scheduler", 0, "s/1", False),
            ("scheduler", 0, None, False),
            ("scheduler", 0, None, False),
            ("scheduler", 1, None, True),
        ]
        line = run_cli(database, "pending", "retry-now", str(head), "999", status=1)
        assert "1 of the given ids are not among the selected messages" in line
