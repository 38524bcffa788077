"""
The window: the rows that are read but not yet settled, and the WAL position that may be confirmed. Pure accounting.

A transaction can be confirmed once its Commit was read and all its rows have left the window. The confirmed position is
the end of the last transaction for which this holds, and for all before it. The window is bounded in messages and in
bytes; a transaction may be larger than the window and passes through it row by row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from outrider.cdc_relay.settlements import Settlement
from outrider.storage.message import Message


@dataclass(slots=True)
class Transaction:
    xid: int
    commit_time: int
    unsettled: int = 0
    end_lsn: int | None = None  # until its Commit is read


class Window:
    """Rows between being read and being settled, grouped by transaction."""

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._rows: dict[int, tuple[Transaction, int, str]] = {}  # with size and event_id
        self._bytes = 0
        self._transactions: deque[Transaction] = deque()
        self._confirmed = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row_id: int) -> bool:
        return row_id in self._rows

    def holds(self, message: Message) -> bool:
        """Whether it is this message that is in the window, not another row with its id."""
        row = self._rows.get(message.id)
        return row is not None and row[2] == message.event_id

    @property
    def room(self) -> int:
        """How many more messages may be read now. An empty window accepts a message of any size."""
        if self._bytes >= self._max_bytes:
            return 0
        return max(0, self._max_messages - len(self._rows))

    @property
    def confirmed(self) -> int:
        """Every row before this position is settled, or is not the relay's."""
        while self._transactions:
            first = self._transactions[0]
            if first.unsettled or first.end_lsn is None:
                break
            self._confirmed = max(self._confirmed, first.end_lsn)
            self._transactions.popleft()
        return self._confirmed

    @property
    def idle(self) -> bool:
        """No row is unsettled, and no transaction is half read."""
        return self.confirmed >= 0 and not self._transactions

    def begin(self, xid: int, commit_time: int) -> None:
        self._transactions.append(Transaction(xid, commit_time))

    def enter(self, message: Message) -> None:
        """Add a row of the transaction that is being read. Its id must not be in the window."""
        transaction = self._transactions[-1]
        transaction.unsettled += 1
        size = message.size
        self._bytes += size
        self._rows[message.id] = (transaction, size, message.event_id)

    def commit(self, end_lsn: int) -> None:
        self._transactions[-1].end_lsn = end_lsn

    def leave(self, ids: Iterable[int]) -> None:
        """Remove rows; ids that are not in the window are ignored."""
        for row_id in ids:
            entry = self._rows.pop(row_id, None)
            if entry is not None:
                entry[0].unsettled -= 1
                self._bytes -= entry[1]

    def leave_settled(self, settlements: Iterable[Settlement]) -> list[int]:
        """Remove settled rows; returns their ids. A settlement of another row that had the same id is ignored."""
        rows = self._rows
        ids = [item.id for item in settlements if item.id in rows and rows[item.id][0].xid == item.xid]
        self.leave(ids)
        return ids

    def transaction_of(self, row_id: int) -> Transaction:
        return self._rows[row_id][0]

    def server_reached(self, wal_end: int) -> None:
        """Confirm the server's position if the window is idle, so that an idle outbox retains no WAL."""
        if self.idle:
            self._confirmed = max(self._confirmed, wal_end)
