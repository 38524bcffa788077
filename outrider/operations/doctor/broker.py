"""
The broker: reached for real, asked for publisher confirms and for the exchanges that messages go to. Publishes nothing
and declares nothing (declarations are passive).

Exchanges are looked for on AMQP brokers alone; elsewhere kombu's clients keep them, not the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from amqp.exceptions import ChannelError
from kombu import Exchange

from outrider.delivery.broker_url import AMQP_TRANSPORTS, address_of, kombu_clients, transport_of
from outrider.delivery.declarations import parse_declarations
from outrider.errors import UndecodableMessage
from outrider.failures import classify
from outrider.operations.doctor.finding import Finding, failed, ok, warning
from outrider.settings.tls import TlsOptions


@dataclass(frozen=True, slots=True)
class Route:
    """Where pending rows go, and what they declare before they are sent."""

    exchange: str
    declarations: str | None = None


class BrokerCheck:
    """SettingsError at once for a URL that is unusable; connects when asked for findings."""

    def __init__(
        self, broker_url: str, *, send_timeout_seconds: float, connect_timeout_seconds: float, tls: TlsOptions
    ) -> None:
        self._is_amqp = transport_of(broker_url) in AMQP_TRANSPORTS
        self._clients: list[Any] = kombu_clients(
            broker_url,
            send_timeout_seconds=send_timeout_seconds,
            connect_timeout_seconds=connect_timeout_seconds,
            heartbeat_seconds=0,
            tls=tls,
        )
        for client in self._clients if self._is_amqp else ():
            client.transport_options |= {"read_timeout": send_timeout_seconds, "write_timeout": send_timeout_seconds}

    def findings(self, routes: Sequence[Route]) -> Iterator[Finding]:
        """For every host of the URL; exchanges are asked for at the first that answers."""
        for client in self._clients:
            try:
                client.ensure_connection(max_retries=0, reraise_as_library_errors=False)
                channel = client.channel()  # on Redis it asks the server
                yield ok("broker", f"{address_of(client)} answers")
                if self._is_amqp:
                    yield _ask_for_confirms(channel)
                    yield from _look_for_exchanges(channel, routes)
                    routes = ()
            except Exception as error:  # what a transport raises is its own business: classify knows
                found = classify(error, connecting=True)
                yield failed("broker", f"{address_of(client)}: {found.text}", found.hint)
            finally:
                with suppress(Exception):
                    client.release()


def _ask_for_confirms(channel: Any) -> Finding:
    if not channel.connection.server_properties.get("capabilities", {}).get("publisher_confirms"):
        return failed("confirms", "this broker has none", "the services need publisher confirms: use RabbitMQ")
    channel.confirm_select()
    return ok("confirms", "available")


def _look_for_exchanges(channel: Any, routes: Sequence[Route]) -> Iterator[Finding]:
    wanted, declared = named_exchanges(routes)
    missing = []
    for name in sorted(wanted | declared):
        try:
            channel.exchange_declare(exchange=name, type="direct", passive=True)
        except ChannelError as error:  # py-amqp has opened the channel again
            refusal = classify(error)
            if refusal.error != "NotFound":
                yield warning("exchanges", f"cannot see {name}: {refusal.text}", refusal.hint)
            else:
                missing.append(name)
    yield from check_exchanges(wanted | declared, missing, declared)


def named_exchanges(routes: Iterable[Route]) -> tuple[set[str], set[str]]:
    """The exchanges that rows count on, and those that rows declare themselves. The default one is always there."""
    wanted: set[str] = set()
    declared: set[str] = set()
    for route in routes:
        own: set[str] = set()
        if route.declarations:
            try:
                for entity in parse_declarations(route.declarations):
                    own |= _exchanges_of(entity)
            except UndecodableMessage:
                pass  # the service says so when it sends the row
        declared |= own
        if route.exchange not in own:
            wanted.add(route.exchange)
    return _names(wanted), _names(declared - wanted)


def _names(found: Iterable[object]) -> set[str]:
    """Rows can hold anything: what is no name is left to the service that sends them."""
    return {name for name in found if isinstance(name, str) and name}


def _exchanges_of(entity: Any) -> set[str]:
    if isinstance(entity, Exchange):
        return {entity.name}
    bound = {entity.exchange.name} if entity.exchange else set()
    return bound | {binding.exchange.name for binding in entity.bindings}


def check_exchanges(asked: Iterable[str], missing: Sequence[str], declared: Iterable[str]) -> Iterator[Finding]:
    own = frozenset(declared)
    if names := [name for name in missing if name not in own]:
        yield failed(
            "exchanges",
            f"not on the broker: {', '.join(names)}; messages for them are refused",
            "declare them, or correct the routes of those who enqueue",
        )
    if names := [name for name in missing if name in own]:
        yield warning(
            "exchanges",
            f"not on the broker yet: {', '.join(names)}; the rows that go there declare them",
            "nothing, if the broker user may configure; else declare them",
        )
    if not missing:
        names = sorted(asked)
        yield ok("exchanges", f"all there: {', '.join(names)}" if names else "no pending row names one")
