"""The relay and the scheduler as management commands: in Django's process, with its settings and signals."""

from __future__ import annotations

import json
from typing import Any

from tests.fixtures.broker import Broker
from tests.fixtures.database import Database
from tests.fixtures.django import Site
from tests.fixtures.services import RunService
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for


def site_on(stage: Stage, broker_url: str, **services: Any) -> Site:
    settings = {"BROKER_URL": broker_url, "LOG_FORMAT": "json", "LOG_LEVEL": "debug", **services}
    return Site(stage.database.dsn, {"SLOT": stage.slot, "SERVICES": settings})


def test_both_services_run_inside_django_fire_its_signals_and_drain_on_sigterm(
    stage: Stage, rabbit: Broker, run_service: RunService
) -> None:
    site = site_on(stage, rabbit.url, ARCHIVE=True, MAX_ATTEMPTS=2, BACKOFF_SECONDS=0.1)
    relay = site.start(run_service, "outbox_relay", "--name", "relay-in-django")
    relay.wait_for_line("broker_connected", deadline_seconds=60)
    scheduler = site.start(run_service, "outbox_retry_scheduler", "--poll-seconds", "0.1")
    queue = rabbit.declare_queue()
    [delivered] = stage.insert(queue, event_type="order.placed")
    [dead] = stage.insert("no queue of this name", event_type="order.lost")
    assert [message.message_id for message in rabbit.get_all(queue, 1, deadline_seconds=60)] == [delivered]

    def is_printed(line: str) -> bool:
        # The service that got the lock first sends the signals.
        return line in relay.output() + scheduler.output()

    wait_for(lambda: is_printed("signal: order.placed was sent"), deadline_seconds=60)
    wait_for(lambda: is_printed("signal: ['order.lost'] died"), deadline_seconds=60)
    assert [row["event_id"] for row in stage.rows("outbox_dead_letter")] == [dead]
    assert stage.connection.execute("SELECT name FROM outbox_worker WHERE kind = 'relay'").fetchall() == [
        ("relay-in-django",)
    ]
    assert (relay.stop(), scheduler.stop()) == (0, 0)
    assert stage.connection.execute("SELECT count(*) FROM outbox_worker").fetchall() == [(0,)]


def test_wrong_settings_are_an_error_of_one_line(database: Database) -> None:
    done = Site(database.dsn, {"SERVICES": {"BROKER": "amqp://"}}).manage("outbox_retry_scheduler", "--skip-checks")
    assert done.returncode == 2
    assert done.stderr == ("CommandError: OUTRIDER['SERVICES']: unknown setting 'BROKER' (did you mean BROKER_URL?)\n")
    done = Site(database.dsn, {"SLOT": None}).manage("outbox_relay", "--broker-url", "amqp://127.0.0.1:1")
    assert (done.returncode, done.stderr) == (
        2,
        "CommandError: OUTRIDER['SLOT'] or OUTRIDER['PUBLICATION'] is None: this project runs no relay\n",
    )


def test_the_doctor_examines_the_outbox_of_djangos_settings(stage: Stage) -> None:
    site = Site(stage.database.dsn, {"SLOT": stage.slot})
    done = site.manage("outbox_doctor", "--json", "--longest-transaction", "600")
    assert done.returncode in (0, 1), done.stderr
    findings = {each["check"]: each for each in json.loads(done.stdout)["findings"]}
    assert findings["slot"]["level"] == "ok", findings["slot"]
    assert stage.slot in findings["slot"]["found"]
    done = site.manage("outbox_doctor", "--role", "cook=chef")
    assert done.returncode == 2
    assert "must be JOB=ROLE" in done.stderr
