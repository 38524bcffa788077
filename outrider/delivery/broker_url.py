"""
Parse broker URLs with kombu, so that they mean the same as to Celery.

The result is one kombu `Connection` for each host of the URL, not yet connected, with host, credentials, vhost and TLS
options. An unusable URL raises SettingsError, which does not repeat the URL: kombu's own messages can quote a part of a
mistyped password.

Only transports that prove the delivery of each message are accepted. Some of kombu's other transports report success
for a message that the broker refused (Kafka, Google Pub/Sub): a row would be deleted and its message lost.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kombu import Connection

from outrider.errors import SettingsError

if TYPE_CHECKING:
    from outrider.settings.tls import TlsOptions

AMQP_TRANSPORTS = frozenset({"amqp", "amqps", "pyamqp"})
REDIS_TRANSPORTS = frozenset({"redis", "rediss", "sentinel"})
SUPPORTED = "amqp://, amqps://, redis://, rediss:// and sentinel://"
CONNECTION_NAME = "outrider"

_MALFORMED = (
    "broker_url is malformed: it must be transport://user:password@host:port/vhost, "
    "with special characters in user, password and vhost percent-encoded"
)


def transport_of(broker_url: str) -> str:
    """kombu's name of the URL's transport. SettingsError if it cannot prove the delivery of each message."""
    scheme, separator, _ = broker_url.partition("://")
    transport = scheme.partition("+")[0]
    if not separator or not transport.isidentifier():
        raise SettingsError(_MALFORMED)
    if transport not in AMQP_TRANSPORTS | REDIS_TRANSPORTS:
        raise SettingsError(
            f"broker_url names the transport {transport!r}, which is not supported, because it cannot prove that the "
            f"broker has a message; supported are {SUPPORTED}"
        )
    return transport


def kombu_clients(
    broker_url: str,
    *,
    send_timeout_seconds: float,
    connect_timeout_seconds: float,
    heartbeat_seconds: int,
    tls: TlsOptions,
) -> list[Any]:
    """One kombu Connection for each host of the URL, with these timeouts."""
    for file in (tls.ca_file, tls.certificate_file, tls.key_file):
        if file is not None and not Path(file).is_file():
            raise SettingsError(f"TLS file {file} does not exist")
    clients = []
    for url in broker_url.split(";"):
        transport = transport_of(url)
        options: dict[str, Any] = {"connect_timeout": connect_timeout_seconds}
        if transport in AMQP_TRANSPORTS:
            # Set explicitly: kombu would use librabbitmq for amqp:// where that is installed.
            options["transport"] = "amqps" if transport == "amqps" else "pyamqp"
            options["heartbeat"] = heartbeat_seconds
            options["transport_options"] = _amqp_options(send_timeout_seconds)
            if transport == "amqps":
                options["ssl"] = _amqp_tls(tls)
        elif transport in REDIS_TRANSPORTS:
            options["transport_options"] = {
                "socket_timeout": send_timeout_seconds,
                "socket_connect_timeout": connect_timeout_seconds,
                "client_name": CONNECTION_NAME,
            }
            if transport == "rediss":
                options["ssl"] = _redis_tls(tls)
        clients.append(client := _client(url, options))
        if transport == "amqps":
            if client.ssl != options["ssl"]:
                raise SettingsError("broker_url has ssl_ options, which amqps:// does not take: use the TLS settings")
            if tls.verify:
                client.ssl["server_hostname"] = client.hostname  # without it py-amqp does not verify the name
    return clients


def address_of(client: Any) -> str:
    """Host and port for error messages, without credentials."""
    port = f":{client.port}" if client.port else ""
    return f"{client.hostname or 'localhost'}{port}"


def _client(url: str, options: dict[str, Any]) -> Any:
    try:
        client = Connection(url, **options)
        client.transport_cls  # noqa: B018  imports the transport, so that a missing library is found now
    except ImportError as error:
        raise SettingsError(f"broker_url needs a library that is not installed: {error}") from None
    except (KeyError, TypeError, ValueError):
        raise SettingsError(_MALFORMED) from None
    return client


def _amqp_options(send_timeout_seconds: float) -> dict[str, Any]:
    options: dict[str, Any] = {"client_properties": {"connection_name": CONNECTION_NAME, "product": CONNECTION_NAME}}
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # py-amqp's default is one second: too short for a broker that pauses or is blocked.
        options["socket_settings"] = {socket.TCP_USER_TIMEOUT: int(send_timeout_seconds * 1000)}
    return options


def _amqp_tls(tls: TlsOptions) -> dict[str, Any]:
    options: dict[str, Any] = {"ca_certs": tls.ca_file, "certfile": tls.certificate_file, "keyfile": tls.key_file}
    return {**options, "cert_reqs": ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE}


def _redis_tls(tls: TlsOptions) -> dict[str, Any]:
    return {
        "ssl_ca_certs": tls.ca_file,
        "ssl_certfile": tls.certificate_file,
        "ssl_keyfile": tls.key_file,
        "ssl_cert_reqs": ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE,
        "ssl_check_hostname": tls.verify,
    }
