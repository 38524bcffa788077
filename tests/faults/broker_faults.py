"""Faults of RabbitMQ: a crash, a stopped process, alarms that block publishers, a queue that is deleted for a while."""

from __future__ import annotations

from random import Random

from outrider.embedded.rabbitmq import CONFIGURATION
from tests.faults.environment import Environment
from tests.faults.fault import Fault
from tests.faults.producer import EXCHANGE, QUEUES
from tests.fixtures.waiting import wait_for


class _BrokerFault(Fault):
    causes_duplicates = True  # confirms arrive late or never
    target = "RabbitMQ"
    touches = frozenset({"broker"})


class BrokerKilled(_BrokerFault):
    name = "RabbitMQ kill -9"
    lasts = (0.0, 2.0)

    def inject(self) -> None:
        self.environment.rabbit.kill()

    def heal(self) -> None:
        self.environment.rabbit.start()


class BrokerFrozen(_BrokerFault):
    name = "RabbitMQ SIGSTOP"
    lasts = (1.0, 5.0)

    def inject(self) -> None:
        self.environment.rabbit.suspend()

    def heal(self) -> None:
        self.environment.rabbit.resume()


class MemoryAlarm(_BrokerFault):
    """Publishers are blocked; consumers still receive messages."""

    name = "RabbitMQ memory alarm"
    lasts = (1.0, 5.0)

    def inject(self) -> None:
        self.environment.rabbit.ctl("set_vm_memory_high_watermark", "absolute", "1")

    def heal(self) -> None:
        self.environment.rabbit.ctl("set_vm_memory_high_watermark", CONFIGURATION["vm_memory_high_watermark.relative"])


class DiskAlarm(_BrokerFault):
    """The broker behaves as if its disk were nearly full."""

    name = "RabbitMQ disk alarm"
    lasts = (1.0, 5.0)

    def inject(self) -> None:
        self.environment.rabbit.ctl("set_disk_free_limit", "1000000GB")

    def heal(self) -> None:
        self.environment.rabbit.ctl("set_disk_free_limit", CONFIGURATION["disk_free_limit.absolute"])


class QueueDeleted(_BrokerFault):
    """
    A queue does not exist for a while: its messages cannot be routed, although they are not poison.

    It is unbound and drained first: a confirmed message that is deleted with its queue would be a loss that the outbox
    cannot prevent.
    """

    name = "queue deleted and recreated"
    lasts = (0.5, 2.0)
    causes_duplicates = False

    def __init__(self, environment: Environment, choice: Random) -> None:
        super().__init__(environment, choice)
        self.target = choice.choice(QUEUES)
        self.touches = frozenset({"broker", *(process.name for process in environment.processes.named("consumer"))})

    def inject(self) -> None:
        with self.environment.channel() as channel:
            channel.queue_unbind(self.target, EXCHANGE, self.target)
            wait_for(self._is_empty, message=f"{self.target} is not drained")
            channel.queue_delete(self.target)

    def heal(self) -> None:
        self.environment.declare(self.target)

    def _is_empty(self) -> bool:
        """No ready and no unacknowledged messages. AMQP itself reports only ready ones."""
        lines = self.environment.rabbit.ctl("list_queues", "name", "messages").splitlines()
        return [self.target, "0"] in (line.split() for line in lines)


BROKER_FAULTS = (BrokerKilled, BrokerFrozen, MemoryAlarm, DiskAlarm, QueueDeleted)
