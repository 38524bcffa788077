"""Metrics of the services: bounded labels, batches, and no sample for an unknown value."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as ReferenceHistogram
from prometheus_client.parser import text_string_to_metric_families

from outrider.failures import POLICIES, failure
from outrider.storage.decision import DEAD_LETTER_REASONS
from outrider.storage.message import Message
from outrider.telemetry.metrics import (
    AGE_BUCKETS,
    MAX_LABEL_LENGTH,
    MAX_LABEL_VALUES,
    MESSAGE_AGE,
    OTHER,
    SLOT_STATUSES,
    Metrics,
    destination,
)
from outrider.telemetry.printable import printable
from tests.fixtures.metric_catalogue import CATALOGUE

DOCUMENTED = [
    "outbox_messages_enqueued_total",
    "outbox_messages_published_total",
    "outbox_publish_failures_total",
    "outbox_messages_delivered_total",
    "outbox_messages_refused_total",
    "outbox_messages_deferred_total",
    "outbox_messages_late_total",
    "outbox_clock_jumps_total",
    "outbox_messages_dead_lettered_total",
    "outbox_message_age_seconds",
    "outbox_publish_seconds",
    "outbox_settle_seconds",
    "outbox_claim_seconds",
    "outbox_pending",
    "outbox_retrying",
    "outbox_dead",
    "outbox_unsupported",
    "outbox_oldest_pending_seconds",
    "outbox_overdue_seconds",
    "outbox_relay_active",
    "outbox_relay_in_flight",
    "outbox_blocked_keys",
    "outbox_breaker_open",
    "outbox_replication_lag_bytes",
    "outbox_slot_retained_bytes",
    "outbox_slot_safe_wal_bytes",
    "outbox_slot_status",
]


def exported(metrics: Metrics) -> dict[str, dict[tuple[str, ...], float]]:
    """Every sample by its name and its label values in the catalogue's order, as a scraper reads them."""
    order = {spec.name: spec.labels for spec in CATALOGUE}
    samples: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        samples.setdefault(family.name, {})
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in order.get(sample.name) or sample.labels)
            samples.setdefault(sample.name, {})[labels] = sample.value
    return samples


def message(exchange: str, routing_key: str) -> Message:
    return Message(
        id=1,
        event_id="00000000-0000-0000-0000-000000000001",
        schema_version=1,
        event_type="order.placed",
        aggregate_type=None,
        aggregate_id=None,
        ordering_key=None,
        exchange=exchange,
        routing_key=routing_key,
        payload=b"",
        content_type="application/json",
        content_encoding="utf-8",
        headers="{}",
        properties="{}",
        declarations=None,
        context=None,
        created_at=0,
        expires_at=None,
        next_attempt_at=0,
        attempts=0,
        owner="relay",
    )


def test_every_documented_metric_is_in_the_catalogue_and_in_the_export() -> None:
    assert sorted(spec.name for spec in CATALOGUE) == sorted(DOCUMENTED)
    families = exported(Metrics("cdc-relay"))
    assert {spec.name.removesuffix("_total") for spec in CATALOGUE} <= families.keys()


def test_help_texts_say_seconds_and_bytes_where_the_name_does() -> None:
    for spec in CATALOGUE:
        for unit in ("seconds", "bytes"):
            if spec.name.endswith(unit):
                assert unit in spec.help.lower(), spec.name


def test_two_metrics_in_one_process_do_not_share_a_registry() -> None:
    relay, scheduler = Metrics("cdc-relay"), Metrics("retry-scheduler")
    relay.published(["orders"])
    assert exported(relay)["outbox_messages_published_total"] == {("cdc-relay", "orders"): 1}
    assert "outbox_messages_published_total" not in exported(scheduler)


def test_a_batch_is_counted_by_destination() -> None:
    metrics = Metrics("cdc-relay")
    metrics.published(["orders", "celery", "orders"])
    metrics.published([])
    counted = exported(metrics)["outbox_messages_published_total"]
    assert counted == {("cdc-relay", "orders"): 2, ("cdc-relay", "celery"): 1}


def test_the_destination_is_the_exchange_or_the_queue_of_the_default_exchange() -> None:
    assert destination(message("orders", "order.placed")) == "orders"
    assert destination(message("", "celery")) == "celery"


def test_destinations_beyond_the_limit_count_as_other_and_the_first_ones_keep_their_label() -> None:
    metrics = Metrics("cdc-relay")
    metrics.published(f"reply.{number}" for number in range(3 * MAX_LABEL_VALUES))
    metrics.published(["reply.0"])
    counted = exported(metrics)["outbox_messages_published_total"]
    assert len(counted) == MAX_LABEL_VALUES + 1
    assert counted["cdc-relay", OTHER] == 2 * MAX_LABEL_VALUES
    assert counted["cdc-relay", "reply.0"] == 2


def test_a_label_stays_the_same_after_the_cache_has_dropped_it() -> None:
    metrics = Metrics("cdc-relay")
    metrics.published(["first"])
    metrics.published(f"reply.{number}" for number in range(20 * MAX_LABEL_VALUES))
    metrics.published(["first"])
    assert exported(metrics)["outbox_messages_published_total"]["cdc-relay", "first"] == 2


