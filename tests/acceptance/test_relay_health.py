"""The health endpoints and metrics of a relay."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from outrider.embedded.process import free_port
from tests.fixtures.broker import Broker
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.servers import address_of
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for


def fetch(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics(port: int) -> dict[str, float]:
    """The samples without labels, and the sums of those with labels."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(fetch(port, "/metrics")[1]):
        for sample in family.samples:
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values


def test_the_endpoints_report_role_and_metrics(stage: Stage, rabbit: Broker, tmp_path: Path) -> None:
    queue = rabbit.declare_queue()
    port, standby_port = free_port(), free_port()
    alive = tmp_path / "alive"
    relay = stage.start_relay(rabbit.url, http_port=port, liveness_file=alive, max_attempts=1)
    stage.start_relay(rabbit.url, wait="standing_by", http_port=standby_port)
    stage.insert(queue, 20)
    stage.insert("no-such-queue")
    stage.wait_until_empty()

    assert fetch(port, "/healthz")[0] == 200
    ready: dict[str, Any] = json.loads(fetch(port, "/readyz")[1])
    assert (ready["ready"], ready["role"]) == (True, "active")
    standby: dict[str, Any] = json.loads(fetch(standby_port, "/readyz")[1])
    assert (standby["ready"], standby["role"]) == (True, "standby")

    values = wait_for(lambda: (found := metrics(port))["outbox_messages_dead_lettered_total"] == 1 and found) or {}
    assert values["outbox_messages_enqueued_total"] == 21
    assert values["outbox_messages_published_total"] == 20
    assert values["outbox_publish_failures_total"] == 1
    assert values["outbox_message_age_seconds_count"] == 20
    assert values["outbox_publish_seconds_count"] == 20
    assert values["outbox_settle_seconds_count"] >= 1
    assert values["outbox_relay_active"] == 1
    assert metrics(standby_port)["outbox_relay_active"] == 0
    wait_for(lambda: metrics(port).get("outbox_slot_retained_bytes") is not None)
    assert json.loads(fetch(port, "/status")[1])["delivered"] == 20
    assert alive.exists()
    relay.stop()
    assert not alive.exists()


def test_a_silent_stream_is_detected_reported_and_replaced(
    stage: Stage, rabbit: Broker, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    queue, port = rabbit.declare_queue(), free_port()
    proxy = fault_proxy(*address_of(stage.database.dsn))
    relay = stage.start_relay(
        rabbit.url,
        replication_url=proxy.through(stage.database.dsn),
        silence_timeout_seconds=1.5,
        status_interval_seconds=0.2,
        connect_timeout_seconds=2,
        http_port=port,
    )
    stage.insert(queue)
    rabbit.get_all(queue, 1)
    proxy.blackhole()
    wait_for(lambda: fetch(port, "/healthz")[0] == 503, deadline_seconds=60)
    assert "silent" in relay.wait_for_event("session_lost")["reason"]
    proxy.cut()
    proxy.heal()
    (event_id,) = stage.insert(queue)
    assert rabbit.get_all(queue, 1, 60)[0].message_id == event_id
    wait_for(lambda: fetch(port, "/healthz")[0] == 200)


def test_a_standby_whose_broker_cannot_be_reached_is_degraded_until_it_can(
    stage: Stage, rabbit: Broker, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    stage.start_relay(rabbit.url)
    proxy, port = fault_proxy(*address_of(rabbit.url)), free_port()
    proxy.refuse()
    settings = {"http_port": port, "broker_check_seconds": 0.2}
    stage.start_relay(proxy.through(rabbit.url), wait="standing_by", **settings)

    def readiness() -> tuple[int, dict[str, Any]]:
        status, body = fetch(port, "/readyz")
        return status, json.loads(body)

    wait_for(lambda: readiness()[0] == 503, message="the standby says that it is ready")
    facts = readiness()[1]
    assert (facts["ready"], facts["role"]) == (False, "standby")
    assert facts["reason"].startswith("degraded: ConnectionRefused")
    proxy.heal()
    wait_for(lambda: readiness() == (200, {"ready": True, "role": "standby", "reason": ""}))


def test_an_active_relay_is_degraded_while_it_sheds(
    stage: Stage, rabbit: Broker, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    proxy, port = fault_proxy(*address_of(rabbit.url)), free_port()
    stage.start_relay(proxy.through(rabbit.url), http_port=port, hold_seconds=0.2)
    proxy.refuse()
    proxy.cut()
    wait_for(lambda: fetch(port, "/readyz")[0] == 503)
    facts = json.loads(fetch(port, "/readyz")[1])
    assert facts["role"] == "active"
    assert facts["reason"].startswith("degraded: ")
    proxy.heal()
    wait_for(lambda: fetch(port, "/readyz")[0] == 200)
