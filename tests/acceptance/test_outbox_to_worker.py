"""From `Outbox()` to `outrider worker` by defaults alone: what was published is what the handler receives."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider import Outbox, tracking
from tests.fixtures.broker import Broker
from tests.fixtures.commands import ROOT, run_outrider
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

MODULE = """
import json, os, pathlib
from collections.abc import Sequence
from outrider.consumer import GENERATED, consume

KEY = os.environ["KEY"]

def note(name, **values):
    part = pathlib.Path(os.environ["HERE"], name + ".part")
    part.write_text(json.dumps(values))
    part.rename(part.with_suffix(""))

@consume(KEY + ".text", queue=GENERATED)
def text(body: str, message_id: str, queue: str, attempt: int, tracking_ids: Sequence[str]) -> None:
    if attempt == 1:
        raise ValueError("once more")
    note("text", body=body, message_id=message_id, queue=queue, attempt=attempt, tracking_ids=list(tracking_ids))

@consume(KEY + ".any", queue=GENERATED)
async def anything(body, event_id: str) -> None:
    note(event_id, body=body)

@consume(KEY + ".#", queue=GENERATED)
def raw(message: bytes, event_id: str) -> None:
    note("raw-" + event_id, body=message.decode("latin-1"))
"""


@pytest.fixture
def module(rabbit: Broker, tmp_path: Path) -> Iterator[str]:
    """A module with a name of its own, because its queues are named after it."""
    name = f"consumers_{rabbit.prefix.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    yield name
    for function in ("text", "anything", "raw"):
        rabbit.delete_queue(f"{name}.{function}")
        rabbit.delete_queue(f"{name}.{function}.dlq")


def test_what_is_published_is_what_the_handler_receives(
    stage: Stage, rabbit: Broker, module: str, tmp_path: Path
) -> None:
    key = f"{rabbit.prefix}.key"
    env = stage.environment(rabbit.url, retry_delays="0s,1s") | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
        "HERE": str(tmp_path),
        "KEY": key,
    }
    missing = run_outrider("worker", "--check", module, env=env)
    assert missing.returncode == 1
    assert "does not exist: create it with deploy/terraform/consumer, or let the worker create it" in missing.stderr
    worker = stage.run_service("outrider", "worker", module, env=env)
    worker.wait_for_event("worker_active", deadline_seconds=60)
    checked = run_outrider("worker", "--check", module, env=env)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.startswith("ok: every queue, exchange and permission is there for ")
    assert f"{module}.text" in checked.stdout

    stage.start_relay(rabbit.url)
    outbox = Outbox()
    with stage.database.connect(autocommit=False) as connection, tracking("request"), tracking("job"):
        text = outbox.publish(connection, f"{key}.text", "42 äpfel")
        anything = [outbox.publish(connection, f"{key}.any", payload) for payload in ("42", 42, {"a": ["b"]})]
        binary = outbox.publish(connection, f"{key}.binary", b"\xff\x00")

    def received(name: str) -> dict[str, object]:
        wait_for((tmp_path / name).exists, message=f"{name} does not arrive")
        values: dict[str, object] = json.loads((tmp_path / name).read_text())
        return values

    assert [received(str(receipt.event_id))["body"] for receipt in anything] == ["42", 42, {"a": ["b"]}]
    assert received(f"raw-{binary.event_id}")["body"] == "\xff\x00"
    assert received(f"raw-{text.event_id}")["body"] == "42 äpfel".encode().decode("latin-1")
    assert received("text") == {
        "body": "42 äpfel",
        "message_id": str(text.event_id),
        "queue": f"{module}.text",
        "attempt": 2,
        "tracking_ids": ["request", "job", str(text.event_id)],
    }
    assert worker.wait_for_event("failed", deadline_seconds=10)["retry_in"] == "0s"  # the worker's own delays
    assert worker.stop() == 0
