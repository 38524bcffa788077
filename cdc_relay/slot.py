"""
The replication slot: find it, create it, create it again when the server has invalidated it. Nothing here streams.

A new slot does not deliver the rows that are in the table when it is created: these are handed over to the scheduler.
"""

from __future__ import annotations

from outrider.errors import DatabaseError
from outrider.operations.setup.apply import create_slot, drop_slot
from outrider.operations.setup.facts import SlotState, slot_state
from outrider.storage.statement_limit import suspended_limit
from outrider.storage.store import Store
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

DUPLICATE_OBJECT = "42710"
UNDEFINED_OBJECT = "42704"
OBJECT_IN_USE = "55006"


def ensure_slot(store: Store, name: str, *, failover: bool) -> SlotState:
    """Return the state of a usable slot. Creates it if it is missing or lost."""
    state = slot_state(store, name)
    if state is not None and state.lost:
        remedy = "created again; if it recurs, raise max_slot_wal_keep_size, or find out why the relay was away so long"
        log.error("slot_lost", slot=name, cause=state.lost, remedy=remedy)
        drop_slot(store.connection, name)
        state = None
    if state is None:
        _create(store, name, failover=failover)
        state = slot_state(store, name)
        if state is None:
            raise DatabaseError(f"the replication slot {name} disappeared right after it was created")
    return state


def drop_slot_older_than_publication(store: Store, name: str) -> None:
    """
    Drop a slot whose position lies before the (re)creation of the publication. The server looks the publication up as
    of that position, so nothing can be read from there. Does nothing while another relay holds the slot.
    """
    state = slot_state(store, name)
    if state is not None and not state.active:
        remedy = "created again; drop a publication only together with its slot"
        log.error("slot_lost", slot=name, cause="the publication was dropped and created again", remedy=remedy)
        drop_slot(store.connection, name)


def _create(store: Store, name: str, *, failover: bool) -> None:
    try:
        with suspended_limit(store.connection):  # it waits for all transactions that are running
            create_slot(store.connection, name, failover=failover)
    except DatabaseError as error:
        if error.sqlstate != DUPLICATE_OBJECT:
            raise
        return  # another relay created it, and hands the rows over
    handed_over = store.hand_over_all()
    log.warning("slot_created", slot=name, handed_over=handed_over)
