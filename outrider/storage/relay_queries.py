"""RelayQueries: sql/queries/relay.sql, what the relay reads and the rows that it hands over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from outrider.storage.query_runner import QueryRunner, array_literal


class RelayQueries(QueryRunner):
    def hand_over(self, ids: Sequence[int]) -> list[int]:
        """Leave rows of the relay to the scheduler, due now; returns the ids that were still the relay's."""
        return self._found("hand_over", ids)

    def hand_over_all(self, *, batch_size: int = 10_000) -> int:
        """Leave every row that is in the table now to the scheduler; returns how many were the relay's."""
        up_to = self.newest_id()
        handed_over = 0
        while batch := len(self._column("hand_over_all", up_to=up_to, batch_size=batch_size)):
            handed_over += batch
        return handed_over

    def newest_id(self) -> int:
        """The largest id in the table; 0 when it is empty."""
        return int(self._value("newest_id"))

    def owners(self, rows: Mapping[int, int]) -> dict[int, str]:
        """The owner of each of these rows (id to transaction) that is in the table, or may still become visible."""
        return dict(self._execute("owners", ids=array_literal(rows), xids=array_literal(rows.values())))

    def in_progress(self, xids: Iterable[int]) -> set[int]:
        """Those of these transactions that a new snapshot does not see yet."""
        return set(self._column("in_progress", xids=list(xids)))

    def keys_in_table(self, *, at_once: int = 10_000) -> Iterator[list[str]]:
        """Every ordering key that has a row, in portions: one statement, with a bounded number of keys, for each."""
        after: str | None = None
        while keys := self._column("keys_in_table", after=after, at_once=at_once):
            yield keys
            after = keys[-1]

    def keys_without_rows(self, keys: Sequence[str]) -> set[str]:
        """Those of these ordering keys that have no row."""
        return set(self._column("keys_without_rows", keys=list(keys)))

    def free_keys(self, heads: dict[str, int]) -> set[str]:
        """Of these keys, each with the id of the relay's next row: those with no other row to send first."""
        return set(self._column("free_keys", keys=list(heads), ids=list(heads.values())))

    def wal_position(self) -> str:
        """The end of the WAL."""
        return str(self._value("wal_position"))

    def timeline(self) -> int:
        """The number of the server's timeline: it changes when a standby is promoted."""
        return int(self._value("timeline"))

    def server_clock(self) -> int:
        """The database's clock, as server time (see server_time.py)."""
        return int(self._value("server_clock"))
