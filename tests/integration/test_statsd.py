"""StatsD: what a real UDP socket receives from a registry and from a whole service."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from outrider.errors import SettingsError
from outrider.failures import failure
from outrider.settings.loading import load_settings
from outrider.settings.relay import RelaySettings
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.statsd import MAX_PACKET_BYTES, TIMINGS, StatsD
from tests.fixtures.broker import Broker
from tests.fixtures.metric_catalogue import CATALOGUE
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

NEEDED = {"database_url": "postgresql://localhost/x", "broker_url": "amqp://localhost//"}
NEVER = 3600.0  # an interval that does not come: what arrives was sent at the end


class Agent:
    """Listens and sums up like a StatsD agent."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.packets: list[bytes] = []

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()

    def lines(self) -> list[str]:
        while True:
            try:
                self.packets.append(self._socket.recv(65536))
            except BlockingIOError:
                return b"\n".join(self.packets).decode().splitlines()

    def values(self) -> dict[str, float]:
        """By name and tags: the sum of a counter, the last value of a gauge."""
        values: dict[str, float] = {}
        for line in self.lines():
            head, kind, *tags = line.split("|")
            name, _, number = head.rpartition(":")
            key = "|".join((name, *tags))
            values[key] = float(number) + (values.get(key, 0.0) if kind == "c" else 0.0)
        return values


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.close()


def test_plain_statsd_gets_counters_once_gauges_and_labels_as_parts_of_the_name(agent: Agent) -> None:
    metrics = Metrics("relay")
    metrics.published(["orders", "orders", "shop.events"])
    metrics.relay_active.set(1)
    metrics.slot_retained_bytes.set(5_000_000_000_000)
    with StatsD(metrics.registry, agent.address, service="relay", prefix="shop", interval_seconds=0.01):
        orders = "shop.outbox_messages_published_total.relay.orders"
        wait_for(lambda: agent.values().get(orders) == 2)
        metrics.published(["orders"])
        metrics.publish_seconds.observe_many([0.25, 0.5])
        wait_for(lambda: agent.values().get(orders) == 3)
        wait_for(lambda: agent.values().get("shop.outbox_publish_seconds_sum.relay") == 0.75)
    values = agent.values()
    assert values[orders] == 3
    assert values["shop.outbox_messages_published_total.relay.shop_events"] == 1
    assert values["shop.outbox_publish_seconds_count.relay"] == 2
    assert values["shop.outbox_relay_active.relay"] == 1
    assert values["shop.outbox_slot_retained_bytes.relay"] == 5_000_000_000_000
    # Nobody has set it: unknown, not 0.
    assert not [name for name in values if "outbox_pending" in name]


def test_dogstatsd_gets_labels_and_given_tags_as_tags(agent: Agent) -> None:
    metrics = Metrics("scheduler")
    metrics.failed(failure("NoRoute", "nobody listens"))
    metrics.published(["a,b|c#d e"])
    metrics.pending.set(7)
    with StatsD(
        metrics.registry,
        agent.address,
        service="scheduler",
        flavor="dogstatsd",
        tags=["env:prod"],
        interval_seconds=NEVER,
    ):
        pass
    values = agent.values()
    assert values["outbox_pending|#env:prod,service:scheduler"] == 7
    assert values["outbox_publish_failures_total|#env:prod,service:scheduler,kind:failed,error:NoRoute"] == 1
    assert values["outbox_messages_published_total|#env:prod,service:scheduler,destination:a_b_c_d_e"] == 1


def test_many_series_are_split_into_packets_that_fit_a_frame(agent: Agent) -> None:
    metrics = Metrics("relay")
    names = [f"exchange-{number:03}-{'ü' * 40}" for number in range(100)]
    metrics.published(names)
    bridge = StatsD(metrics.registry, agent.address, service="relay", flavor="dogstatsd", interval_seconds=NEVER)
    with bridge:
        pass
    published = [value for key, value in agent.values().items() if key.startswith("outbox_messages_published_total")]
    assert published == [1] * 100
    assert len(agent.packets) > 5
    assert max(map(len, agent.packets)) <= MAX_PACKET_BYTES


def test_an_agent_that_cannot_be_reached_blocks_nothing_and_no_count_is_lost(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics("relay")
    metrics.published(["orders"])
    resolve, refused = socket.getaddrinfo, []

    def no_such_name(*arguments: object, **options: object) -> object:
        refused.append(arguments)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_such_name)
    with StatsD(metrics.registry, agent.address, service="relay", interval_seconds=0.01):
        wait_for(lambda: len(refused) >= 3)
        assert agent.lines() == []
        metrics.published(["orders"])
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        wait_for(lambda: agent.values().get("outbox_messages_published_total.relay.orders") == 2)


