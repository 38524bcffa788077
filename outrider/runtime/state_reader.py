"""
StateReader: reads the state of the outbox for /status, and returns within `wait_seconds`.

Each read uses a new connection on a new thread, so that a database that is down or does not answer blocks the caller no
longer than that. Calls that arrive while a read is running share its result: there is at most one connection and one
thread.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future

from outrider.errors import DatabaseError
from outrider.operations.outbox_state import as_document, connect_and_read_state
from outrider.settings.database import DatabaseSettings

WAIT_SECONDS = 3.0

Document = Mapping[str, object]


class StateReader:
    def __init__(self, settings: DatabaseSettings, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._settings = settings
        self._wait_seconds = wait_seconds
        self._lock = threading.Lock()
        self._reading: Future[Document] | None = None

    def read(self) -> Document:
        """The document of outbox_state.as_document, or only `error` if it could not be read. Thread-safe."""
        try:
            return self._start_or_join().result(timeout=self._wait_seconds)
        except TimeoutError:
            reason = f"no answer within {self._wait_seconds:g} s"
        except DatabaseError as error:
            reason = str(error)
        return {"error": f"cannot read the state from the database: {reason}"}

    def _start_or_join(self) -> Future[Document]:
        with self._lock:
            if self._reading is None or self._reading.done():
                self._reading = Future()
                # A daemon thread: it must not delay the end of the process while the database does not answer.
                threading.Thread(target=self._read_state, args=[self._reading], name="state", daemon=True).start()
            return self._reading

    def _read_state(self, result: Future[Document]) -> None:
        try:
            result.set_result(
                as_document(connect_and_read_state(self._settings, connect_timeout_seconds=self._wait_seconds))
            )
        except BaseException as error:
            result.set_exception(error)
