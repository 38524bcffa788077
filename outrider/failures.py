"""
Classify why publishing failed: outage, refused message, or undecodable row. Both services use only this module for it.

    OUTAGE     the broker is unavailable: defer, no attempt is spent
    FAILED     the broker refused this message: one attempt is spent, the row backs off
    PERMANENT  the row can never be sent: it is buried at once

`POLICIES` maps each error name to its kind and to a hint for the operator. The names are few and fixed, so they can
label metrics. Exceptions are recognised by the names of their classes, most derived first, so this module imports no
broker library.

Texts are one line of limited length, without payloads and without the credentials of a URL. Whatever text comes from
outside (a broker, an exception, a row) becomes storable here, in `one_line`: PostgreSQL refuses a NUL and a surrogate.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from outrider.errors import BrokerOutage

MAX_TEXT = 500


class FailureKind(StrEnum):
    OUTAGE = "outage"
    FAILED = "failed"
    PERMANENT = "permanent"


class Failure(NamedTuple):
    """Why publishing a message failed."""

    kind: FailureKind
    error: str
    """A name from POLICIES; it labels metrics."""
    text: str
    """One line for `last_error` and the logs."""

    @property
    def hint(self) -> str:
        """What the operator can do."""
        return POLICIES[self.error].hint


class Policy(NamedTuple):
    kind: FailureKind
    hint: str


_OUTAGE, _FAILED, _PERMANENT = FailureKind.OUTAGE, FailureKind.FAILED, FailureKind.PERMANENT

POLICIES: Mapping[str, Policy] = {
    # The broker is unreachable or does not answer.
    "ConnectionRefused": Policy(_OUTAGE, "is the broker running, and are host and port of broker_url right?"),
    "ConnectionLost": Policy(_OUTAGE, "see the broker's log and the network; it reconnects by itself"),
    "HostUnknown": Policy(_OUTAGE, "the host of broker_url does not resolve: correct it, or see DNS"),
    "HostUnreachable": Policy(_OUTAGE, "there is no route to the broker's host: see the network and its firewalls"),
    "Timeout": Policy(_OUTAGE, "the broker did not answer in time: is it overloaded, or a firewall dropping packets?"),
    "HeartbeatMissed": Policy(_OUTAGE, "the broker or the network went silent: see the broker's load and log"),
    "TlsFailed": Policy(_OUTAGE, "see the certificates, their names and the TLS options of broker_url"),
    "NotConnected": Policy(_OUTAGE, "it reconnects by itself"),
    # The broker answers, but accepts no messages at present.
    "LoginRefused": Policy(_OUTAGE, "correct user and password of broker_url, or the user's permissions on the vhost"),
    "VhostRefused": Policy(_OUTAGE, "the vhost of broker_url does not exist, or the user may not use it"),
    "Blocked": Policy(_OUTAGE, "the broker raised a memory or disk alarm: free some, or raise its watermark"),
    "ConnectionForced": Policy(_OUTAGE, "an operator or a shutdown closed the connection; it reconnects by itself"),
    "ConnectionClosed": Policy(_OUTAGE, "the broker closed the connection with an error: see its log"),
    "Loading": Policy(_OUTAGE, "the server still loads its data: wait"),
    "ReadOnly": Policy(_OUTAGE, "this server is a replica: point broker_url at the primary"),
    "OutOfMemory": Policy(_OUTAGE, "the server reached its maxmemory: free some, or raise it"),
    "ClusterDown": Policy(_OUTAGE, "the cluster has no primary for this key: see its state"),
    # The broker refused one message.
    "NoRoute": Policy(_FAILED, "bind a queue for this route (a worker binds its own), or correct the route"),
    "Nacked": Policy(_FAILED, "the queue refused it: it is full (x-max-length), or its node failed"),
    "NotFound": Policy(_FAILED, "the exchange does not exist: declare it (or set declare=true), or correct the route"),
    "AccessRefused": Policy(_FAILED, "give the broker user write (and, to declare, configure) permission"),
    "ResourceLocked": Policy(_FAILED, "the queue is exclusive to another connection"),
    "PreconditionFailed": Policy(_FAILED, "a declaration or property conflicts with what the broker has: see the text"),
    "DeclarationRefused": Policy(_FAILED, "the broker cannot declare what the row wants: is a plugin missing there?"),
    "MessageTooLarge": Policy(_FAILED, "the message exceeds the broker's max_message_size: shrink it, or raise that"),
    "ChannelClosed": Policy(_FAILED, "the broker closed the channel because of this message: see the text"),
    "BrokerCrashed": Policy(_FAILED, "the broker closed the connection because of this message alone: see its log"),
    "WrongType": Policy(_FAILED, "a key of this name holds something that is not a queue: rename one of them"),
    "ResponseError": Policy(_FAILED, "the server refused the command: see the text"),
    "Unexpected": Policy(_FAILED, "an error this version does not know: see the text, and report it"),
    # The row can never be sent.
    "Undecodable": Policy(_PERMANENT, "the row is not a message that can be sent: correct what writes it"),
}

# By top-level package and name of an exception's class. The most derived class that is listed decides.
_BY_CLASS: Mapping[str, str] = {
    "outrider.UndecodableMessage": "Undecodable",
    "outrider.BrokerOutage": "ConnectionLost",
    "builtins.ConnectionRefusedError": "ConnectionRefused",
    "builtins.ConnectionError": "ConnectionLost",
    "builtins.TimeoutError": "Timeout",
    "builtins.OSError": "ConnectionLost",
    "builtins.EOFError": "ConnectionLost",
    "socket.gaierror": "HostUnknown",
    "ssl.SSLError": "TlsFailed",
    "ssl.SSLEOFError": "ConnectionLost",
    "ssl.SSLZeroReturnError": "ConnectionLost",
    "amqp.ConnectionError": "ConnectionClosed",
    "amqp.RecoverableConnectionError": "ConnectionLost",
    "amqp.ChannelError": "ChannelClosed",
    "amqp.MessageNacked": "Nacked",
    "kombu.OperationalError": "ConnectionLost",
    "kombu.InconsistencyError": "NoRoute",
    "kombu.NotEquivalentError": "PreconditionFailed",
    "kombu.ChannelError": "ChannelClosed",
    "redis.AuthenticationError": "LoginRefused",
    "redis.AuthorizationError": "LoginRefused",
    "redis.BusyLoadingError": "Loading",
    "redis.ConnectionError": "ConnectionLost",
    "redis.TimeoutError": "Timeout",
    "redis.ReadOnlyError": "ReadOnly",
    "redis.OutOfMemoryError": "OutOfMemory",
    "redis.ClusterDownError": "ClusterDown",
    "redis.NoPermissionError": "AccessRefused",
    "redis.ResponseError": "ResponseError",
}

_BY_AMQP_CODE: Mapping[int, str] = {
    311: "MessageTooLarge",
    312: "NoRoute",
    313: "NoRoute",
    320: "ConnectionForced",
    402: "VhostRefused",
    403: "AccessRefused",
    404: "NotFound",
    405: "ResourceLocked",
    406: "PreconditionFailed",
    530: "VhostRefused",
    **dict.fromkeys((501, 502, 503, 504, 505, 506, 540, 541), "ConnectionClosed"),
}

_BY_ERRNO: Mapping[int, str] = {
    errno.ECONNREFUSED: "ConnectionRefused",
    errno.ETIMEDOUT: "Timeout",
    errno.EHOSTUNREACH: "HostUnreachable",
    errno.ENETUNREACH: "HostUnreachable",
}

# (error, words, better error): some servers tell errors apart only in the text. The first match applies.
_BY_WORDS: tuple[tuple[str, str, str], ...] = (
    ("PreconditionFailed", "larger than", "MessageTooLarge"),
    ("ResponseError", "WRONGTYPE", "WrongType"),
    ("ResponseError", "NOPERM", "AccessRefused"),
    ("ResponseError", "MISCONF", "OutOfMemory"),  # it cannot persist, and refuses writes
    ("ConnectionLost", "refused", "ConnectionRefused"),
    ("ConnectionLost", "timed out", "Timeout"),
    ("ConnectionLost", "Name or service not known", "HostUnknown"),
)

# While connecting, a refusal is about the login or the vhost, not about a message.
_WHILE_CONNECTING: Mapping[str, str] = {"AccessRefused": "LoginRefused", "NotFound": "VhostRefused"}

_CREDENTIALS = re.compile(r"://[^/@\s]*@")
_SPACES = re.compile(r"\s+")


class ClassifiedOutage(BrokerOutage):
    """A BrokerOutage with its Failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.text} ({failure.hint})")
        self.failure = failure


