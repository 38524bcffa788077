"""
Metrics of the two services, for Prometheus: every name, label, bucket and help text of theirs is in this module.

A process has one Metrics with its own registry; nothing is registered globally. All methods are thread-safe. They take
batches, because the relay confirms tens of thousands of messages a second: a value costs 1.4 µs in prometheus_client's
histogram, and 0.13 µs in the one here.

The number of time series is bounded. The first MAX_LABEL_VALUES destinations (an exchange, or a queue of the default
exchange) have their own label; a message type has one only if it matches a glob of the setting labelled_types. All
others count as `other`. The errors are those of the table in outrider.failures.

A gauge that was never set has no sample, because "unknown" is not 0; its name is exported nevertheless. The services
set the gauges: this module reads neither the database nor the broker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import accumulate
from random import random
from threading import Lock
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from outrider.failures import Failure
from outrider.storage.decision import DEAD_LETTER_REASONS
from outrider.storage.message import Message
from outrider.telemetry.printable import printable

MAX_LABEL_VALUES = 100
MAX_LABEL_LENGTH = 120
LABELS_REMEMBERED = 4 * MAX_LABEL_VALUES
"""Size of the cache from values to labels: larger than MAX_LABEL_VALUES, because many values share OTHER."""
OTHER = "other"

SLOT_STATUSES = ("reserved", "extended", "unreserved", "lost", "missing", "unknown")

_MILLISECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
STEP_BUCKETS = (*_MILLISECONDS, 1.0, 2.5, 5.0, 10.0, 30.0)
AGE_BUCKETS = (*STEP_BUCKETS, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


class Spec(NamedTuple):
    """Name, help, labels and buckets of one metric."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


ENQUEUED = Spec("outbox_messages_enqueued_total", "Messages that the relay read from the WAL.", ("type",))
PUBLISHED = Spec("outbox_messages_published_total", "Messages that the broker confirmed.", ("service", "destination"))
FAILURES = Spec(
    "outbox_publish_failures_total",
    "Publishes that failed, by kind (outage, failed, permanent) and error.",
    ("service", "kind", "error"),
)
DELIVERED = Spec("outbox_messages_delivered_total", "Messages that the broker confirmed, by type.", ("service", "type"))
REFUSED = Spec("outbox_messages_refused_total", "Messages that the broker refused, by type.", ("service", "type"))
DEFERRED = Spec(
    "outbox_messages_deferred_total",
    "Messages left for later without an attempt spent: outage, hand-over, blocked key.",
)
LATE = Spec(
    "outbox_messages_late_total",
    "Messages that the relay left to the scheduler because it read them too late, close to their hand-over.",
)
CLOCK_JUMPS = Spec("outbox_clock_jumps_total", "Jumps of the database's clock by a second or more, forward or back.")
DEAD_LETTERED = Spec("outbox_messages_dead_lettered_total", "Messages buried, by reason.", ("reason", "type"))
MESSAGE_AGE = Spec(
    "outbox_message_age_seconds", "Seconds from the commit of a message to the broker's confirm.", buckets=AGE_BUCKETS
)
PUBLISH_SECONDS = Spec(
    "outbox_publish_seconds", "Seconds from the send of a message to the broker's confirm.", buckets=STEP_BUCKETS
)
SETTLE_SECONDS = Spec("outbox_settle_seconds", "Seconds that one settle of a batch took.", buckets=STEP_BUCKETS)
CLAIM_SECONDS = Spec("outbox_claim_seconds", "Seconds that one claim of due rows took.", buckets=STEP_BUCKETS)
PENDING = Spec("outbox_pending", "Messages in the outbox, not delivered yet.")
RETRYING = Spec("outbox_retrying", "Messages in the outbox that failed at least once.")
DEAD = Spec("outbox_dead", "Messages among the dead letters.")
UNSUPPORTED = Spec("outbox_unsupported", "Pending messages that this version cannot read: they are not sent.")
OLDEST_PENDING = Spec("outbox_oldest_pending_seconds", "Age in seconds of the oldest message that is not delayed.")
OVERDUE = Spec("outbox_overdue_seconds", "Seconds for which the longest due message has been due.")
RELAY_ACTIVE = Spec("outbox_relay_active", "1 while this relay streams from the slot, 0 while it stands by.")
RELAY_IN_FLIGHT = Spec("outbox_relay_in_flight", "Messages that the relay read and did not settle yet.")
BLOCKED_KEYS = Spec("outbox_blocked_keys", "Ordering keys that wait for the scheduler to deliver an earlier message.")
BREAKER_OPEN = Spec(
    "outbox_breaker_open", "1 while the scheduler's circuit breaker is not closed (broker outage), else 0."
)
REPLICATION_LAG = Spec(
    "outbox_replication_lag_bytes", "Bytes of WAL between the server's end and the confirmed position."
)
SLOT_RETAINED = Spec("outbox_slot_retained_bytes", "Bytes of WAL that the slot keeps on the server's disk.")
SLOT_SAFE_WAL = Spec(
    "outbox_slot_safe_wal_bytes", "Bytes of WAL until the slot may be lost; absent where the server sets no limit."
)
SLOT_STATUS = Spec("outbox_slot_status", "1 for the wal_status that the slot has, 0 for the others.", ("status",))


