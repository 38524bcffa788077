"""`outrider pending` and `outrider dead` with Celery's messages: ids that are no UUID, bodies that stay packed."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from outrider.producer.celery import OutboxCelery, TaskOutbox
from outrider.storage.decision import Burial
from tests.fixtures.commands import COMMAND, ROOT, environment
from tests.fixtures.database import Database
from tests.fixtures.message_commands import run_cli_json
from tests.fixtures.rows import store_of

REDACTOR = "tests.fixtures.message_commands.redact"


def enqueue(database: Database, protocol: int, **options: Any) -> None:
    outbox = TaskOutbox()
    app = OutboxCelery("tests", broker="memory://", set_as_current=False, outbox=outbox)
    app.conf.task_protocol = protocol
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        app.send_task("shop.report", args=[1], **options)


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_message_is_found_by_a_task_id_that_is_no_uuid_and_shows_it(protocol: int, database: Database) -> None:
    enqueue(database, protocol, task_id="nightly-2030")
    enqueue(database, protocol, task_id="another")
    (shown,) = run_cli_json(database, "pending", "show", "nightly-2030")
    assert (shown["task_id"], shown["event_type"]) == ("nightly-2030", "shop.report")
    with store_of(database) as store:
        store.bury([Burial(shown["id"], "rejected", "NoRoute: nowhere", 1)])
    (dead,) = run_cli_json(database, "dead", "show", "nightly-2030")
    (result,) = run_cli_json(database, "dead", "replay", "nightly-2030")
    (again,) = run_cli_json(database, "pending", "show", "nightly-2030")
    assert (dead["task_id"], result["replayed"], again["task_id"]) == ("nightly-2030", 1, "nightly-2030")


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"compression": "gzip"}, "bytes of application/json, compressed as application/x-gzip>"),
        ({"serializer": "pickle"}, "bytes of application/x-python-serialize>"),
    ],
    ids=["gzip", "pickle"],
)
def test_a_body_that_is_not_unpacked_is_shown_as_what_it_is(
    options: dict[str, str], shown: str, database: Database
) -> None:
    enqueue(database, 2, task_id="packed", **options)
    done = subprocess.run(
        [*COMMAND, "pending", "show", "packed"],
        check=True,
        cwd=ROOT,
        env=environment({"OUTRIDER_DATABASE_URL": database.dsn, "OUTRIDER_REDACTOR": REDACTOR}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown in done.stdout
    assert "redactor" not in done.stdout + done.stderr
