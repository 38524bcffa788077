"""Management commands for dead letters and statistics, and the Celery task that purges."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO

import pytest

from outrider.producer.django.services import conninfo_of
from outrider.storage.decision import Burial, DeadLetterReason, Retry
from tests.fixtures.database import Database
from tests.fixtures.django import configure_django, django_connection

configure_django()

from django.core.management import CommandError, call_command  # noqa: E402
from django.db import connections, transaction  # noqa: E402
from django.test.utils import override_settings  # noqa: E402

from outrider.producer.django.django_outbox import publish  # noqa: E402
from outrider.producer.django.models import DeadLetter, OutboxMessage  # noqa: E402
from outrider.producer.django.store import DjangoStore  # noqa: E402


@pytest.fixture
def store(database: Database) -> Iterator[DjangoStore]:
    with django_connection(database.dsn):
        yield DjangoStore()


def run(name: str, *arguments: str) -> str:
    output = StringIO()
    call_command(name, *arguments, stdout=output)
    return output.getvalue().strip()


def bury(
    store: DjangoStore, *types: str, reason: DeadLetterReason = "rejected", days_ago: int = 0, **options: str
) -> list[int]:
    with transaction.atomic():
        for each in types:
            publish(each, {}, **options)
    ids = list(OutboxMessage.objects.values_list("id", flat=True).order_by("-id")[: len(types)])[::-1]
    store.bury([Burial(each, reason, "no", 1) for each in ids])
    with connections["default"].cursor() as cursor:
        cursor.execute(
            "UPDATE outbox_dead_letter SET died_at = died_at - %s * interval '1 day' WHERE id = ANY(%s)",
            [days_ago, ids],
        )
    return ids


def dead() -> list[str]:
    return list(DeadLetter.objects.order_by("id").values_list("event_type", flat=True))


def test_selected_dead_letters_are_purged_and_replayed(store: DjangoStore) -> None:
    bury(store, "order.placed", "order.paid", "user.created", days_ago=40)
    bury(store, "order.lost", reason="expired")
    assert run("outbox_purge_dead_letter", "--older-than", "30d", "--dry-run") == "would purge 3"
    assert run("outbox_purge_dead_letter", "--older-than", "30d", "--type", "user.*") == "purged 1"
    assert dead() == ["order.placed", "order.paid", "order.lost"]
    assert run("outbox_replay_dead_letter", "--all", "--dry-run") == "would replay 3"
    assert run("outbox_replay_dead_letter", "--reason", "expired") == "replayed 1"
    [first, second] = DeadLetter.objects.order_by("id")
    assert run("outbox_replay_dead_letter", str(first.id), str(second.event_id), "--rate", "1000") == "replayed 2"
    assert (dead(), OutboxMessage.objects.count()) == ([], 3)
    [job] = bury(store, "job", dedup_key="k\x1b")
    with transaction.atomic():
        publish("job", {}, dedup_key="k\x1b")
    assert run("outbox_replay_dead_letter", "--type", "job") == (
        "replayed 0, kept 1 (a message with the same dedup_key is pending)\n"
        f"  {job} (dedup_key k\\x1b): a message with the same dedup_key is pending"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["outbox_purge_dead_letter", "--older-than", "soon"], "'soon' is not a duration such as 90s"),
        (["outbox_replay_dead_letter", "9" * 20], "is neither a row's id nor an event_id nor a task id"),
        (["outbox_replay_dead_letter"], "say which dead letters: ids, --type, --reason, or --all"),
        (["outbox_replay_dead_letter", "--all", "--rate", "0"], "--rate must be more than 0"),
        (["outbox_replay_dead_letter", "--reason", "boredom"], "invalid choice: 'boredom'"),
    ],
)
def test_wrong_usage_is_an_error_of_one_line(arguments: list[str], said: str) -> None:
    with pytest.raises(CommandError, match=r"^[^\n]+$") as raised:
        call_command(*arguments)
    assert said in str(raised.value)


def test_a_database_error_is_printed_in_one_line(store: DjangoStore) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("DROP TABLE outbox_dead_letter")
    with pytest.raises(CommandError, match=r'^PostgreSQL: relation "public.outbox_dead_letter" does not exist$'):
        run("outbox_replay_dead_letter", "--all")


def test_stats_count_messages_by_state_and_type(store: DjangoStore) -> None:
    bury(store, "order.lost")
    with transaction.atomic():
        for each in ("order.placed", "order.placed", "order.paid"):
            publish(each, {})
    store.fail([Retry(OutboxMessage.objects.latest("id").id, "refused", 0.0)])
    stats = json.loads(run("outbox_stats", "--json"))
    assert (stats["pending"], stats["retrying"], stats["dead"]) == (3, 1, 1)
    assert [(each["event_type"], each["pending"], each["retrying"]) for each in stats["types"]] == [
        ("order.placed", 2, 0),
        ("order.paid", 1, 1),
    ]
    text = run("outbox_stats")
    assert "pending   3" in text
    assert "order.paid: 1 pending, 1 retrying" in text


def test_the_task_purges_as_the_command_does(store: DjangoStore) -> None:
    from outrider.producer.django.tasks import purge_dead_letters

    bury(store, "order.placed", "user.created", days_ago=40)
    assert purge_dead_letters.name == "outrider.purge_dead_letters"
    assert purge_dead_letters(older_than_seconds=86_400, event_type="user.*") == 1
    with pytest.raises(ValueError, match="must not be negative"):
        purge_dead_letters(older_than_seconds=-1)
    assert dead() == ["order.placed"]


def test_services_get_the_libpq_parameters_of_the_alias(store: DjangoStore) -> None:
    connections["default"].settings_dict["OPTIONS"] = {
        "sslmode": "prefer",
        "pool": False,
        "server_side_binding": False,
        "application_name": "shop's",
    }
    try:
        from psycopg.conninfo import conninfo_to_dict

        found = conninfo_to_dict(conninfo_of("default"))
    finally:
        connections["default"].settings_dict["OPTIONS"] = {}
    wanted = {"dbname": connections["default"].settings_dict["NAME"], "application_name": "shop's", "sslmode": "prefer"}
    assert wanted.items() <= found.items()
    assert not {"cursor_factory", "context", "prepare_threshold"} & found.keys()


def test_unknown_settings_of_the_services_are_found_by_the_checks() -> None:
    from outrider.producer.django.checks import check_settings

    with override_settings(OUTRIDER={"SERVICES": {"BROKER_URL": "amqp://", "MAX_ATEMPTS": 3}}):
        [found] = check_settings()
    assert (found.id, found.msg) == (
        "outrider.E011",
        "OUTRIDER['SERVICES']: unknown setting 'MAX_ATEMPTS' (did you mean MAX_ATTEMPTS?)",
    )
    with override_settings(OUTRIDER={"SERVICES": "amqp://"}):
        assert [each.id for each in check_settings()] == ["outrider.E003"]