@pytest.mark.parametrize(
    "address", ["localhost", "localhost:0", "localhost:99999", ":8125", "[::1:8125", "a@b:1", "h:1/x"]
)
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(SettingsError, match="statsd_address: must be host:port, such as"):
        load_settings(RelaySettings, {**NEEDED, "statsd_address": address})


def test_an_address_may_be_ipv6_and_tags_need_dogstatsd() -> None:
    assert load_settings(RelaySettings, {**NEEDED, "statsd_address": "[::1]:8125"}).statsd_target == ("::1", 8125)
    with pytest.raises(SettingsError, match="statsd_tags: plain StatsD has no tags: set statsd_flavor to dogstatsd"):
        load_settings(RelaySettings, {**NEEDED, "statsd_tags": ["env:prod"]})


def test_a_service_sends_its_metrics_and_the_last_of_them_at_its_end(
    stage: Stage, rabbit: Broker, agent: Agent
) -> None:
    queue = rabbit.declare_queue()
    host, port = agent.address
    relay = stage.start_relay(
        rabbit.url,
        statsd_address=f"{host}:{port}",
        statsd_flavor="dogstatsd",
        statsd_prefix="shop",
        statsd_interval_seconds=0.2,
    )
    stage.insert(queue, 20)
    stage.wait_until_empty()
    published = f"shop.outbox_messages_published_total|#service:relay,destination:{queue}"
    wait_for(lambda: agent.values().get(published) == 20, deadline_seconds=60)
    wait_for(lambda: agent.values().get("shop.outbox_relay_active|#service:relay") == 1, deadline_seconds=60)
    assert relay.stop() == 0
    values = agent.values()
    assert values[published] == 20
    assert values["shop.outbox_relay_active|#service:relay"] == 0
    names = {key.split("|")[0] for key in values}
    known = {f"shop.{spec.name}{suffix}" for spec in CATALOGUE for suffix in ("", "_count", "_sum")}
    timings = {f"shop.{spec.name.removesuffix('_seconds')}" for spec in CATALOGUE if spec.buckets}
    assert {name for name in names if name.startswith("shop.outbox_")} <= known | timings
    assert any(line.startswith("shop.outbox_publish:") and "|ms" in line for line in agent.lines())
    assert "shop.process_resident_memory_bytes" in names


def test_timings_are_sent_as_timings_with_a_sample_rate_where_there_are_many(agent: Agent) -> None:
    metrics = Metrics("relay")
    histograms = metrics.histograms
    with StatsD(metrics.registry, agent.address, service="relay", timings=histograms, interval_seconds=NEVER):
        metrics.publish_seconds.observe_many([0.25, 0.0015])
        metrics.settle_seconds.observe_many([0.001 * number for number in range(4 * TIMINGS)])
    lines = agent.lines()
    assert [line for line in lines if line.startswith("outbox_publish.")] == [
        "outbox_publish.relay:250|ms",
        "outbox_publish.relay:1.5|ms",
    ]
    sampled = [line for line in lines if line.startswith("outbox_settle.")]
    assert len(sampled) == TIMINGS
    assert all(line.endswith("|ms|@0.25") for line in sampled)
    largest = max(float(line.partition(":")[2].partition("|")[0]) for line in sampled)
    assert largest > TIMINGS, "only the first values were kept"


def test_counters_have_a_tag_for_the_type_of_the_tasks_that_are_selected(agent: Agent) -> None:
    metrics = Metrics("relay", ["shop.*"])
    with StatsD(metrics.registry, agent.address, service="relay", flavor="dogstatsd", interval_seconds=NEVER):
        metrics.delivered(["shop.bill", "shop.bill", "other.task"])
        metrics.refused("shop.bill")
    values = agent.values()
    assert values["outbox_messages_delivered_total|#service:relay,type:shop.bill"] == 2
    assert values["outbox_messages_delivered_total|#service:relay,type:other"] == 1
    assert values["outbox_messages_refused_total|#service:relay,type:shop.bill"] == 1


def test_many_constant_tags_are_allowed_and_one_called_service_clashes_with_nothing(agent: Agent) -> None:
    tags = ["service:shop", "env:prod", "team:a", "region:eu", "zone:1", "tier:2"]
    given = {**NEEDED, "statsd_flavor": "dogstatsd", "statsd_tags": tags}
    settings = load_settings(RelaySettings, given)
    metrics = Metrics("relay")
    metrics.pending.set(7)
    with StatsD(
        metrics.registry,
        agent.address,
        service="relay",
        flavor="dogstatsd",
        tags=settings.statsd_tags,
        interval_seconds=NEVER,
    ):
        pass
    expected = "outbox_pending|#service:shop,env:prod,team:a,region:eu,zone:1,tier:2,outbox_service:relay"
    assert agent.values()[expected] == 7
    with pytest.raises(SettingsError, match="statsd_tags: must be at most 900 bytes together"):
        load_settings(RelaySettings, {**given, "statsd_tags": [f"tag{number}:{'x' * 90}" for number in range(10)]})
