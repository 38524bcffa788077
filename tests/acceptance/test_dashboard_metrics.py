"""The dashboard, the alerts and the autoscaler use only metrics and labels that services and workers export."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from outrider.embedded.process import free_port
from outrider.telemetry.metrics import SLOT_SAFE_WAL
from tests.fixtures.broker import Broker
from tests.fixtures.commands import ROOT
from tests.fixtures.metric_catalogue import CATALOGUE
from tests.fixtures.services import RunService
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

DEPLOY = Path(__file__).parents[2] / "deploy"
METRIC = re.compile(r"\b(?:outbox|process)_[a-z_]+")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
SELECTOR = re.compile(r"(\w+)\{([^}]*)\}")
SCRAPER_LABELS = {"instance", "job", "namespace"}
HANDLER = """
import os
from outrider.consumer import consume

@consume(queue=os.environ["QUEUE"], retry_delays=("100ms",))
def fail(body: dict) -> None:
    raise ValueError("out of order")
"""

Samples = dict[str, set[str]]
"""Names of samples, each with its labels."""


def dashboard_expressions() -> Iterator[str]:
    for panel in json.loads((DEPLOY / "grafana/outbox.json").read_text())["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]


def alert_expressions() -> Iterator[str]:
    for group in yaml.safe_load((DEPLOY / "prometheus/outbox-alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def autoscaler_metrics() -> Iterator[str]:
    for document in yaml.safe_load_all((DEPLOY / "kubernetes/scheduler.yaml").read_text()):
        if document["kind"] == "HorizontalPodAutoscaler":
            for metric in document["spec"]["metrics"]:
                yield metric["external"]["metric"]["name"]


def scrape(*ports: int) -> Samples:
    samples: Samples = defaultdict(set)
    for port in ports:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            for family in text_string_to_metric_families(response.read().decode()):
                for sample in family.samples:
                    samples[sample.name] |= sample.labels.keys()
    return samples


def missing(found: Samples) -> set[str]:
    """Metrics of the catalogue without a sample, except one that needs max_slot_wal_keep_size."""
    expected = {spec.name + ("_bucket" if spec.buckets else "") for spec in CATALOGUE if spec != SLOT_SAFE_WAL}
    return expected - found.keys()


CONSUMER_METRICS = {
    "outbox_consumer_received_total",
    "outbox_consumer_processed_total",
    "outbox_consumer_retries_total",
    "outbox_consumer_handler_seconds_bucket",
    "outbox_consumer_dead_letters",
    "outbox_consumer_active",
}


@pytest.fixture
def worker_port(rabbit: Broker, run_service: RunService, tmp_path: Path) -> Iterator[int]:
    """The port of a worker whose handler fails a message: retried, then buried."""
    (tmp_path / "dashboard_handler.py").write_text(HANDLER)
    port, queue = free_port(), f"{rabbit.prefix}.fails"
    env = {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
        "QUEUE": queue,
        "OUTRIDER_BROKER_URL": rabbit.url,
        "OUTRIDER_HTTP_PORT": str(port),
        "OUTRIDER_LOG_FORMAT": "json",
    }
    worker = run_service("outrider", "worker", "dashboard_handler", env=env)
    worker.wait_for_event("worker_active", deadline_seconds=60)
    rabbit.publish(b"{}", routing_key=queue, message_id="1", type="order.placed")
    worker.wait_for_event("buried", deadline_seconds=60)
    yield port
    worker.stop()
    for name in (queue, f"{queue}.dlq"):
        rabbit.delete_queue(name)


def test_every_metric_is_exported_and_every_expression_uses_exported_metrics(
    stage: Stage, rabbit: Broker, worker_port: int
) -> None:
    relay_port, scheduler_port = free_port(), free_port()
    stage.start_relay(rabbit.url, http_port=relay_port)
    settings: dict[str, Any] = {"http_port": scheduler_port, "poll_seconds": 0.2}
    stage.run_service("outrider.retry_scheduler", env=stage.environment(rabbit.url, **settings))
    stage.insert(rabbit.declare_queue(), 5)
    stage.insert("no-such-queue")

    found: Samples = {}

    def complete() -> bool:
        nonlocal found
        try:
            found = scrape(relay_port, scheduler_port, worker_port)
        except OSError:  # not listening yet
            return False
        return not missing(found) and found.keys() >= CONSUMER_METRICS

    wait_for(complete, deadline_seconds=60, message="some metrics are not exported")
    labels = {spec.name: set(spec.labels) for spec in CATALOGUE}
    assert {name: found[name] for name in labels if labels[name]} == {n: each for n, each in labels.items() if each}

    found.setdefault(SLOT_SAFE_WAL.name, set())
    expressions = [*dashboard_expressions(), *alert_expressions(), *autoscaler_metrics()]
    assert len(expressions) > 60
    for expression in expressions:
        names = METRIC.findall(expression)
        assert names, expression
        assert set(names) <= found.keys(), expression
        known = SCRAPER_LABELS.union(*(found[name] for name in names))
        for grouping in GROUPING.findall(expression):
            assert set(re.split(r",\s*", grouping)) <= known, expression
        for name, selector in SELECTOR.findall(expression):
            assert set(re.findall(r"(\w+)\s*[=!]", selector)) <= found[name] | SCRAPER_LABELS, expression
