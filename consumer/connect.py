"""
Connect to RabbitMQ with aio-pika, from the same broker URL as the other services.

Each call opens one plain connection. When it is lost, the worker connects again, and declares and consumes again;
aio-pika's robust connection is not used because it would restore channels and consumers on its own. Every failure to
connect is raised as BrokerOutage, without the password.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import aio_pika
from aio_pika.abc import AbstractConnection

from outrider.delivery.broker_url import AMQP_TRANSPORTS, address_of, kombu_clients, transport_of
from outrider.errors import BrokerOutage, SettingsError
from outrider.failures import one_line, outage
from outrider.settings.tls import TlsOptions

HEARTBEAT_SECONDS = 30


class BrokerHosts:
    """The hosts of a broker URL, tried in turn."""

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_seconds: float = 5.0,
        name: str = "worker",
        tls: TlsOptions | None = None,
    ) -> None:
        for part in url.split(";"):
            if transport_of(part) not in AMQP_TRANSPORTS:
                raise SettingsError("broker_url: workers need RabbitMQ: amqp:// or amqps://")
        self._clients = kombu_clients(
            url,
            send_timeout_seconds=connect_timeout_seconds,
            connect_timeout_seconds=connect_timeout_seconds,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            tls=tls or TlsOptions(),
        )
        self._tls = _tls_context(tls or TlsOptions())
        self._timeout_seconds = connect_timeout_seconds
        self._name = name

    async def connect(self) -> AbstractConnection:
        """Connect to the first host that answers. Raises BrokerOutage if none does."""
        last: BrokerOutage | None = None
        for client in self._clients:
            try:
                return await self._connect(client)
            except Exception as error:  # sockets, TLS and aiormq raise many types
                last = _outage(error, address_of(client))
        assert last is not None
        raise last

    async def _connect(self, client: Any) -> AbstractConnection:
        return await asyncio.wait_for(
            aio_pika.connect(
                host=client.hostname or "localhost",
                port=client.port or (5671 if client.ssl else 5672),
                login=client.userid or "guest",
                password=client.password or "guest",
                virtualhost=client.virtual_host or "/",
                ssl=bool(client.ssl),
                ssl_context=self._tls if client.ssl else None,
                heartbeat=round(client.heartbeat),  # that of the URL (`?heartbeat=`), where it has one
                client_properties={"connection_name": f"outrider {self._name}"},
            ),
            self._timeout_seconds,
        )


def _tls_context(tls: TlsOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.certificate_file is not None:
            context.load_cert_chain(tls.certificate_file, tls.key_file)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise SettingsError(f"the TLS files of the broker cannot be used: {one_line(str(error))}") from None
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _outage(error: Exception, where: str) -> BrokerOutage:
    if isinstance(error, aio_pika.exceptions.AuthenticationError | aio_pika.exceptions.ProbableAuthenticationError):
        return outage("LoginRefused", f"at {where}")
    if isinstance(error, aio_pika.exceptions.InvalidFrameError) and "Connection.OpenOk" in str(error):
        # aiormq drops the broker's answer to Connection.Open. RabbitMQ closes the connection here for this reason only.
        return outage("VhostRefused", f"at {where}")
    if "[SSL" in str(error):  # aiormq raises it as a ConnectionError
        return outage("TlsFailed", f"{error}; at {where}")
    return outage(error, f"at {where}", connecting=True)
