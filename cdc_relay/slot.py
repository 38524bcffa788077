"""
The life of the replication slot: found, created, waited for, created again when the server gave it up.

A slot that is created anew has seen nothing of the rows that are in the table at that moment: they are handed over to
the scheduler. Nothing here streams.
"""

from __future__ import annotations

from outbox.errors import DatabaseError
from outbox.setup import SlotState, create_slot, drop_slot, slot_state
from outbox.store import Store
from outbox.telemetry.logs import get_logger

log = get_logger(__name__)

DUPLICATE_OBJECT = "42710"
OBJECT_IN_USE = "55006"


def ensure_slot(store: Store, name: str, *, failover: bool) -> SlotState:
    """The slot, usable; created where it is missing, and again where it is lost."""
    state = slot_state(store, name)
    if state is not None and state.lost:
        log.error(
            "slot_lost",
            slot=name,
            cause=state.lost,
            remedy="created again; raise max_slot_wal_keep_size or look for long outages of the relay if it recurs",
        )
        drop_slot(store.connection, name)
        state = None
    if state is None:
        _create(store, name, failover=failover)
        state = slot_state(store, name)
        if state is None:
            raise DatabaseError(f"the replication slot {name} disappeared right after it was created")
    return state


def _create(store: Store, name: str, *, failover: bool) -> None:
    try:
        create_slot(store.connection, name, failover=failover)
    except DatabaseError as error:
        if error.sqlstate != DUPLICATE_OBJECT:  # another relay was faster, and does what follows
            raise
        return
    handed_over = store.hand_over_all()
    log.warning("slot_created", slot=name, handed_over=handed_over)
