"""
Snapshots: the state of a stream at a version, so that a long stream is not loaded from its first event.

    streams.save_snapshot(connection, "account:7", version=1000, state={"balance": 12})
    snapshot = streams.load_snapshot(connection, "account:7")
    events = streams.load(connection, "account:7", after=snapshot.version if snapshot else 0)

The newest snapshot of a stream is kept. A snapshot is never needed. When the meaning of the state changes,
give it another `type_version`, and treat older ones as missing (outrider.producer.repository does).
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime
from typing import Any, NamedTuple, TypedDict, Unpack, overload

from outrider.producer.encoding import check_text, encode_payload
from outrider.producer.handles.protocols import AsyncHandle, SyncHandle
from outrider.producer.log_reader import LogReader
from outrider.producer.stored_event import decode_data
from outrider.producer.sync_or_async import Queries, Query, run_queries


class Snapshot(NamedTuple):
    stream: str
    version: int
    """Of the stream: the last event that is part of the state."""
    snapshot_type: str
    type_version: int
    state: Any
    """Decoded as the data of an event. Forgotten, if its subject was."""
    created_at: datetime


class SnapshotOptions(TypedDict, total=False):
    """The optional keyword arguments of `save_snapshot`, which documents them."""

    snapshot_type: str
    type_version: int
    subject: str | None


class SnapshotStore(LogReader):
    @overload
    def save_snapshot(
        self, handle: AsyncHandle, stream: str, version: int, state: Any, **options: Unpack[SnapshotOptions]
    ) -> Awaitable[None]: ...

    @overload
    def save_snapshot(
        self, handle: SyncHandle, stream: str, version: int, state: Any, **options: Unpack[SnapshotOptions]
    ) -> None: ...

    def save_snapshot(self, handle: Any, stream: str, version: int, state: Any, **options: Any) -> Any:
        """
        Replace the snapshot of a stream, unless there is one of a later version. In the caller's transaction.

        version        the stream's version that the state includes
        state          encoded as a payload
        snapshot_type  what the state is of; '' by default
        type_version   the version of the state's form; 1 by default
        subject        with whose key a SubjectEncryption encrypts the state
        """
        return run_queries(handle, self._save_snapshot(stream, version, state, **options))

    @overload
    def load_snapshot(self, handle: AsyncHandle, stream: str) -> Awaitable[Snapshot | None]: ...

    @overload
    def load_snapshot(self, handle: SyncHandle, stream: str) -> Snapshot | None: ...

    def load_snapshot(self, handle: Any, stream: str) -> Any:
        """The newest snapshot of a stream, or an awaitable of it; None where there is none."""
        return run_queries(handle, self._load_snapshot(stream))

    def _save_snapshot(
        self,
        stream: str,
        version: int,
        state: Any,
        snapshot_type: str = "",
        type_version: int = 1,
        subject: str | None = None,
    ) -> Queries[None]:
        [encoded] = yield from self._encode([(encode_payload(state), subject)])
        parameters = {
            "stream": check_text("stream", stream, 1, 1000),
            "version": str(version),
            "snapshot_type": check_text("snapshot_type", snapshot_type, 0),
            "type_version": str(type_version),
            "payload": encoded.payload,
            "content_type": encoded.content_type,
            "content_encoding": encoded.content_encoding,
        }
        yield Query(self._statements["save_snapshot"], parameters, self.outbox.guard)

    def _load_snapshot(self, stream: str) -> Queries[Snapshot | None]:
        rows = yield Query(self._statements["load_snapshot"], {"stream": stream})
        if not rows:
            return None
        version, snapshot_type, type_version, *stored, created_at = rows[0]
        [encoded] = yield from self._decode([stored])
        return Snapshot(stream, version, snapshot_type, type_version, decode_data(*encoded), created_at)

    @classmethod
    def _queries(cls) -> tuple[str, ...]:
        return (*super()._queries(), "save_snapshot", "load_snapshot")
