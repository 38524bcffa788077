"""Faults of RabbitMQ: crash, alarms that block its publishers, silence, a queue that is gone for a while."""

from __future__ import annotations

from random import Random

from outrider.embedded.rabbitmq import CONFIGURATION
from tests.faults.fault import Fault
from tests.faults.producer import EXCHANGE, QUEUES
from tests.faults.world import World
from tests.fixtures.waiting import wait_for


class _OfBroker(Fault):
    repeats = True  # confirms do not arrive in time, or never
    target = "RabbitMQ"
    touches = frozenset({"broker"})


class BrokerKilled(_OfBroker):
    name = "RabbitMQ kill -9"
    lasts = (0.0, 2.0)

    def inject(self) -> None:
        self.world.rabbit.kill()

    def heal(self) -> None:
        self.world.rabbit.start()


class BrokerFrozen(_OfBroker):
    name = "RabbitMQ SIGSTOP"
    lasts = (1.0, 5.0)

    def inject(self) -> None:
        self.world.rabbit.suspend()

    def heal(self) -> None:
        self.world.rabbit.resume()


class MemoryAlarm(_OfBroker):
    """Publishers are blocked; consumers are served."""

    name = "RabbitMQ memory alarm"
    lasts = (1.0, 5.0)

    def inject(self) -> None:
        self.world.rabbit.ctl("set_vm_memory_high_watermark", "absolute", "1")

    def heal(self) -> None:
        self.world.rabbit.ctl("set_vm_memory_high_watermark", CONFIGURATION["vm_memory_high_watermark.relative"])


class DiskAlarm(_OfBroker):
    """As the broker sees it when its disk is nearly full."""

    name = "RabbitMQ disk alarm"
    lasts = (1.0, 5.0)

    def inject(self) -> None:
        self.world.rabbit.ctl("set_disk_free_limit", "1000000GB")

    def heal(self) -> None:
        self.world.rabbit.ctl("set_disk_free_limit", CONFIGURATION["disk_free_limit.absolute"])


class QueueDeleted(_OfBroker):
    """
    A queue is gone for a while: its messages cannot be routed, though they are no poison.

    It is unbound and drained first. A message that the broker has confirmed and that is then deleted with its queue is
    lost by whoever deleted it, and would hide what is asked here.
    """

    name = "queue deleted and recreated"
    lasts = (0.5, 2.0)
    repeats = False

    def __init__(self, world: World, choice: Random) -> None:
        super().__init__(world, choice)
        self.target = choice.choice(QUEUES)
        self.touches = frozenset({"broker", *(actor.name for actor in world.cast.named("consumer"))})

    def inject(self) -> None:
        with self.world.channel() as channel:
            channel.queue_unbind(self.target, EXCHANGE, self.target)
            wait_for(self._is_empty, message=f"{self.target} is not drained")
            channel.queue_delete(self.target)

    def heal(self) -> None:
        self.world.declare(self.target)

    def _is_empty(self) -> bool:
        """Neither ready nor unacknowledged messages; AMQP itself tells the former only."""
        lines = self.world.rabbit.ctl("list_queues", "name", "messages").splitlines()
        return [self.target, "0"] in (line.split() for line in lines)


BROKER_FAULTS = (BrokerKilled, BrokerFrozen, MemoryAlarm, DiskAlarm, QueueDeleted)
