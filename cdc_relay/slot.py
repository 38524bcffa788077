"""
The life of the replication slot: found, created, waited for, created again when the server gave it up.

A slot that is created anew has seen nothing of the rows that are in the table at that moment: they are handed over to
the scheduler. Nothing here streams.
"""

from __future__ import annotations

from outrider.errors import DatabaseError
from outrider.operations.setup import SlotState, create_slot, drop_slot, slot_state
from outrider.storage.store import Store
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

DUPLICATE_OBJECT = "42710"
UNDEFINED_OBJECT = "42704"
OBJECT_IN_USE = "55006"


def ensure_slot(store: Store, name: str, *, failover: bool) -> SlotState:
    """The slot, usable; created where it is missing, and again where it is lost."""
    state = slot_state(store, name)
    if state is not None and state.lost:
        remedy = "created again; if it recurs, raise max_slot_wal_keep_size, or see why the relay was away for so long"
        log.error("slot_lost", slot=name, cause=state.lost, remedy=remedy)
        drop_slot(store.connection, name)
        state = None
    if state is None:
        _create(store, name, failover=failover)
        state = slot_state(store, name)
        if state is None:
            raise DatabaseError(f"the replication slot {name} disappeared right after it was created")
    return state


def give_up_slot(store: Store, name: str) -> None:
    """
    Drop a slot whose position lies before the publication was created (again): the server looks publications up as of
    the position, so nothing can ever be read from there. Left alone while another relay has it.
    """
    state = slot_state(store, name)
    if state is not None and not state.active:
        remedy = "created again; drop a publication only together with its slot"
        log.error("slot_lost", slot=name, cause="the publication was dropped and created again", remedy=remedy)
        drop_slot(store.connection, name)


def _create(store: Store, name: str, *, failover: bool) -> None:
    try:
        create_slot(store.connection, name, failover=failover)
    except DatabaseError as error:
        if error.sqlstate != DUPLICATE_OBJECT:  # another relay was faster, and does what follows
            raise
        return
    handed_over = store.hand_over_all()
    log.warning("slot_created", slot=name, handed_over=handed_over)
