"""
StateReader: the state of the outbox for /status, without keeping whoever asks.

Each question is put to the database over a short connection of its own, on a thread of its own: a database that is
down, or that accepts and then says nothing, costs the asking thread `wait_seconds` and no more. DoctorOptions that come
while one is on its way share its answer, so that there is one connection and one thread at most.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future

from outrider.errors import DatabaseError
from outrider.operations.state import as_document, read_state
from outrider.settings.models import DatabaseSettings
from outrider.storage.store import Store, connect

WAIT_SECONDS = 3.0

Document = Mapping[str, object]


class StateReader:
    def __init__(self, settings: DatabaseSettings, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._settings = settings
        self._wait_seconds = wait_seconds
        self._lock = threading.Lock()
        self._reading: Future[Document] | None = None

    def ask(self) -> Document:
        """The document of outrider/operations/state.py; only `error` where the database cannot be asked. From any thread."""
        try:
            return self._read_or_join().result(timeout=self._wait_seconds)
        except TimeoutError:
            reason = f"no answer within {self._wait_seconds:g} s"
        except DatabaseError as error:
            reason = str(error)
        return {"error": f"the database cannot be asked: {reason}"}

    def _read_or_join(self) -> Future[Document]:
        with self._lock:
            if self._reading is None or self._reading.done():
                self._reading = Future()
                # A daemon: it must not keep the process from ending while the database says nothing.
                threading.Thread(target=self._read, args=[self._reading], name="state", daemon=True).start()
            return self._reading

    def _read(self, answer: Future[Document]) -> None:
        settings = self._settings
        try:
            with connect(
                settings.database_dsn,
                application_name="outrider status",
                connect_timeout_seconds=self._wait_seconds,
            ) as connection:
                store = Store(connection, settings.schema_name)
                state = read_state(store, publication=settings.publication, slot=settings.slot)
            answer.set_result(as_document(state))
        except BaseException as error:
            answer.set_exception(error)
