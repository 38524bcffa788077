"""
Real servers for the demo and the tests, started from binaries on this machine: no Docker, no root, no configuration.

`Postgres`, `Valkey` and `RabbitMQ` are context managers over private servers on free loopback ports. They can be
stopped, killed, suspended and started again on the same data. Their processes and files are removed, however the
program that uses them ends. For demonstrations and tests only, not for production.

Names are imported on first use, so that `python -m outrider.embedded.rabbitmq` runs its module only once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.embedded.postgres import Postgres, available_versions
    from outrider.embedded.process import EmbeddedServerError, free_port
    from outrider.embedded.rabbitmq import RabbitMQ, find_rabbitmq
    from outrider.embedded.server import EmbeddedServer
    from outrider.embedded.valkey import Valkey, find_valkey

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

_MODULES = {
    "EmbeddedServer": "server",
    "EmbeddedServerError": "process",
    "Postgres": "postgres",
    "RabbitMQ": "rabbitmq",
    "Valkey": "valkey",
    "available_versions": "postgres",
    "find_rabbitmq": "rabbitmq",
    "find_valkey": "valkey",
    "free_port": "process",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
