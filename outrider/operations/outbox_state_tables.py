"""
The state of an outbox as tables for people. Pure: from an OutboxState to something that rich prints.

Text from outside goes through `printable`, and rich's markup has no effect. Problems are red or yellow, and also said
in words, because logs lose colours.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from outrider.errors import DatabaseError
from outrider.operations.human_readable import as_age, as_bytes, as_count
from outrider.operations.outbox_state import OutboxState
from outrider.telemetry.printable import printable

Row = tuple[str, str | Text]


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def as_tables(state: OutboxState | DatabaseError) -> RenderableType:
    if isinstance(state, DatabaseError):
        return _text(f"cannot read the state from the database: {state}", style="red")
    return Group(
        _text(f"{state.database}, schema {state.schema}, {state.at:%Y-%m-%d %H:%M:%S %Z}"),
        _table("Outbox", [*_queues(state), *_dead_letters_and_archive(state), *_event_log(state)]),
        _workers(state),
        _table("Replication", [*_slot(state), *_publication(state), *_timeline(state)]),
    )


def _table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column()
    for name, value in rows:
        table.add_row(name, value if isinstance(value, Text) else _text(value))
    return table


def _not_readable(state: OutboxState, part: str) -> Text:
    return _text(f"cannot read it: {state.unseen[part]}", style="yellow")


def _queues(state: OutboxState) -> Iterator[Row]:
    queues = state.queues
    if queues is None:
        yield "pending", _not_readable(state, "queues")
        return
    yield "pending", as_count(queues.pending)
    yield "  due", as_count(queues.due)
    yield "  with the relay", as_count(queues.with_relay)
    yield "  claimed", as_count(queues.claimed)
    yield "  delayed", as_count(queues.delayed)
    yield "  backing off", as_count(queues.backing_off)
    yield "  parked", f"{as_count(queues.parked)} of {as_count(queues.parked_keys)} keys"
    yield "retrying", as_count(queues.retrying)
    if queues.unsupported:
        text = f"{as_count(queues.unsupported)} in a format that this version cannot read: upgrade the services"
        yield "not sent", Text(text, style="red")
    yield "oldest pending", as_age(queues.oldest_seconds)
    yield "longest overdue", as_age(queues.overdue_seconds)


def _dead_letters_and_archive(state: OutboxState) -> Iterator[Row]:
    if state.dead is None:
        yield "dead", _not_readable(state, "dead")
    else:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(state.dead.by_reason.items()))
        text = as_count(state.dead.total) + (f" ({reasons})" if reasons else "")
        yield "dead", _text(text, style="red" if state.dead.total else "")
    yield "archive", _not_readable(state, "archive") if state.archive is None else as_count(state.archive.total)


def _event_log(state: OutboxState) -> Iterator[Row]:
    log = state.event_log
    if log is None:
        yield "event log", _not_readable(state, "event_log")
    elif log.restored:
        yield "event log", Text("restored from another server: run `outrider events new-epoch`", style="red")
    elif log.unreadable and log.held_back_by is not None:
        who = f"{log.held_back_by}, open for {as_age(log.held_back_seconds)}"
        yield "event log", f"readers cannot see {as_count(log.unreadable)} events yet: {who}"
    else:
        yield "event log", "readers see every event"


def _workers(state: OutboxState) -> RenderableType:
    if state.workers is None:
        return _table("Services", [("workers", _not_readable(state, "workers"))])
    if not state.workers:
        return _table("Services", [("workers", _text("none is running", style="yellow"))])
    table = Table(title="Services", title_justify="left")
    for heading in ("kind", "name", "role", "host", "pid", "version", "since", "last seen"):
        table.add_column(heading)
    for worker in state.workers:
        seen = f"{as_age(worker.silent_seconds)} ago"
        table.add_row(
            *map(_text, (worker.kind, worker.name, worker.role, worker.host, str(worker.pid), worker.version)),
            f"{worker.started_at:%Y-%m-%d %H:%M:%S}",
            _text(f"{seen}, stale", style="red") if worker.stale else seen,
        )
    return table


def _slot(state: OutboxState) -> Iterator[Row]:
    slot = state.slot
    if slot is None:
        missing = "none (polling only, or the relay has not created it yet)"
        yield "slot", _not_readable(state, "slot") if "slot" in state.unseen else missing
        return
    reader = f"read by pid {slot.active_pid}" if slot.active else "no relay is reading it"
    yield "slot", _text(f"{slot.name}: {reader}", style="" if slot.active else "yellow")
    if slot.lost:
        yield "wal_status", _text(f"{slot.wal_status}: {slot.lost}", style="red")
    else:
        yield "wal_status", slot.wal_status or "nothing reserved yet"
    until_lost = "" if slot.safe_wal_bytes is None else f", {as_bytes(slot.safe_wal_bytes)} until it may be lost"
    yield "retained WAL", as_bytes(slot.retained_bytes) + until_lost
    yield "lag", as_bytes(slot.lag_bytes)


def _publication(state: OutboxState) -> Iterator[Row]:
    publication = state.publication
    if publication is None:
        unreadable = "publication" in state.unseen
        yield "publication", _not_readable(state, "publication") if unreadable else "none (polling only)"
    elif publication.problem:
        yield "publication", _text(publication.problem, style="red")
    else:
        yield "publication", f"{publication.name} of {', '.join(publication.tables)}"


def _timeline(state: OutboxState) -> Iterator[Row]:
    if (state.timeline or 1) > 1:
        yield "timeline", _text(f"{state.timeline}: this server was promoted or restored, see `outrider doctor`")
