"""
Repository: load and save the aggregates of one category.

    accounts = Repository(streams, Account, category="account", snapshot_every=100)

    with psycopg.connect(dsn) as connection:
        account = accounts.execute(connection, "7", lambda account: account.deposit(50))

`execute` loads, runs the command, and saves with the version that was loaded. If another transaction has appended
meanwhile, it loads again and runs the command again: the command must have no effect but on its aggregate. All of it is
in the caller's transaction. With an asynchronous handle, methods return awaitables.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, overload

from outrider.errors import ConcurrencyError
from outrider.producer.aggregate import Aggregate
from outrider.producer.handles.protocols import AsyncHandle, SyncHandle
from outrider.producer.payload_codec import Forgotten
from outrider.producer.streams import EventStreams
from outrider.producer.sync_or_async import Queries, run_queries

A = TypeVar("A", bound=Aggregate)


class Repository(Generic[A]):
    """
    streams           with the types of the events
    aggregate         the class, created without arguments
    category          streams are called category:id
    snapshot_every    save a snapshot when the version passes a multiple of this; None: never
    snapshot_version  the version of the snapshot's form: change it when the aggregate's fields or `apply` change
    snapshot_subject  a function from an aggregate to the subject with whose key its snapshots are encrypted
    retries           how often `execute` runs a command again after a ConcurrencyError. Each time another transaction
                      has succeeded, so on a stream that many write to, many retries are normal
    """

    def __init__(
        self,
        streams: EventStreams,
        aggregate: type[A],
        *,
        category: str,
        snapshot_every: int | None = None,
        snapshot_version: int = 1,
        snapshot_subject: Callable[[A], str | None] = lambda _: None,
        retries: int = 50,
    ) -> None:
        if not category or ":" in category:
            raise ValueError("a category is not empty, and has no colon")
        self.streams = streams
        self.aggregate = aggregate
        self.category = category
        self.snapshot_every = snapshot_every
        self.snapshot_version = snapshot_version
        self.snapshot_subject = snapshot_subject
        self.retries = retries

    @overload
    def load(self, handle: AsyncHandle, identity: object) -> Awaitable[A]: ...

    @overload
    def load(self, handle: SyncHandle, identity: object) -> A: ...

    def load(self, handle: Any, identity: object) -> Any:
        """The aggregate; a new one (version 0) if its stream has no events."""
        return run_queries(handle, self._load(identity))

    @overload
    def save(self, handle: AsyncHandle, aggregate: A) -> Awaitable[A]: ...

    @overload
    def save(self, handle: SyncHandle, aggregate: A) -> A: ...

    def save(self, handle: Any, aggregate: Any) -> Any:
        """Append what the aggregate has recorded. ConcurrencyError: load it again and run the command again."""
        return run_queries(handle, self._save(aggregate))

    @overload
    def execute(self, handle: AsyncHandle, identity: object, command: Callable[[A], object]) -> Awaitable[A]: ...

    @overload
    def execute(self, handle: SyncHandle, identity: object, command: Callable[[A], object]) -> A: ...

    def execute(self, handle: Any, identity: object, command: Callable[[A], object]) -> Any:
        """Load, run the command, save; again after a ConcurrencyError. Returns the aggregate."""
        return run_queries(handle, self._execute(identity, command))

    def _stream(self, identity: object) -> str:
        return f"{self.category}:{identity}"

    def _load(self, identity: object) -> Queries[A]:
        aggregate = self.aggregate()
        stream = self._stream(identity)
        if self.snapshot_every is not None:
            snapshot = yield from self.streams._load_snapshot(stream)
            if snapshot is not None and self._fits(snapshot.snapshot_type, snapshot.type_version, snapshot.state):
                aggregate.restore(snapshot.state)
                aggregate.version = snapshot.version
        aggregate.id = str(identity)
        for event in (yield from self.streams._load(stream, aggregate.version, None)):
            aggregate.apply(event.data)
            aggregate.version = event.version
        return aggregate

    def _fits(self, snapshot_type: str, type_version: int, state: Any) -> bool:
        wanted = (self.aggregate.__qualname__, self.snapshot_version)
        return (snapshot_type, type_version) == wanted and not isinstance(state, Forgotten)

    def _save(self, aggregate: A) -> Queries[A]:
        if not aggregate.recorded:
            return aggregate
        before, stream = aggregate.version, self._stream(aggregate.id)
        rows = self.streams._rows(stream, aggregate.recorded)
        aggregate.version = yield from self.streams._append(stream, rows, before)
        aggregate.recorded.clear()
        if self.snapshot_every is not None and aggregate.version // self.snapshot_every > before // self.snapshot_every:
            yield from self.streams._save_snapshot(
                stream,
                aggregate.version,
                aggregate.snapshot(),
                snapshot_type=self.aggregate.__qualname__,
                type_version=self.snapshot_version,
                subject=self.snapshot_subject(aggregate),
            )
        return aggregate

    def _execute(self, identity: object, command: Callable[[A], object]) -> Queries[A]:
        for _ in range(self.retries):
            aggregate = yield from self._load(identity)
            command(aggregate)
            try:
                return (yield from self._save(aggregate))
            except ConcurrencyError:
                continue
        aggregate = yield from self._load(identity)
        command(aggregate)
        return (yield from self._save(aggregate))