def failure(error: str, detail: str) -> Failure:
    """The failure of this name (from POLICIES), with a detail for its text."""
    return Failure(POLICIES[error].kind, error, one_line(f"{error}: {detail}"))


def no_route(exchange: str, routing_key: str) -> Failure:
    """The failure of a message that no queue accepts."""
    if not exchange:
        return failure("NoRoute", f"there is no queue {routing_key!r}: declare it, or start the worker that does")
    return failure(
        "NoRoute",
        f"no queue is bound to exchange {exchange!r} for routing key {routing_key!r}: "
        "bind one, or start the worker that does",
    )


def classify(error: BaseException, *, connecting: bool = False) -> Failure:
    """The failure for an exception; `connecting`: it was raised while opening a connection."""
    if isinstance(error, ClassifiedOutage):
        return error.failure
    detail = text_of(error)
    name = _name_of(error)
    for of, words, better in _BY_WORDS:
        if of == name and words in detail:
            name = better
            break
    if connecting:
        name = _WHILE_CONNECTING.get(name, name)
        if POLICIES[name].kind is not FailureKind.OUTAGE:
            name = "NotConnected"
    return failure(name, detail if name != "Unexpected" else f"{type(error).__name__}: {detail}")


def outage(error: BaseException | str, detail: str = "", *, connecting: bool = False) -> BrokerOutage:
    """The BrokerOutage to raise for an exception, or for an error name from POLICIES."""
    if isinstance(error, str):
        return ClassifiedOutage(failure(error, detail))
    found = classify(error, connecting=connecting)
    if found.kind is not FailureKind.OUTAGE:
        found = failure("ConnectionClosed", found.text)
    return ClassifiedOutage(found._replace(text=one_line(f"{found.text}; {detail}")) if detail else found)


def text_of(error: BaseException) -> str:
    """The text of an exception; the name of its class, if it has no text or making it raises."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


def one_line(text: str) -> str:
    """One line of at most MAX_TEXT characters that PostgreSQL can store, without the credentials of a URL."""
    storable = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
    line = _SPACES.sub(" ", _CREDENTIALS.sub("://***@", storable)).strip()
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"


def describe_error(error: BaseException) -> str:
    """The class and the text of an exception, in one line."""
    return one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _name_of(error: BaseException) -> str:
    code = getattr(error, "reply_code", None)
    if isinstance(code, int) and code in _BY_AMQP_CODE:
        return _BY_AMQP_CODE[code]
    if isinstance(error, OSError) and (number := error.errno or 0) in _BY_ERRNO:
        return _BY_ERRNO[number]
    for cls in type(error).__mro__:
        known = _BY_CLASS.get(f"{cls.__module__.partition('.')[0]}.{cls.__name__}")
        if known is not None:
            return known
    return "Unexpected"
