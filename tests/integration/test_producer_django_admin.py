"""The admin through Django's test client: pages, permissions, actions and the number of rows read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from outrider import Event, EventStreams, Outbox
from outrider.storage.decision import Burial, DeadLetterReason, Retry
from tests.fixtures.database import Database, create_database, drop_database
from tests.fixtures.django import configure_django, django_connection

configure_django()

from django.contrib.auth.models import Permission, User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connections, transaction  # noqa: E402
from django.test import Client  # noqa: E402
from django.test.utils import CaptureQueriesContext, override_settings  # noqa: E402

from outrider.producer.django.admin.read_only import BoundedPaginator  # noqa: E402
from outrider.producer.django.django_outbox import publish  # noqa: E402
from outrider.producer.django.models import ArchivedMessage, DeadLetter, OutboxMessage, StoredEvent  # noqa: E402
from outrider.producer.django.store import DjangoStore  # noqa: E402

PENDING = "/admin/outrider/outboxmessage/"
DEAD = "/admin/outrider/deadletter/"


@pytest.fixture(scope="module")
def migrated(template_database: Database) -> Iterator[Database]:
    """One database for all tests: creating the tables of auth and the admin takes longer than any of them."""
    database = create_database(template_database.server_url, template=template_database.name)
    with django_connection(database.dsn):
        call_command("migrate", verbosity=0)
    yield database
    drop_database(database)


@pytest.fixture
def store(migrated: Database) -> Iterator[DjangoStore]:
    with django_connection(migrated.dsn) as connection:
        yield DjangoStore()
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE outbox, outbox_dead_letter, outbox_archive, outbox_event, auth_user CASCADE")


def user_with(*permissions: str) -> Client:
    user = User.objects.create_user("-".join(permissions) or "none", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    assert user.user_permissions.count() == len(permissions)
    client = Client()
    client.force_login(user)
    return client


def operator() -> Client:
    return user_with(
        "view_outboxmessage", "retry_outboxmessage",
        "view_deadletter", "replay_deadletter", "discard_deadletter",
        "view_archivedmessage", "view_storedevent",
    )  # fmt: skip


def enqueue(*types: str, **options: Any) -> list[int]:
    with transaction.atomic():
        before = set(OutboxMessage.objects.values_list("id", flat=True))
        for each in types:
            publish(each, {"card": "4111"}, **options)
    return sorted(set(OutboxMessage.objects.values_list("id", flat=True)) - before)


def bury(
    store: DjangoStore, *types: str, error: str = "no route", reason: DeadLetterReason = "rejected", **options: Any
) -> list[int]:
    ids = enqueue(*types, **options)
    store.bury([Burial(each, reason, error, 1) for each in ids])
    return ids


def act(client: Client, url: str, action: str, ids: list[int], **more: str) -> str:
    answer = client.post(url, {"action": action, "_selected_action": [str(each) for each in ids], **more}, follow=True)
    assert answer.status_code == 200
    return answer.content.decode()


def seen(client: Client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, url
    return answer.content.decode()


def dead() -> list[int]:
    return list(DeadLetter.objects.order_by("id").values_list("id", flat=True))


def pending() -> list[int]:
    return list(OutboxMessage.objects.order_by("id").values_list("id", flat=True))


def test_the_outbox_is_shown_with_its_summary_and_retried_with_attempts_reset(store: DjangoStore) -> None:
    ids = enqueue("order.placed", "order.placed", "order.paid", "order.paid", ordering_key=None)
    enqueue("order.behind", "order.behind", ordering_key="k")
    store.fail([Retry(ids[0], "refused", 3600.0)])
    client = operator()
    page = seen(client, PENDING)
    assert "<td>6</td><td>1</td>" in page
    assert '<a href="?type=order.placed">order.placed</a></th>' in page
    assert "refused" in page
    assert "4111" not in page + seen(client, f"{PENDING}{ids[0]}/change/")
    assert "4 outbox messages" not in seen(client, f"{PENDING}?attempts=some")
    page = act(client, PENDING, "retry", [ids[0], *pending()[-2:]])
    assert "Messages that are due now: 2" in page
    assert "1 behind an earlier message of their key" in page
    message = OutboxMessage.objects.get(id=ids[0])
    assert (message.attempts, message.owner) == (0, "scheduler")
    assert store.next_due() < 0  # type: ignore[operator]


def test_a_row_in_an_unknown_format_is_explained(store: DjangoStore) -> None:
    (row,) = enqueue("order.placed")
    client = operator()
    assert "have a schema_version" not in seen(client, PENDING)
    OutboxMessage.objects.filter(id=row).update(schema_version=99)
    assert "1 have a schema_version that this version of Outrider" in " ".join(seen(client, PENDING).split())
    assert "99" in seen(client, f"{PENDING}{row}/change/")


def test_replaying_and_discarding_need_a_confirmation(store: DjangoStore) -> None:
    ids = bury(store, "order.placed", "order.paid", "order.lost")
    client = operator()
    page = act(client, DEAD, "replay", ids[:1])
    assert "They go back into the outbox." in page
    assert (dead(), pending()) == (ids, [])
    assert "Dead letters replayed: 1" in act(client, DEAD, "replay", ids[:1], confirmed_up_to=str(ids[0]))
    assert len(pending()) == 1
    assert "They are deleted for good." in act(client, DEAD, "discard", ids[1:2])
    assert dead() == ids[1:]
    assert "Dead letters discarded: 1" in act(client, DEAD, "discard", ids[1:2], confirmed_up_to=str(ids[2]))
    assert dead() == ids[2:]


def test_rows_added_before_the_confirmation_are_not_included(store: DjangoStore) -> None:
    ids = bury(store, "order.placed", "order.placed")
    other = bury(store, "order.paid")
    client = operator()
    page = act(client, f"{DEAD}?type=order.placed", "discard", ids[:1], select_across="1")
    assert "Discard 2 dead letters?" in page
    assert 'name="select_across" value="1"' in page
    late = bury(store, "order.placed")
    confirmed = {"select_across": "1", "confirmed_up_to": str(ids[-1])}
    assert "Dead letters discarded: 2" in act(client, f"{DEAD}?type=order.placed", "discard", ids[:1], **confirmed)
    assert dead() == [*other, *late]


def test_a_dead_letter_whose_dedup_key_is_pending_is_kept_and_reported(store: DjangoStore) -> None:
    ids = bury(store, "order.placed", dedup_key="k")
    enqueue("order.placed", dedup_key="k")
    page = act(operator(), DEAD, "replay", ids, confirmed_up_to=str(ids[0]))
    assert f"Dead letters kept: 1. {ids[0]} (dedup_key k): a message with the same dedup_key is pending" in page
    assert dead() == ids


def test_a_user_without_the_permission_gets_403_and_sees_no_action(store: DjangoStore) -> None:
    ids = bury(store, "order.placed")
    waiting = enqueue("order.paid")
    looking = user_with("view_deadletter", "view_outboxmessage")
    for url, actions in ((DEAD, ("replay", "discard")), (PENDING, ("retry",))):
        page = seen(looking, url)
        for action in actions:
            assert f'value="{action}"' not in page
            act(looking, url, action, [*ids, *waiting], confirmed_up_to=str(ids[0]))
    replaying = user_with("view_deadletter", "replay_deadletter")
    assert 'value="replay"' in seen(replaying, DEAD)
    assert 'value="discard"' not in seen(replaying, DEAD)
    act(replaying, DEAD, "discard", ids, confirmed_up_to=str(ids[0]))
    assert (dead(), pending()) == (ids, waiting)
    assert OutboxMessage.objects.get().owner == "relay"
    nobody = user_with()
    for url in (DEAD, PENDING, f"{DEAD}failures/", "/admin/outrider/storedevent/", f"{DEAD}{ids[0]}/change/"):
        assert nobody.get(url).status_code == 403, url
    assert operator().get(f"{DEAD}{ids[0]}/delete/").status_code == 403


def test_dead_letters_are_grouped_by_failure_and_filtered(store: DjangoStore) -> None:
    alike = bury(store, "order.placed", "order.placed", error="no queue 'orders-7'")
    alike += bury(store, "order.placed", error="no queue 'orders-8'")
    other = bury(store, "order.paid", reason="expired", error="too late")
    DeadLetter.objects.filter(id=other[0]).update(died_at="2020-01-01T00:00:00Z")
    client = operator()
    page = seen(client, f"{DEAD}failures/")
    assert "no queue &lt;value&gt;" in page
    fingerprint = page.split("?failure=")[1][:12]
    assert f'?failure={fingerprint}">3</a>' in page

    def shown(query: str) -> list[int]:
        page = seen(client, DEAD + query)
        return [each for each in (*alike, *other) if f"{DEAD}{each}/change/" in page]

    assert shown(f"?failure={fingerprint}") == alike
    assert shown("?reason=expired") == other
    assert shown("?age=over-week") == other
    assert shown("?age=under-hour") == alike
    assert shown("?type=order.paid") == other
    assert shown(f"?q={other[0]}") == other
    assert shown(f"?q={DeadLetter.objects.get(id=other[0]).event_id}") == other
    assert shown("?q=order.placed") == alike
    assert shown("?age=nonsense&reason=nonsense") == []


def masked(event_type: str, payload: Any, headers: Any) -> Any:
    return {**payload, "card": "***"}


def test_archive_and_streams_are_shown_with_redacted_payloads(store: DjangoStore) -> None:
    store.settle(enqueue("order.placed"), archive=True)
    with transaction.atomic():
        EventStreams(Outbox()).append(
            "default", "order/1 é", [Event(event_type="order.paid", payload={"card": "4111"})]
        )
    client = operator()
    archived = ArchivedMessage.objects.get()
    pages = [
        f"/admin/outrider/archivedmessage/{archived.id}/change/",
        seen(client, "/admin/outrider/storedevent/").split('<th class="field-stream"><a href="')[1].split('"')[0],
    ]
    assert quote("order") in pages[1]
    for url in pages:
        assert "bytes of application/json" in seen(client, url)
        with override_settings(OUTRIDER={"REDACTOR": f"{__name__}.masked"}):
            page = seen(client, url)
        assert "***" in page
        assert "4111" not in page
    assert StoredEvent.objects.get().event_type in seen(client, pages[1])


def test_pages_count_and_load_a_bounded_number_of_rows_without_large_columns(
    store: DjangoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.producer.django.admin.read_only.MOST", 3)
    monkeypatch.setattr("outrider.producer.django.admin.read_only.ReadOnlyAdmin.list_per_page", 2)
    monkeypatch.setattr("outrider.producer.django.admin.read_only.ReadOnlyAdmin.list_max_show_all", 2)
    bury(store, "a", "b", "c", "d", "e")
    assert BoundedPaginator(DeadLetter.objects.order_by("id"), 50).count == 3
    client = operator()
    with CaptureQueriesContext(connections["default"]) as captured:
        seen(client, DEAD)
    ours = [query["sql"] for query in captured.captured_queries if "outbox_dead_letter" in query["sql"]]
    assert ours
    for sql in ours:
        assert "payload" not in sql
        assert "LIMIT" in sql
        assert "DISTINCT" not in sql


def test_the_admin_reads_the_database_of_the_settings(store: DjangoStore, database: Database) -> None:
    client = operator()
    with django_connection(database.dsn, "other"), override_settings(OUTRIDER={"DATABASE": "other"}):
        elsewhere = DjangoStore()
        with transaction.atomic(using="other"):
            Outbox().publish("other", "order.elsewhere", {})
        [each] = OutboxMessage.objects.using("other").values_list("id", flat=True)
        assert "order.elsewhere" in seen(client, PENDING)
        elsewhere.bury([Burial(each, "rejected", "no", 1)])
        assert "order.elsewhere" in seen(client, f"{DEAD}failures/")
        assert "Dead letters replayed: 1" in act(client, DEAD, "replay", [each], confirmed_up_to=str(each))
    assert pending() == []


def test_times_far_in_the_future_can_be_shown(store: DjangoStore) -> None:
    [first, second] = enqueue("a", "b", ordering_key="k")
    with connections["default"].cursor() as cursor:
        cursor.execute("UPDATE outbox SET next_attempt_at = 'infinity' WHERE id = %s", [second])
        cursor.execute("UPDATE outbox SET created_at = created_at - interval '400 days' WHERE id = %s", [first])
    page = seen(operator(), PENDING)
    assert f"{PENDING}{second}/change/" in page


def test_a_task_is_found_by_a_task_id_that_is_no_uuid_and_shows_it(store: DjangoStore) -> None:
    from outrider.producer.celery import OutboxCelery, TaskOutbox

    app = OutboxCelery("tests", broker="memory://", set_as_current=False, outbox=TaskOutbox(django="default"))
    with transaction.atomic():
        app.send_task("shop.report", task_id="nightly-2030")
        app.send_task("shop.other", task_id="other")
    client = operator()
    wanted, other = OutboxMessage.objects.order_by("id")
    page = client.get(PENDING, {"q": "nightly-2030"}).content.decode()
    assert [f"{PENDING}{each.pk}/change/" in page for each in (wanted, other)] == [True, False]
    assert "nightly-2030" in client.get(f"{PENDING}{wanted.pk}/change/").content.decode()
    assert wanted.task_id == "nightly-2030"
    with transaction.atomic():
        publish("order.placed", {}, headers={"id": "x"})
    assert OutboxMessage.objects.get(event_type="order.placed").task_id == ""
