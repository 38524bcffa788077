"""
InFlight: a statement that is sent on a psycopg 3 connection, in its transaction, without waiting for the answer.

Whoever waits for the answer to each INSERT does little else. Here a statement only goes out, on the caller's own
connection, and its answer is taken before anything else happens there: all that psycopg does with a server, be it a
statement, a COPY or the COMMIT, it does in `Connection.wait`. While an answer is due, an object stands in the place of
that method: it takes the answer, steps back and lets psycopg go on.

- Nothing is kept back: what was sent is executed before what is sent later, by whomever.
- If it failed, PostgreSQL refuses whatever comes next in the transaction, and the error comes out in the place of each
  of these refusals, until the transaction, or what it did since a savepoint, is rolled back. Who asks for that gets no
  error. Who asks for a commit does: it has come to a rollback.
- psycopg's `transaction()` inside another one does not roll back to its savepoint when that error meets it at its end:
  the outer one can only be rolled back then.
- Closing the connection takes what is under way with it, like the rest of the transaction.

One statement at a time, and not libpq's pipeline mode: in that, psycopg refuses server-side cursors and streams.
"""

from __future__ import annotations

from collections.abc import Generator
from inspect import getgeneratorlocals, isgenerator
from typing import Any

from psycopg import Connection, OperationalError, errors
from psycopg.pq import ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn
from psycopg.waiting import Wait

from outrider.producer.statement import Parameters, Statement


def can_send(connection: Connection[Any]) -> bool:
    """Whether a statement need not be waited for: there is a transaction, and nobody else's pipeline."""
    pgconn = connection.pgconn
    return isinstance(vars(connection).get("wait"), InFlight) or (
        "wait" not in vars(connection)
        and pgconn.transaction_status == TransactionStatus.INTRANS  # psycopg begins one with its first statement
        and pgconn.pipeline_status == PipelineStatus.OFF
    )


def send(connection: Connection[Any], statement: Statement, parameters: Parameters) -> bool:
    """
    Send a statement whose parameters are text or bytea, of which the binary form is what they are. False, and nothing
    is sent, where it must be waited for.
    """
    encoding = _encoding(connection)
    query = statement.numeric.encode(encoding)
    values = [v.encode(encoding) if isinstance(v, str) else v for v in statement.arguments(parameters)]
    with connection.lock:
        if not can_send(connection):
            return False
        flight: InFlight = vars(connection).setdefault("wait", InFlight(connection))
        flight.send(query, values)
        return True


class InFlight:
    """A statement that is unanswered, or has failed, in the place of its connection's `wait`."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self._is_answered = True
        self._error: errors.Error | None = None

    def send(self, query: bytes, values: list[bytes | None]) -> None:
        self._take_answer()
        if self._error is not None:
            raise self._error
        # The place is taken before the statement is out: an interrupt in between must not leave it unanswered.
        self._is_answered = False
        vars(self._connection)["wait"] = self
        self._connection.pgconn.send_query_params(query, values, param_formats=[Format.BINARY] * len(values))

    def __call__(self, generator: Any, *args: Any, **kwargs: Any) -> Any:
        """psycopg's `wait`: first take the answer, then do what is asked."""
        self._take_answer()
        if self._error is None:
            return self._connection.wait(generator, *args, **kwargs)
        rolls_back = _rolls_back(generator)
        try:
            result = Connection.wait(self._connection, generator, *args, **kwargs)
        except (errors.InFailedSqlTransaction, errors.PipelineAborted):
            raise self._error from None
        finally:
            has_ended = self._step_back_unless_failed()
        if has_ended and not rolls_back:
            raise self._error
        return result

    def _take_answer(self) -> None:
        if not self._is_answered:
            Connection.wait(self._connection, self._answer())
        if self._error is None:
            self._step_back()

    def _answer(self) -> Generator[Wait, int, None]:
        """Note the error, if the answer is one. To be driven by psycopg, which knows how to wait."""
        pgconn = self._connection.pgconn
        while pgconn.flush():
            if (yield Wait.RW) & Wait.R:
                self._consume(pgconn)
        self._consume(pgconn)  # as a rule it is there
        while True:
            while pgconn.is_busy():
                yield Wait.R
                self._consume(pgconn)
            result = pgconn.get_result()
            if result is None:
                self._is_answered = True
                return
            if result.status == ExecStatus.FATAL_ERROR:
                self._error = errors.error_from_result(result, encoding=_encoding(self._connection))
                self._error.add_note("(it was sent to the outbox earlier in the transaction, and not waited for)")

    def _consume(self, pgconn: PGconn) -> None:
        try:
            pgconn.consume_input()
        except OperationalError:
            self._is_answered = True  # there will be no other
            self._step_back()
            raise

    def _step_back_unless_failed(self) -> bool:
        """Whether the transaction, or what it did since a savepoint, has ended."""
        status = self._connection.pgconn.transaction_status
        if status in (TransactionStatus.INERROR, TransactionStatus.ACTIVE):
            return False
        self._step_back()
        return True

    def _step_back(self) -> None:
        vars(self._connection).pop("wait", None)


def _encoding(connection: Connection[Any]) -> str:
    """As psycopg has it: to SQL_ASCII, which takes any bytes, text goes in UTF-8."""
    encoding = connection.info.encoding
    return "utf-8" if encoding == "ascii" else encoding


def _rolls_back(generator: Any) -> bool:
    """Whether it is a rollback that psycopg is about to do, of all or to a savepoint."""
    if not isgenerator(generator):
        return False  # one of psycopg's compiled ones, which only read and write
    get = getgeneratorlocals(generator).get
    match generator.__name__:
        case "_rollback_gen":
            return True
        case "_exit_gen":  # of a transaction() block
            return get("exc_val") is not None or bool(getattr(get("self"), "force_rollback", False))
        case "_tpc_finish_gen":
            return get("action") == "ROLLBACK"
        case "_execute_gen":
            query = get("query")
            return isinstance(query, str) and query.lstrip().upper().startswith("ROLLBACK")
    return False
