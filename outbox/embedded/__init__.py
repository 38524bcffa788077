"""
Real servers for the demo and the tests, started from binaries on this machine: no Docker, no root, no configuration.

`Postgres`, `Valkey` and `RabbitMQ` are context managers over private servers on free loopback ports. They can be
stopped, killed, suspended and started again on the same data, and leave no process and no file behind, however the
program that uses them ends. They are for demonstrations and tests; nothing here is meant for production.
"""

from outbox.embedded.postgres import Postgres, available_versions
from outbox.embedded.process import EmbeddedServerError, free_port
from outbox.embedded.rabbitmq import RabbitMQ, find_rabbitmq
from outbox.embedded.server import EmbeddedServer
from outbox.embedded.valkey import Valkey, find_valkey

__all__ = [
    "EmbeddedServer",
    "EmbeddedServerError",
    "Postgres",
    "RabbitMQ",
    "Valkey",
    "available_versions",
    "find_rabbitmq",
    "find_valkey",
    "free_port",
]
