"""A worker and a broker that is killed, or whose user has few permissions."""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

import pytest

from outrider.consumer import Consumer
from outrider.consumer.errors import TopologyError
from outrider.consumer.topology import Topology, plan_topology
from outrider.embedded.rabbitmq import RabbitMQ
from outrider.errors import BrokerOutage
from tests.fixtures.broker import Broker
from tests.fixtures.servers import SharedRabbitMQ
from tests.fixtures.waiting import wait_for
from tests.fixtures.worker import Work

USER = "limited"
PASSWORD = "s3cret"


@pytest.fixture
def server(rabbitmq_server: SharedRabbitMQ) -> RabbitMQ:
    if rabbitmq_server.embedded is None:
        pytest.skip("users are made on the embedded RabbitMQ only")
    return rabbitmq_server.embedded


def test_a_worker_reconnects_after_the_broker_was_killed(disposable_rabbitmq: RabbitMQ) -> None:
    work = Work(Broker(disposable_rabbitmq.url))
    handled: list[str] = []
    began, release = threading.Event(), threading.Event()

    def note(event_id: str) -> None:
        if event_id == "during" and not began.is_set():
            began.set()
            assert release.wait(60)
        handled.append(event_id)

    with work.worker(Consumer(note, queue=work.queue)) as worker:
        work.publish(message_id="before")
        work.wait_until_processed("done")
        work.publish(message_id="during")
        assert began.wait(30)
        disposable_rabbitmq.kill()
        wait_for(lambda: worker.status()["role"] == "starting", deadline_seconds=60, message="the loss is not noticed")
        disposable_rabbitmq.start()
        wait_for(lambda: worker.status()["role"] == "active", deadline_seconds=60, message="it does not reconnect")
        release.set()  # it can no longer be acknowledged: the message is redelivered
        wait_for(lambda: handled.count("during") == 2, deadline_seconds=60, message=f"handled: {handled}")
        work.publish(message_id="after")
        wait_for(lambda: "after" in handled, deadline_seconds=60)
    assert sorted(handled) == ["after", "before", "during", "during"]
    assert work.broker.depth(work.queue) == 0
    work.close()


def test_with_declare_false_the_first_missing_queue_exchange_or_permission_is_named(
    work: Work, server: RabbitMQ
) -> None:
    consumer = Consumer(lambda body: 1 / 0, "order.*", queue=work.queue, retry_delays=("77ms",))
    topology = plan_topology([consumer])
    url = urlsplit(work.broker.url)._replace(netloc=f"{USER}:{PASSWORD}@127.0.0.1:{server.port}").geturl()
    _permit(server, write="nothing", read="nothing")

    def refusal(**options: bool) -> str:
        with pytest.raises(TopologyError) as error, work.worker(consumer, url=url, **options):
            pass
        assert PASSWORD not in str(error.value)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert refusal() == (
        "the broker user may not declare exchange outrider.dead: give it the configure permission, or create "
        "everything with deploy/terraform/consumer and start the worker with --no-declare (declare=False)"
    )
    _make(work.broker, topology, without=("exchange outrider.delay.77ms", "queue outrider.delay.77ms"))
    assert refusal(declare=False) == (
        "exchange outrider.delay.77ms does not exist: create it with deploy/terraform/consumer, or let the worker "
        "create it: start it without --no-declare (declare=True)"
    )
    _make(work.broker, topology, without=("queue outrider.delay.77ms",))
    assert refusal(declare=False).startswith("queue outrider.delay.77ms does not exist")
    _make(work.broker, topology)
    assert refusal(declare=False).startswith("the broker user may not publish to exchange outrider.dead")
    _permit(server, write="outrider[.]dead", read="nothing")
    assert "may not publish to exchange outrider.delay.77ms" in refusal(declare=False)
    _permit(server, write="outrider[.].*", read="nothing")
    assert refusal(declare=False).startswith(f"the broker user may not consume from queue {work.queue}")
    _permit(server, write="outrider[.].*", read=f"{work.queue}")
    with work.worker(consumer, url=url, declare=False):
        work.broker.publish(b"{}", exchange="amq.topic", routing_key="order.placed", message_id="e")
        work.wait_until_processed("retried")
        work.wait_until_processed("max attempts")
    assert work.broker.get_all(work.dead_letters, 1)[0].message_id == "e"


def test_an_unreachable_broker_or_a_refused_login_is_a_one_line_error_at_start(
    work: Work,
) -> None:
    consumer = Consumer(lambda body: None, queue=work.queue)
    port = urlsplit(work.broker.url).port
    with (
        pytest.raises(BrokerOutage, match="LoginRefused") as error,
        work.worker(consumer, url=f"amqp://guest:{PASSWORD}@127.0.0.1:{port}//"),
    ):
        pass
    assert PASSWORD not in str(error.value)
    with (
        pytest.raises(BrokerOutage, match="VhostRefused"),
        work.worker(consumer, url=f"amqp://guest:guest@127.0.0.1:{port}/nowhere"),
    ):
        pass
    with (
        pytest.raises(BrokerOutage, match="ConnectionRefused"),
        work.worker(consumer, url="amqp://guest:guest@127.0.0.1:1//"),
    ):
        pass


def _permit(server: RabbitMQ, *, write: str, read: str) -> None:
    """One call for both steps: each call starts an Erlang VM."""
    server.ctl(
        "eval",
        f'rabbit_auth_backend_internal:put_user(#{{name => <<"{USER}">>, password => <<"{PASSWORD}">>, '
        f'tags => <<"">>}}, <<"test">>), '
        f'rabbit_auth_backend_internal:set_permissions(<<"{USER}">>, <<"/">>, <<"^$">>, <<"^({write})$">>, '
        f'<<"^({read})$">>, <<"test">>).',
    )


def _make(broker: Broker, topology: Topology, without: tuple[str, ...] = ()) -> None:
    """Declare the topology as an administrator, except for `without`."""
    with broker.channel() as channel:
        for exchange in topology.exchanges:
            if not exchange.shared and f"exchange {exchange.name}" not in without:
                options = {"durable": True, "auto_delete": False, "arguments": dict(exchange.arguments)}
                channel.exchange_declare(exchange.name, exchange.type, **options)
        for queue in topology.queues:
            if f"queue {queue.name}" not in without:
                channel.queue_declare(queue.name, durable=True, auto_delete=False, arguments=dict(queue.arguments))
        for binding in topology.bindings:
            if f"queue {binding.queue}" not in without:
                channel.queue_bind(binding.queue, binding.exchange, binding.routing_key)
