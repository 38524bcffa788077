"""The queues, exchanges and bindings of a set of consumers, as values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.consumer import Consumer
from outrider.consumer.topology import BindingSpec, ExchangeSpec, plan_topology


def consumer(*keys: str, queue: str, **options: Any) -> Consumer[..., Any]:
    return Consumer(lambda body: None, *keys, queue=queue, **options)


def test_consumers_share_delays_and_have_their_own_dead_letters() -> None:
    topology = plan_topology(
        [
            consumer("order.*", "refund.#", queue="billing", exchange="events", retry_delays=("1s", "1m")),
            consumer("order.placed", queue="mail", exchange="shop", retry_delays=("1s",)),
        ]
    )
    queues = {queue.name: queue.arguments for queue in topology.queues}
    assert set(queues) == {
        *("billing", "billing.dlq", "mail", "mail.dlq"),
        *("outrider.delay.1s", "outrider.delay.1m", "outrider.unreturned"),
    }
    assert all(arguments["x-queue-type"] == "quorum" for arguments in queues.values())
    assert queues["outrider.delay.1m"]["x-message-ttl"] == 60_000
    assert ExchangeSpec("events", "topic", shared=True) in topology.exchanges
    assert ExchangeSpec("shop", "topic", shared=True) in topology.exchanges
    assert set(topology.bindings) >= {
        BindingSpec("events", "billing", "order.*"),
        BindingSpec("events", "billing", "refund.#"),
        BindingSpec("shop", "mail", "order.placed"),
        BindingSpec("outrider.return", "mail", "mail"),
        BindingSpec("outrider.dead", "mail.dlq", "mail"),
    }
    assert topology.published_exchanges == ("outrider.dead", "outrider.delay.1s", "outrider.delay.1m")


def test_a_message_that_the_broker_buries_goes_to_the_dead_letter_queue_of_its_consumer() -> None:
    (queue,) = (each for each in plan_topology([consumer(queue="billing")]).queues if each.name == "billing")
    assert queue.arguments["x-dead-letter-exchange"] == "outrider.dead"
    assert queue.arguments["x-dead-letter-routing-key"] == "billing"
    assert queue.arguments["x-dead-letter-strategy"] == "at-least-once"


def test_a_consumer_without_routing_keys_needs_no_events_exchange() -> None:
    assert not any(exchange.shared for exchange in plan_topology([consumer(queue="billing")]).exchanges)


def test_terraform_creates_what_a_worker_would_declare() -> None:
    text = (Path(__file__).parents[2] / "deploy/terraform/consumer/main.tf").read_text()
    topology = plan_topology([consumer("order.*", queue="billing", retry_delays=("1s",))])
    own = [exchange for exchange in topology.exchanges if not exchange.shared]
    for name in {*(exchange.name for exchange in own), *(queue.name for queue in topology.queues)}:
        written = name.replace("delay.1s", "delay.${each.key}").replace("billing", "${each.key}")
        assert f'"{written}"' in text or written == "${each.key}", name
    for arguments in (*(queue.arguments for queue in topology.queues), *(exchange.arguments for exchange in own)):
        for argument, value in arguments.items():
            assert f'"{argument}"' in text
            if isinstance(value, int) and argument != "x-message-ttl":
                assert f"= {value}\n" in text
