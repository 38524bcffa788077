"""Every error has one policy, and texts are short single lines without secrets."""

from __future__ import annotations

import errno
import socket
import ssl

import amqp.exceptions
import kombu.exceptions
import pytest
import redis.exceptions

from outrider.errors import BrokerOutage, UndecodableMessage
from outrider.failures import (
    _BY_AMQP_CODE,
    _BY_CLASS,
    _BY_ERRNO,
    _BY_WORDS,
    _WHILE_CONNECTING,
    MAX_TEXT,
    POLICIES,
    ClassifiedOutage,
    Failure,
    FailureKind,
    classify,
    failure,
    one_line,
    outage,
)

OUTAGE, FAILED, PERMANENT = FailureKind.OUTAGE, FailureKind.FAILED, FailureKind.PERMANENT


def answer(code: int, text: str = "") -> Exception:
    """The exception that py-amqp raises for a reply code of the broker."""
    error: Exception = amqp.exceptions.error_for_code(code, text, (60, 40), amqp.exceptions.ChannelError)
    return error


@pytest.mark.parametrize(
    ("error", "kind", "name"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), OUTAGE, "ConnectionRefused"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), OUTAGE, "ConnectionLost"),
        (BrokenPipeError(errno.EPIPE, "pipe"), OUTAGE, "ConnectionLost"),
        (OSError("Server unexpectedly closed connection"), OUTAGE, "ConnectionLost"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), OUTAGE, "HostUnreachable"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), OUTAGE, "HostUnknown"),
        (TimeoutError("timed out"), OUTAGE, "Timeout"),
        (ssl.SSLCertVerificationError("certificate verify failed"), OUTAGE, "TlsFailed"),
        (answer(320, "CONNECTION_FORCED - broker forced connection closure"), OUTAGE, "ConnectionForced"),
        (answer(501), OUTAGE, "ConnectionClosed"),
        (answer(541), OUTAGE, "ConnectionClosed"),
        (amqp.exceptions.RecoverableConnectionError("connection already closed"), OUTAGE, "ConnectionLost"),
        (kombu.exceptions.OperationalError("[Errno 111] Connection refused"), OUTAGE, "ConnectionRefused"),
        (redis.exceptions.ConnectionError("Connection closed by server."), OUTAGE, "ConnectionLost"),
        (redis.exceptions.ConnectionError("Error 111 connecting: Connection refused."), OUTAGE, "ConnectionRefused"),
        (redis.exceptions.TimeoutError("Timeout reading from socket"), OUTAGE, "Timeout"),
        (redis.exceptions.BusyLoadingError("loading the dataset in memory"), OUTAGE, "Loading"),
        (redis.exceptions.ReadOnlyError("You can't write against a read only replica."), OUTAGE, "ReadOnly"),
        (redis.exceptions.OutOfMemoryError("command not allowed"), OUTAGE, "OutOfMemory"),
        (redis.exceptions.AuthenticationError("invalid username-password pair"), OUTAGE, "LoginRefused"),
        (answer(312, "NO_ROUTE"), FAILED, "NoRoute"),
        (amqp.exceptions.MessageNacked(), FAILED, "Nacked"),
        (answer(403, "ACCESS_REFUSED"), FAILED, "AccessRefused"),
        (answer(404, "NOT_FOUND - no exchange 'x' in vhost '/'"), FAILED, "NotFound"),
        (answer(405, "RESOURCE_LOCKED"), FAILED, "ResourceLocked"),
        (answer(406, "PRECONDITION_FAILED - inequivalent arg"), FAILED, "PreconditionFailed"),
        (answer(406, "message size 9 is larger than configured max size 1"), FAILED, "MessageTooLarge"),
        (answer(499, "something new"), FAILED, "ChannelClosed"),
        (redis.exceptions.ResponseError("WRONGTYPE Operation against a key"), FAILED, "WrongType"),
        (redis.exceptions.ResponseError("ERR unknown command"), FAILED, "ResponseError"),
        (ZeroDivisionError("division by zero"), FAILED, "Unexpected"),
        (UndecodableMessage("headers is not a JSON object"), PERMANENT, "Undecodable"),
    ],
)
def test_an_error_has_a_kind_and_a_name(error: Exception, kind: FailureKind, name: str) -> None:
    found = classify(error)
    assert (found.kind, found.error) == (kind, name)
    assert found.text.startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (answer(403, "ACCESS_REFUSED - Login was refused"), "LoginRefused"),
        (answer(530, "NOT_ALLOWED - vhost nope not found"), "VhostRefused"),
        (answer(404, "NOT_FOUND"), "VhostRefused"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "ConnectionRefused"),
        (ValueError("strange"), "NotConnected"),
    ],
)
def test_whatever_fails_while_connecting_is_an_outage(error: Exception, name: str) -> None:
    found = classify(error, connecting=True)
    assert (found.kind, found.error) == (OUTAGE, name)


def test_an_outage_is_classified_as_what_caused_it() -> None:
    raised = outage(TimeoutError("timed out"), "broker.example:5672")
    assert isinstance(raised, BrokerOutage)
    assert classify(raised).error == "Timeout"
    assert "broker.example:5672" in str(raised)
    assert POLICIES["Timeout"].hint in str(raised)


def test_a_plain_broker_outage_is_an_outage() -> None:
    assert classify(BrokerOutage("gone")).kind is OUTAGE


def test_an_outage_is_an_outage_even_when_its_cause_is_unknown() -> None:
    raised = outage(ZeroDivisionError("division by zero"))
    assert isinstance(raised, ClassifiedOutage)
    assert raised.failure.kind is OUTAGE
    assert "ZeroDivisionError" in raised.failure.text


def test_a_text_is_one_bounded_line() -> None:
    text = failure("Nacked", "first\nsecond\t" + "x" * 10_000).text
    assert text.startswith("Nacked: first second x")
    assert len(text) == MAX_TEXT


def test_a_text_never_contains_the_password_of_a_url() -> None:
    text = classify(OSError("cannot connect to amqp://user:s3cret@broker/vhost")).text
    assert "s3cret" not in text
    assert "broker/vhost" in text


def test_every_name_in_the_tables_has_a_policy() -> None:
    named = {*_BY_CLASS.values(), *_BY_AMQP_CODE.values(), *_BY_ERRNO.values(), *_WHILE_CONNECTING.values()}
    named |= {name for before, _, after in _BY_WORDS for name in (before, after)}
    assert named <= POLICIES.keys()


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_has_a_hint_for_an_operator(name: str) -> None:
    found = failure(name, "detail")
    assert isinstance(found, Failure)
    assert found.hint
    assert found.kind is POLICIES[name].kind


class CannotBeDescribed(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


def test_whatever_text_comes_from_outside_can_be_stored() -> None:
    assert one_line("a\0b\ud800c\nd") == "a\\x00b\\ud800c d"
    assert classify(ValueError("a\0" * 1000)).text.encode().count(b"\0") == 0
    assert len(one_line("\ud800" * 1000)) <= MAX_TEXT
    assert "CannotBeDescribed" in classify(CannotBeDescribed()).text
