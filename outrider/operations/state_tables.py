"""
The state of an outbox as tables for people. Pure: from a State to something that rich prints.

What deserves a look is red or yellow, and says so in words too: colours get lost in logs.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from outrider.errors import DatabaseError
from outrider.operations.formatting import as_age, as_bytes, as_count
from outrider.operations.state import State


def as_tables(picture: State | DatabaseError) -> RenderableType:
    if isinstance(picture, DatabaseError):
        return Text(f"the database cannot be asked: {picture}", style="red")
    return Group(
        Text(f"{picture.moment.database}, schema {picture.schema}, {picture.moment.at:%Y-%m-%d %H:%M:%S %Z}"),
        _pairs("Outbox", [*_queues(picture), *_ends(picture)]),
        _workers(picture),
        _pairs("Replication", [*_slot(picture), *_publication(picture)]),
    )


Pair = tuple[str, str | Text]


def _pairs(title: str, pairs: list[Pair]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column()
    for name, value in pairs:
        table.add_row(name, value)
    return table


def _cannot_see(state: State, part: str) -> Text:
    return Text(f"cannot see: {state.unseen[part]}", style="yellow")


def _queues(state: State) -> Iterator[Pair]:
    queues = state.queues
    if queues is None:
        yield "pending", _cannot_see(state, "queues")
        return
    yield "pending", as_count(queues.pending)
    yield "  due", as_count(queues.due)
    yield "  with the relay", as_count(queues.with_relay)
    yield "  claimed", as_count(queues.claimed)
    yield "  delayed", as_count(queues.delayed)
    yield "  parked", f"{as_count(queues.parked)} behind {as_count(queues.blocked_keys)} blocked keys"
    yield "retrying", as_count(queues.retrying)
    yield "oldest pending", as_age(queues.oldest_seconds)
    yield "longest overdue", as_age(queues.overdue_seconds)


def _ends(state: State) -> Iterator[Pair]:
    if state.dead is None:
        yield "dead", _cannot_see(state, "dead")
    else:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(state.dead.by_reason.items()))
        text = as_count(state.dead.total) + (f" ({reasons})" if reasons else "")
        yield "dead", Text(text, style="red" if state.dead.total else "")
    yield "archive", _cannot_see(state, "archive") if state.archive is None else as_count(state.archive.total)


def _workers(state: State) -> RenderableType:
    if state.workers is None:
        return _pairs("Services", [("workers", _cannot_see(state, "workers"))])
    if not state.workers:
        return _pairs("Services", [("workers", Text("none lives", style="yellow"))])
    table = Table(title="Services", title_justify="left")
    for heading in ("kind", "name", "role", "host", "pid", "version", "since", "last seen"):
        table.add_column(heading)
    for worker in state.workers:
        seen = f"{as_age(worker.silent_seconds)} ago"
        table.add_row(
            worker.kind,
            worker.name,
            worker.role,
            worker.host,
            str(worker.pid),
            worker.version,
            f"{worker.started_at:%Y-%m-%d %H:%M:%S}",
            Text(f"{seen}, stale", style="red") if worker.stale else seen,
        )
    return table


def _slot(state: State) -> Iterator[Pair]:
    slot = state.slot
    if slot is None:
        yield (
            "slot",
            _cannot_see(state, "slot") if "slot" in state.unseen else "none (polling only, unless a relay makes it)",
        )
        return
    reader = f"read by pid {slot.active_pid}" if slot.active else "no relay reads from it"
    yield "slot", Text(f"{slot.name}: {reader}", style="" if slot.active else "yellow")
    if slot.lost:
        yield "wal_status", Text(f"{slot.wal_status}: {slot.lost}", style="red")
    else:
        yield "wal_status", slot.wal_status or "nothing reserved yet"
    room = "" if slot.safe_wal_bytes is None else f", {as_bytes(slot.safe_wal_bytes)} until it may be lost"
    yield "retained WAL", as_bytes(slot.retained_bytes) + room
    yield "lag", as_bytes(slot.lag_bytes)


def _publication(state: State) -> Iterator[Pair]:
    publication = state.publication
    if publication is None:
        missing = _cannot_see(state, "publication") if "publication" in state.unseen else "none (polling only)"
        yield "publication", missing
    elif publication.problem:
        yield "publication", Text(publication.problem, style="red")
    else:
        yield "publication", f"{publication.name} of {', '.join(publication.tables)}"
