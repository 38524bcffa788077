"""
The window: which rows are in flight, and how far the WAL may be confirmed. Pure accounting, no I/O.

A transaction can be confirmed once its Commit was read and each of its rows has left the window (settled, or never the
relay's); the confirmed position is the end of the last transaction up to which that holds. The window is bounded in
messages and in bytes; a transaction may be larger than it, and flows through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from outrider.storage.message import Message


@dataclass(slots=True)
class Transaction:
    xid: int
    commit_time: int
    in_flight: int = 0
    end_lsn: int | None = None  # until its Commit is read


class Window:
    """Rows between being read and being settled, grouped by transaction."""

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._rows: dict[int, tuple[Transaction, int]] = {}
        self._bytes = 0
        self._transactions: deque[Transaction] = deque()
        self._confirmed = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def room(self) -> int:
        """How many more messages may be read now; a single one that is larger than the window may always enter."""
        if self._bytes >= self._max_bytes:
            return 0
        return max(0, self._max_messages - len(self._rows))

    @property
    def confirmed(self) -> int:
        """Up to here, every row has been dealt with."""
        while self._transactions:
            first = self._transactions[0]
            if first.in_flight or first.end_lsn is None:
                break
            self._confirmed = max(self._confirmed, first.end_lsn)
            self._transactions.popleft()
        return self._confirmed

    @property
    def idle(self) -> bool:
        """Nothing is in flight, and no transaction is half read."""
        return self.confirmed >= 0 and not self._transactions

    def begin(self, xid: int, commit_time: int) -> None:
        self._transactions.append(Transaction(xid, commit_time))

    def enter(self, message: Message) -> None:
        """A row of the transaction that is being read."""
        transaction = self._transactions[-1]
        transaction.in_flight += 1
        size = message.size
        self._bytes += size
        self._rows[message.id] = (transaction, size)

    def commit(self, end_lsn: int) -> None:
        self._transactions[-1].end_lsn = end_lsn

    def leave(self, ids: Iterable[int]) -> None:
        """Rows that were dealt with; ids that are not in flight are ignored."""
        for row_id in ids:
            entry = self._rows.pop(row_id, None)
            if entry is not None:
                entry[0].in_flight -= 1
                self._bytes -= entry[1]

    def transaction_of(self, row_id: int) -> Transaction:
        return self._rows[row_id][0]

    def server_reached(self, wal_end: int) -> None:
        """The server has sent everything up to here: with nothing in flight, an idle outbox holds no WAL back."""
        if self.idle:
            self._confirmed = max(self._confirmed, wal_end)
