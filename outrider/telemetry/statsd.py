"""
StatsD: sends the metrics of /metrics to a StatsD or DogStatsD agent over UDP, every `interval_seconds`.

Names are those of /metrics, after the prefix. Counters are sent as the increase since the last send; gauges as they
are, if they were set; histograms as two counters, `_count` and `_sum`, and as timings: `outbox_publish_seconds` is
`outbox_publish`, in milliseconds. Of the values of an interval at most TIMINGS are sent, chosen at random, with their
share as the sample rate, so that the agent counts right.

Labels are tags (`dogstatsd`) or, in their order, further parts of the name (`plain`); `service` is always the first. A
label whose name one of the given tags has gets the prefix `outbox_`: with the tag `service:shop`, the label `service`
is the tag `outbox_service`.

Runs on its own thread, so that the service never waits for it. A host that does not resolve or a full buffer costs one
warning, and the values are sent in the next interval. Packets that the network loses are lost: it is UDP. A client
library would bring nothing but the line format: it is made for code that sends each value at once.
"""

from __future__ import annotations

import math
import re
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, Self

from prometheus_client import CollectorRegistry

from outrider.telemetry.logs import get_logger
from outrider.telemetry.metrics import Histogram

MAX_PACKET_BYTES = 1432
"""Fits into one Ethernet frame with all headers."""
TIMINGS = 200
"""Of one histogram in one interval."""
SEND_SECONDS = 1.0
CLOSE_SECONDS = 3.0

Flavor = Literal["plain", "dogstatsd"]

_EXPORTED = re.compile(r"^(outbox|process)_")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_NOT_IN_A_TAG = re.compile(r"[\s,|#]")

log = get_logger(__name__)


class StatsD:
    """Sends one registry while the context is open, and once more at its end."""

    def __init__(
        self,
        registry: CollectorRegistry,
        address: tuple[str, int],
        *,
        service: str,
        flavor: Flavor = "plain",
        prefix: str = "",
        tags: Iterable[str] = (),
        timings: Iterable[Histogram] = (),
        interval_seconds: float = 10.0,
    ) -> None:
        self._registry = registry
        self._address = address
        self._service = service
        self._flavor = flavor
        self._prefix = f"{prefix.rstrip('.')}." if prefix else ""
        self._tags = tuple(tags)
        self._tag_names = {tag.partition(":")[0] for tag in self._tags}
        self._timings = tuple(timings)
        for histogram in self._timings:
            histogram.keep_values(TIMINGS)
        self._interval_seconds = interval_seconds
        self._sent: dict[str, float] = {}  # by name and tags: the value of the counter that the agent has
        self._failing = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="statsd", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Send the last values. An agent that cannot be reached delays the end by at most CLOSE_SECONDS."""
        self._stop.set()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stop.wait(self._interval_seconds)
            try:
                self._send()
            except OSError as error:
                if not self._failing:
                    log.warning("statsd_not_sent", host=self._address[0], port=self._address[1], error=str(error))
                self._failing = True
            except Exception:  # a bug must not end the thread: the next interval may succeed
                log.exception("statsd_failed")
            else:
                self._failing = False

    def _send(self) -> None:
        # Resolved each time: the agent's address may change.
        family, kind, protocol, _, target = socket.getaddrinfo(*self._address, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as connection:
            connection.settimeout(SEND_SECONDS)
            for packet, counted in _packets(self._lines()):
                connection.sendto(packet, target)
                self._sent |= counted

    def _lines(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Each line, and the counter value that counts as sent after the line was sent."""
        for family in self._registry.collect():
            if not _EXPORTED.match(family.name):
                continue
            for sample in family.samples:
                if not math.isfinite(sample.value):
                    continue
                head, suffix = self._identity(sample.name, {"service": self._service, **sample.labels})
                if family.type == "gauge":
                    yield f"{head}:{_number(sample.value)}|g{suffix}", {}
                elif sample.name.endswith(("_total", "_count", "_sum")):  # not buckets, not creation times
                    key = head + suffix
                    if added := sample.value - self._sent.get(key, 0.0):
                        yield f"{head}:{_number(added)}|c{suffix}", {key: sample.value}

        for histogram in self._timings:
            head, suffix = self._identity(histogram.name.removesuffix("_seconds"), {"service": self._service})
            values, share = histogram.take_values()
            rate = f"|@{_number(share)}" if share < 1 else ""
            for value in values:
                yield f"{head}:{_number(value * 1000)}|ms{rate}{suffix}", {}

    def _identity(self, name: str, labels: Mapping[str, str]) -> tuple[str, str]:
        """The part of the line before the value, and the part after its type."""
        if self._flavor == "plain":
            parts = (_NOT_IN_A_NAME.sub("_", value) for value in labels.values())
            return ".".join((self._prefix + name, *parts)), ""
        own = (
            f"{'outbox_' * (label in self._tag_names)}{label}:{_NOT_IN_A_TAG.sub('_', value)}"
            for label, value in labels.items()
        )
        return self._prefix + name, "|#" + ",".join((*self._tags, *own))


def _packets(lines: Iterable[tuple[str, dict[str, float]]]) -> Iterator[tuple[bytes, dict[str, float]]]:
    """Join lines into packets of at most MAX_PACKET_BYTES. A single line that is longer is left out."""
    packet, counted = b"", dict[str, float]()
    for text, counter in lines:
        line = text.encode()
        if len(line) > MAX_PACKET_BYTES:
            continue
        if packet and len(packet) + 1 + len(line) > MAX_PACKET_BYTES:
            yield packet, counted
            packet, counted = b"", {}
        packet = packet + b"\n" + line if packet else line
        counted |= counter
    if packet:
        yield packet, counted


def _number(value: float) -> str:
    """Without an exponent, which agents do not parse."""
    return f"{value:.9f}".rstrip("0").rstrip(".")