class Metrics:
    """The metrics of one service. `labelled_types`: globs of the message types that have their own label."""

    def __init__(self, service: str, labelled_types: Collection[str] = ()) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._service = service
        self._destination_label = _bounded_label()
        self._type_label = _bounded_label(labelled_types)
        self._enqueued = self._counter(ENQUEUED)
        self._published = self._counter(PUBLISHED)
        self._failures = self._counter(FAILURES)
        self._delivered = self._counter(DELIVERED)
        self._refused = self._counter(REFUSED)
        self._deferred = self._counter(DEFERRED)
        self._late = self._counter(LATE)
        self._clock_jumps = self._counter(CLOCK_JUMPS)
        self._dead_lettered = self._counter(DEAD_LETTERED)
        self.message_age = Histogram(MESSAGE_AGE, registry)
        self.publish_seconds = Histogram(PUBLISH_SECONDS, registry)
        self.settle_seconds = Histogram(SETTLE_SECONDS, registry)
        self.claim_seconds = Histogram(CLAIM_SECONDS, registry)
        self.pending = Gauge(PENDING, registry)
        self.retrying = Gauge(RETRYING, registry)
        self.dead = Gauge(DEAD, registry)
        self.unsupported = Gauge(UNSUPPORTED, registry)
        self.oldest_pending_seconds = Gauge(OLDEST_PENDING, registry)
        self.overdue_seconds = Gauge(OVERDUE, registry)
        self.relay_active = Gauge(RELAY_ACTIVE, registry)
        self.relay_in_flight = Gauge(RELAY_IN_FLIGHT, registry)
        self.blocked_keys = Gauge(BLOCKED_KEYS, registry)
        self.breaker_open = Gauge(BREAKER_OPEN, registry)
        self.replication_lag_bytes = Gauge(REPLICATION_LAG, registry)
        self.slot_retained_bytes = Gauge(SLOT_RETAINED, registry)
        self.slot_safe_wal_bytes = Gauge(SLOT_SAFE_WAL, registry)
        self.slot_status = StatusGauge(SLOT_STATUS, registry, SLOT_STATUSES)
        # Start at 0: PromQL's increase() ignores the step from "no series" to 1, and so the first dead letter.
        for reason in DEAD_LETTER_REASONS:
            self._dead_lettered.labels(reason, OTHER)
        self._enqueued.labels(OTHER)
        # Cached: finding a series by its labels costs more than counting.
        self._enqueued_of = lru_cache(LABELS_REMEMBERED)(lambda each: self._enqueued.labels(self._type_label(each)))
        self._delivered_of = lru_cache(LABELS_REMEMBERED)(
            lambda each: self._delivered.labels(service, self._type_label(each))
        )
        self._published_to = lru_cache(LABELS_REMEMBERED)(
            lambda each: self._published.labels(service, self._destination_label(each))
        )

    @property
    def histograms(self) -> tuple[Histogram, ...]:
        return self.message_age, self.publish_seconds, self.settle_seconds, self.claim_seconds

    def enqueued(self, types: Iterable[str]) -> None:
        """Count messages that were read from the WAL, given the type of each."""
        for event_type, count in _tally(types).items():
            self._enqueued_of(event_type).inc(count)

    def published(self, destinations: Iterable[str]) -> None:
        """Count messages that the broker confirmed, given the destination of each (see `destination`)."""
        for name, count in _tally(destinations).items():
            self._published_to(name).inc(count)

    def failed(self, failure: Failure, count: int = 1) -> None:
        self._failures.labels(self._service, str(failure.kind), failure.error).inc(count)

    def delivered(self, types: Iterable[str]) -> None:
        """Count messages that the broker confirmed, given the type of each."""
        for event_type, count in _tally(types).items():
            self._delivered_of(event_type).inc(count)

    def refused(self, event_type: str) -> None:
        """Count a message that the broker refused."""
        self._refused.labels(self._service, self._type_label(event_type)).inc()

    def deferred(self, count: int) -> None:
        self._deferred.inc(count)

    def late(self, count: int) -> None:
        self._late.inc(count)

    def clock_jumped(self) -> None:
        self._clock_jumps.inc()

    def dead_lettered(self, reason: str, event_type: str, count: int = 1) -> None:
        self._dead_lettered.labels(reason, self._type_label(event_type)).inc(count)

    def _counter(self, spec: Spec) -> Counter:
        return Counter(spec.name, spec.help, spec.labels, registry=self.registry)