def test_only_types_that_match_a_glob_have_a_label() -> None:
    metrics = Metrics("cdc-relay", labelled_types=("shop.*", "mail.send"))
    metrics.enqueued(["shop.pay", "shop.pay", "mail.send", "mail.sent", "tick"])
    metrics.dead_lettered("expired", "shop.pay")
    metrics.dead_lettered("expired", "tick", 2)
    samples = exported(metrics)
    assert samples["outbox_messages_enqueued_total"] == {("shop.pay",): 2, ("mail.send",): 1, (OTHER,): 2}
    assert samples["outbox_messages_dead_lettered_total"]["expired", "shop.pay"] == 1
    assert samples["outbox_messages_dead_lettered_total"]["expired", OTHER] == 2


def test_by_default_no_type_has_a_label_and_a_glob_for_all_is_bounded_too() -> None:
    silent, curious = Metrics("cdc-relay"), Metrics("cdc-relay", labelled_types=("*",))
    types = [f"type.{number}" for number in range(2 * MAX_LABEL_VALUES)]
    silent.enqueued(types)
    curious.enqueued(types)
    assert exported(silent)["outbox_messages_enqueued_total"] == {(OTHER,): len(types)}
    assert len(exported(curious)["outbox_messages_enqueued_total"]) == MAX_LABEL_VALUES + 1


def test_long_label_values_are_cut_and_control_characters_are_escaped() -> None:
    metrics = Metrics("cdc-relay", labelled_types=("*",))
    value = 'a"} 1\nfake_metric 7\\\x1b[2J\u202e'
    hostile = printable(value)
    metrics.enqueued([value, "x" * 100_000])
    samples = exported(metrics)
    assert samples["outbox_messages_enqueued_total"] == {
        (printable(hostile),): 1,
        ("x" * MAX_LABEL_LENGTH,): 1,
        (OTHER,): 0,
    }
    assert "fake_metric" not in samples


def test_every_error_of_the_policies_can_be_counted() -> None:
    metrics = Metrics("retry-scheduler")
    for name in POLICIES:
        metrics.failed(failure(name, "detail"), 3)
    counted = exported(metrics)["outbox_publish_failures_total"]
    assert counted == {("retry-scheduler", str(policy.kind), name): 3 for name, policy in POLICIES.items()}


def test_counters_that_alerts_watch_start_at_zero() -> None:
    samples = exported(Metrics("retry-scheduler"))
    assert samples["outbox_messages_dead_lettered_total"] == {(reason, OTHER): 0 for reason in DEAD_LETTER_REASONS}
    assert samples["outbox_messages_deferred_total"] == {(): 0}


def test_a_batch_of_ages_gives_the_same_as_the_reference_histogram() -> None:
    ages = [0.0, 0.0004, 0.0005, 0.00051, 0.001, 0.0049, 1.0, 3600.0, 3600.1, 1e9]
    reference = ReferenceHistogram(
        MESSAGE_AGE.name, MESSAGE_AGE.help, buckets=AGE_BUCKETS, registry=CollectorRegistry()
    )
    metrics = Metrics("cdc-relay")
    metrics.message_age.observe_many(ages[:5])
    metrics.message_age.observe_many([])
    metrics.message_age.observe_many(ages[5:-1])
    metrics.message_age.observe(ages[-1])
    for age in ages:
        reference.observe(age)
    (expected,), (got,) = reference.collect(), metrics.message_age.collect()
    wanted = [sample for sample in expected.samples if not sample.name.endswith("_created")]
    assert [(sample.name, sample.labels) for sample in got.samples] == [(s.name, s.labels) for s in wanted]
    assert [sample.value for sample in got.samples] == pytest.approx([sample.value for sample in wanted])


def test_age_buckets_reach_from_half_a_millisecond_to_an_hour() -> None:
    assert (AGE_BUCKETS[0], AGE_BUCKETS[-1]) == (0.0005, 3600)
    assert list(AGE_BUCKETS) == sorted(AGE_BUCKETS)


def test_a_negative_age_counts_as_zero_so_that_the_sum_never_decreases() -> None:
    metrics = Metrics("cdc-relay")
    metrics.message_age.observe_many([-5.0, 2.0])
    samples = exported(metrics)
    assert samples["outbox_message_age_seconds_sum"] == {(): 2.0}
    assert samples["outbox_message_age_seconds_bucket"]["0.0005",] == 1


def test_observations_from_several_threads_are_all_counted() -> None:
    metrics = Metrics("cdc-relay")

    def observe() -> None:
        for _ in range(100):
            metrics.publish_seconds.observe_many([0.001] * 50)

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert exported(metrics)["outbox_publish_seconds_count"] == {(): 4 * 50 * 100}


def test_a_gauge_has_no_sample_while_its_value_is_none() -> None:
    metrics = Metrics("cdc-relay")
    assert exported(metrics)["outbox_pending"] == {}
    metrics.pending.set(0)
    assert exported(metrics)["outbox_pending"] == {(): 0}
    metrics.pending.set(None)
    assert exported(metrics)["outbox_pending"] == {}


@pytest.mark.parametrize("status", SLOT_STATUSES)
def test_the_slot_has_one_status_at_a_time(status: str) -> None:
    metrics = Metrics("cdc-relay")
    assert exported(metrics)["outbox_slot_status"] == {}
    metrics.slot_status.set("lost")
    metrics.slot_status.set(status)
    assert exported(metrics)["outbox_slot_status"] == {(name,): float(name == status) for name in SLOT_STATUSES}


def test_a_slot_status_of_a_newer_server_is_unknown() -> None:
    metrics = Metrics("cdc-relay")
    metrics.slot_status.set("hibernating")
    assert exported(metrics)["outbox_slot_status"]["unknown",] == 1
