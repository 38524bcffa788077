"""
InFlight: a statement that is sent on a psycopg 3 connection, in its transaction, without waiting for the answer.

Whoever waits for the answer to each INSERT does little else. Here a statement only goes out, on the caller's own
connection, and its answer is taken before anything else happens there: all that psycopg does with a server, be it a
statement, a COPY or the COMMIT, it does in `Connection.wait`. While an answer is due, this object stands in the place
of that method: it takes the answer, steps back and lets psycopg go on.

- Nothing is kept back: what was sent is executed before what is sent later, by whomever.
- If it failed, PostgreSQL refuses whatever comes next in the transaction, and the error comes out in the place of that
  refusal. A commit gets it too, having come to a rollback. Whoever rolls back, all or to a savepoint, is not bothered.
  The end of psycopg's `transaction()` inside another one gets it as well, and the outer one must be rolled back then.
- Closing the connection takes what is under way with it, like the rest of the transaction.

One statement at a time, and not libpq's pipeline mode: in that, psycopg refuses server-side cursors and streams.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from psycopg import Connection, errors
from psycopg.pq import ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.waiting import Wait

from producer.statement import Parameters, Statement


class InFlight:
    """The unanswered or failed statement of one connection; in the place of its `wait` while there is one."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self._encoding = connection.info.encoding
        self._is_answered = True
        self._error: errors.Error | None = None

    @classmethod
    def on(cls, connection: Connection[Any]) -> InFlight | None:
        """What sends on this connection; None where statements must be waited for."""
        present = vars(connection).get("wait")
        if isinstance(present, cls):
            return present
        pgconn = connection.pgconn
        if (
            present is None
            and pgconn.transaction_status == TransactionStatus.INTRANS  # psycopg begins one with its first statement
            and pgconn.pipeline_status == PipelineStatus.OFF
        ):
            return cls(connection)
        return None

    def send(self, statement: Statement, parameters: Parameters) -> None:
        """Send a statement whose parameters are text or bytea, of which the binary form is what they are."""
        encoding = self._encoding
        query = statement.numeric.encode(encoding)
        values = [v.encode(encoding) if isinstance(v, str) else v for v in statement.arguments(parameters)]
        connection = self._connection
        with connection.lock:
            self._take_answer()
            if self._error is not None:
                self._step_back()
                raise self._error
            connection.pgconn.send_query_params(query, values, param_formats=[Format.BINARY] * len(values))
            self._is_answered = False
            vars(connection)["wait"] = self

    def __call__(self, generator: Any, *args: Any, **kwargs: Any) -> Any:
        """psycopg's `wait`: first take the answer, then do what is asked."""
        self._take_answer()
        if self._error is None:
            return self._connection.wait(generator, *args, **kwargs)
        try:
            result = Connection.wait(self._connection, generator, *args, **kwargs)
        except (errors.InFailedSqlTransaction, errors.PipelineAborted):
            self._step_back()
            raise self._error from None
        status = self._connection.pgconn.transaction_status
        if status in (TransactionStatus.INERROR, TransactionStatus.ACTIVE):
            return result  # the server was not asked yet
        self._step_back()
        if status == TransactionStatus.IDLE and generator.__name__ != "_rollback_gen":
            raise self._error
        return result

    def _take_answer(self) -> None:
        if not self._is_answered:
            self._error = Connection.wait(self._connection, self._answer())
        if self._error is None:
            self._step_back()

    def _answer(self) -> Generator[Wait, int, errors.Error | None]:
        """The error, if the answer is one. To be driven by psycopg, which knows how to wait."""
        pgconn = self._connection.pgconn
        error = None
        while pgconn.flush():
            if (yield Wait.RW) & Wait.R:
                pgconn.consume_input()
        pgconn.consume_input()  # as a rule it is there
        while True:
            while pgconn.is_busy():
                yield Wait.R
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                self._is_answered = True
                return error
            if result.status == ExecStatus.FATAL_ERROR:
                error = errors.error_from_result(result, encoding=self._encoding)
                error.add_note("(it was sent to the outbox earlier in the transaction, and not waited for)")

    def _step_back(self) -> None:
        vars(self._connection).pop("wait", None)
