"""
The broker: can it be reached, does it support publisher confirms, do the exchanges of pending messages exist?

Connects to every host of broker_url. Publishes nothing, and declares nothing (declarations are passive). Exchanges are
checked only on AMQP brokers: with other transports they exist in kombu, not on the server.
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
from outrider.operations.doctor.options import DoctorSettings


@dataclass(frozen=True, slots=True)
class Route:
    """The exchange of pending rows, and what these rows declare before they are published."""

    exchange: str
    declarations: str | None = None


class BrokerCheck:
    """An unusable URL raises SettingsError here; `findings` connects."""

    def __init__(self, broker_url: str, settings: DoctorSettings) -> None:
        timeout = settings.send_timeout_seconds
        self._is_amqp = transport_of(broker_url) in AMQP_TRANSPORTS
        self._clients: list[Any] = kombu_clients(
            broker_url,
            send_timeout_seconds=timeout,
            connect_timeout_seconds=settings.connect_timeout_seconds,
            heartbeat_seconds=0,
            tls=settings.broker_tls,
        )
        for client in self._clients if self._is_amqp else ():
            client.transport_options |= {"read_timeout": timeout, "write_timeout": timeout}

    def findings(self, routes: Sequence[Route]) -> Iterator[Finding]:
        """Findings of every host of the URL. Exchanges are checked on the first host that answers."""
        for client in self._clients:
            try:
                client.ensure_connection(max_retries=0, reraise_as_library_errors=False)
                channel = client.channel()  # on Redis this sends a command to the server
                yield ok("broker", f"{address_of(client)} answers")
                if self._is_amqp:
                    yield _check_confirms(channel)
                    yield from _find_exchanges(channel, routes)
                    routes = ()
            except Exception as error:  # each transport raises its own errors: `classify` knows them
                failure = classify(error, connecting=True)
                yield failed("broker", f"{address_of(client)}: {failure.text}", failure.hint)
            finally:
                with suppress(Exception):
                    client.release()


def _check_confirms(channel: Any) -> Finding:
    if not channel.connection.server_properties.get("capabilities", {}).get("publisher_confirms"):
        return failed("confirms", "this broker has no publisher confirms", "the services need them: use RabbitMQ")
    channel.confirm_select()
    return ok("confirms", "available")


def _find_exchanges(channel: Any, routes: Sequence[Route]) -> Iterator[Finding]:
    expected, declared_by_rows = exchanges_of_routes(routes)
    missing = []
    for name in sorted(expected | declared_by_rows):
        try:
            channel.exchange_declare(exchange=name, type="direct", passive=True)
        except ChannelError as error:  # py-amqp has opened the channel again
            refusal = classify(error)
            if refusal.error != "NotFound":
                yield warning("exchanges", f"{name} could not be checked: {refusal.text}", refusal.hint)
            else:
                missing.append(name)
    yield from check_exchanges(expected | declared_by_rows, missing, declared_by_rows)


def exchanges_of_routes(routes: Iterable[Route]) -> tuple[set[str], set[str]]:
    """The exchanges that must exist, and those that the rows declare themselves. The default exchange always exists."""
    expected: set[str] = set()
    declared: set[str] = set()
    for route in routes:
        own: set[str] = set()
        with suppress(UndecodableMessage):  # the service reports it when it publishes the row
            for entity in parse_declarations(route.declarations) if route.declarations else ():
                own |= _exchanges_of(entity)
        declared |= own
        if route.exchange not in own:
            expected.add(route.exchange)
    return _valid_names(expected), _valid_names(declared - expected)


def _valid_names(found: Iterable[object]) -> set[str]:
    """Rows can hold anything as a name; the service that publishes them reports what is not a name."""
    return {name for name in found if isinstance(name, str) and name}


def _exchanges_of(entity: Any) -> set[str]:
    if isinstance(entity, Exchange):
        return {entity.name}
    bound = {entity.exchange.name} if entity.exchange else set()
    return bound | {binding.exchange.name for binding in entity.bindings}


def check_exchanges(expected: Iterable[str], missing: Sequence[str], declared: Iterable[str]) -> Iterator[Finding]:
    """`declared`: those that the rows declare themselves."""
    own = frozenset(declared)
    if names := [name for name in missing if name not in own]:
        yield failed(
            "exchanges",
            f"not on the broker: {', '.join(names)}; messages for them are refused",
            "declare them, or correct the exchange in the application that enqueues",
        )
    if names := [name for name in missing if name in own]:
        yield warning(
            "exchanges",
            f"not on the broker yet: {', '.join(names)}; their messages declare them when they are published",
            "nothing to do if the broker user has the configure permission; otherwise declare them",
        )
    if not missing:
        names = sorted(expected)
        yield ok("exchanges", f"all exist: {', '.join(names)}" if names else "no pending row names one")
