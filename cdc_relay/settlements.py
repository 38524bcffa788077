"""Settlements: what the settler is to write to the table, one per row. `xid` is the transaction that wrote the row."""

from __future__ import annotations

from typing import NamedTuple

from outrider.storage.decision import Decision


class Delivered(NamedTuple):
    """The broker confirmed the message: delete or archive the row."""

    id: int
    xid: int


class HandedOver(NamedTuple):
    """The relay does not send the message: mark the row as the scheduler's, due now."""

    id: int
    xid: int


class Failed(NamedTuple):
    """The broker refused the message: write the retry, or bury it."""

    id: int
    xid: int
    event_type: str
    decision: Decision


class Skipped(NamedTuple):
    """Nothing is written. Settled once other sessions see it: from then on a query on its key finds it."""

    id: int
    xid: int


Settlement = Delivered | HandedOver | Failed | Skipped