def destination(message: Message) -> str:
    """The destination of a message as a label: its exchange, or its queue if that is the default exchange."""
    return message.exchange or message.routing_key


class Histogram:
    """A histogram without labels that takes values in batches."""

    def __init__(self, spec: Spec, registry: CollectorRegistry) -> None:
        self.name = spec.name
        self._spec = spec
        self._bounds = spec.buckets
        self._names = [*map(floatToGoString, spec.buckets), "+Inf"]
        self._counts = [0] * len(self._names)
        self._sum = 0.0
        self._lock = Lock()
        self._most_kept = 0
        self._kept: list[float] = []
        self._seen = 0  # values since the last `take_values`
        registry.register(self)

    def keep_values(self, most: int) -> None:
        """From now on keep up to `most` values, for `take_values`: a random choice where there are more."""
        self._most_kept = most

    def take_values(self) -> tuple[list[float], float]:
        """The values that were kept since the last call, and their share of all values."""
        with self._lock:
            kept, seen = self._kept, self._seen
            self._kept, self._seen = [], 0
        return kept, len(kept) / seen if seen else 1.0

    def observe(self, seconds: float) -> None:
        self.observe_many((seconds,))

    def observe_many(self, values: Sequence[float]) -> None:
        """Values in seconds. A negative value (clocks differ) counts as 0: the sum must never decrease."""
        bounds, counts = self._bounds, self._counts
        with self._lock:
            for value in values:
                counts[bisect_left(bounds, value)] += 1
            if self._most_kept:
                self._keep(values)
            self._sum += sum(values) if min(values, default=0.0) >= 0.0 else sum(value for value in values if value > 0)

    def _keep(self, values: Sequence[float]) -> None:
        kept, most = self._kept, self._most_kept
        for value in values:
            self._seen += 1
            if len(kept) < most:
                kept.append(max(0.0, value))
            elif (place := int(random() * self._seen)) < most:  # noqa: S311  # every value has the same chance
                kept[place] = max(0.0, value)

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            counts, total = self._counts.copy(), self._sum
        buckets = list(zip(self._names, map(float, accumulate(counts)), strict=True))
        return [HistogramMetricFamily(self._spec.name, self._spec.help, buckets, total)]


class Gauge:
    """A value that may be unknown: None, the initial value, exports no sample."""

    def __init__(self, spec: Spec, registry: CollectorRegistry) -> None:
        self._spec = spec
        self.value: float | None = None
        registry.register(self)

    def set(self, value: float | None) -> None:
        self.value = value

    def collect(self) -> Iterable[Metric]:
        return [GaugeMetricFamily(self._spec.name, self._spec.help, self.value)]


class StatusGauge:
    """One of several statuses: a sample for each, 1 for the current one. An unknown status counts as the last one."""

    def __init__(self, spec: Spec, registry: CollectorRegistry, statuses: Sequence[str]) -> None:
        self._spec = spec
        self._statuses = statuses
        self.value: str | None = None
        registry.register(self)

    def set(self, status: str | None) -> None:
        self.value = status if status is None or status in self._statuses else self._statuses[-1]

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(self._spec.name, self._spec.help, labels=self._spec.labels)
        current = self.value
        if current is not None:
            for status in self._statuses:
                family.add_metric([status], float(status == current))
        return [family]


def _tally(values: Iterable[str]) -> dict[str, int]:
    """Like collections.Counter, which is much slower for a few values."""
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def _bounded_label(globs: Collection[str] | None = None) -> Callable[[str], str]:
    """A function from value to label: the value if it matches a glob (None: always) and labels are left, else OTHER."""
    used: set[str] = set()
    lock = Lock()

    # The cache is bounded too: there may be any number of types that do not match.
    @lru_cache(maxsize=LABELS_REMEMBERED)
    def label(value: str) -> str:
        if globs is not None and not any(fnmatchcase(value, glob) for glob in globs):
            return OTHER
        cut = printable(value[:MAX_LABEL_LENGTH])[:MAX_LABEL_LENGTH]
        with lock:
            if cut not in used and len(used) >= MAX_LABEL_VALUES:
                return OTHER
            used.add(cut)
        return cut

    return label
