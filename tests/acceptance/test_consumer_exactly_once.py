"""
Effects happen once, from the producer's commit to the consumer's, while relay and workers are killed.

OUTRIDER_TEST_MESSAGES=20000 makes it longer.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.broker import Broker
from tests.fixtures.commands import ROOT
from tests.fixtures.services import Service
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

MESSAGES = int(os.environ.get("OUTRIDER_TEST_MESSAGES", "2000"))
DEADLINE_SECONDS = 90 + MESSAGES / 50
BATCH = 50
KILLS = 4

MODULE = """
import os
import sqlalchemy
from outrider.consumer import consume

engine = sqlalchemy.create_engine(os.environ["EFFECTS_URL"])
apply = sqlalchemy.text("INSERT INTO effect (event_id, worker) VALUES (:event_id, :worker)")

@consume(os.environ["KEY"], queue=os.environ["QUEUE"], inbox=True, retry_delays=("100ms", "100ms", "100ms"))
def record(body: dict, event_id: str, attempt: int, connection) -> None:
    connection.execute(apply, {"event_id": event_id, "worker": os.getpid()})
    if body["n"] % 10 == 0 and attempt == 1:
        raise ValueError("rolled back, and retried")
"""


@pytest.fixture
def queue(rabbit: Broker) -> Iterator[str]:
    name = f"{rabbit.prefix}.effects"
    yield name
    rabbit.delete_queue(name)
    rabbit.delete_queue(f"{name}.dlq")


@pytest.mark.timeout(DEADLINE_SECONDS + 60)
def test_every_effect_is_applied_once_while_relay_and_workers_are_killed(
    stage: Stage, rabbit: Broker, queue: str, tmp_path: Path
) -> None:
    (tmp_path / "effects.py").write_text(MODULE)
    stage.connection.execute("CREATE TABLE effect (event_id uuid NOT NULL, worker integer NOT NULL)")
    environment = stage.environment(rabbit.url, log_level="info", lease_seconds=15, send_timeout_seconds=5) | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
        "EFFECTS_URL": stage.database.dsn.replace("postgresql://", "postgresql+psycopg://"),
        "OUTRIDER_INBOX_DATABASE": "effects:engine",
        "KEY": f"{queue}.happened",
        "QUEUE": queue,
    }

    def start(kind: str) -> Service:
        arguments = ("outrider", "worker", "effects") if kind == "worker" else (kind,)
        return stage.run_service(*arguments, env=environment)

    kinds = ["worker", "worker", "outrider.cdc_relay", "outrider.retry_scheduler"]
    services = [start(kind) for kind in kinds]
    for worker in services[:2]:
        worker.wait_for_event("worker_active", deadline_seconds=60)
    services[2].wait_for_line("broker_connected", deadline_seconds=60)

    def effects() -> int:
        row = stage.connection.execute("SELECT count(*) FROM effect").fetchone()
        assert row is not None
        return int(row[0])

    committed: list[str] = []
    choice = random.Random(7)
    kill_at = [MESSAGES * (number + 1) // (KILLS + 1) for number in range(KILLS)]
    with stage.database.connect(autocommit=False) as producer:
        while len(committed) < MESSAGES:
            ids = stage.insert_with(producer, f"{queue}.happened", BATCH, exchange="amq.topic")
            if choice.random() < 0.1:
                producer.rollback()
                continue
            producer.commit()
            committed += ids
            if kill_at and len(committed) >= kill_at[0]:
                # Wait until part of the messages has been applied, so that the kill comes in the middle.
                wait_for(lambda: 0 < effects() >= kill_at[0] // 4, deadline_seconds=DEADLINE_SECONDS)
                kill_at.pop(0)
                for position in (len(kill_at) % 2, 2):
                    services[position].kill()
                    services[position] = start(kinds[position])
    wait_for(lambda: effects() >= MESSAGES, deadline_seconds=DEADLINE_SECONDS, message=f"{effects()} effects")
    stage.wait_until_empty(DEADLINE_SECONDS)
    # Redelivered messages must still be skipped.
    wait_for(lambda: rabbit.depth(queue) == 0, deadline_seconds=DEADLINE_SECONDS)
    assert [service.stop() for service in services] == [0, 0, 0, 0]
    applied = [str(row[0]) for row in stage.connection.execute("SELECT event_id FROM effect").fetchall()]
    assert len(applied) == len(set(applied))
    assert set(applied) == set(committed)
    assert rabbit.depth(queue) == rabbit.depth(f"{queue}.dlq") == 0
    stopped = [
        next(event for event in worker.events() if event["event"] == "worker_stopped") for worker in services[:2]
    ]
    print(f"{len(applied)} effects once; skipped by the last two workers: {sum(each['duplicate'] for each in stopped)}")
