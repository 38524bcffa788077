"""
The relay's decisions: which rows are published, in which order, and which are left to the scheduler. Pure: no I/O.

Input: rows read from the stream, publish outcomes, finished settlements. Output: `take_messages_to_publish` and
`take_settlements`. The rules for rows with an ordering key:

- at most one message per key is in flight; later ones wait behind it, in commit order;
- a row that the relay leaves in the table blocks its key: failed, shed, handed over, late, or owned by the scheduler;
- a row of a blocked key is handed over, unless a query showed that the table holds no earlier row of the key. That
  query is valid only while the relay has no unsettled row of the key that it leaves to the scheduler: other sessions
  may not see such a row yet. For the same reason a row with a key that the relay skips stays in the window, and holds
  the confirmed position, until other sessions see it: a relay that starts later must find its key in the table.

Every row that enters the window leaves it by exactly one settlement, or at once if the table shows that it is not the
relay's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from outrider.cdc_relay.settlements import Delivered, Failed, HandedOver, Settlement, Skipped
from outrider.cdc_relay.window import Window
from outrider.delivery.key_queues import KeyQueues
from outrider.delivery.publisher import Outcome
from outrider.delivery.retry_policy import RetryPolicy
from outrider.failures import FailureKind
from outrider.storage.message import OLDEST_SCHEMA_VERSION, SCHEMA_VERSION, Message


class Confirmation(NamedTuple):
    """A confirmed message, with the server times of its commit and of its publish."""

    message: Message
    committed_at: int
    published_at: int


class Pipeline:
    """The rows of one replication session, between reading and settling. `now` is always a server time."""

    def __init__(
        self, window: Window, policy: RetryPolicy, *, margin_seconds: float, blocked_keys: Iterable[str] = ()
    ) -> None:
        self.window = window
        self.blocked_keys = set(blocked_keys)  # one set for the whole session: the settler's thread reads it too
        self._policy = policy
        self._margin = round(margin_seconds * 1_000_000)
        self._key_queues = KeyQueues()
        # Rows that block their key until they are settled and other sessions can see that they are the scheduler's.
        self._blocking_rows: dict[int, str] = {}
        self._blocking_row_counts: Counter[str] = Counter()
        self._unconfirmed: dict[int, tuple[Message, int]] = {}  # with the server time of the publish
        self._to_publish: list[Message] = []
        self._to_settle: list[Settlement] = []
        self._late = 0
        self.late_in_a_row = 0
        """The newest rows of the relay, if all of them were skipped because they came too late."""

    # -- rows ---------------------------------------------------------------------------------------------------------

    def accept(self, message: Message, now: int) -> bool:
        """Take a row into the window if it is the relay's; then `admit` must follow. Otherwise its key is blocked."""
        if message.id in self.window:
            self._forget_row_with_id(message.id)
        if message.owner == "relay" and _is_supported(message):
            if self._in_time(message, now):
                self.window.enter(message)
                self.late_in_a_row = 0
                return True
            self._late += 1
            self.late_in_a_row += 1
        if message.ordering_key is not None:
            self.window.enter(message)
            self._to_settle.append(Skipped(message.id, self._xid(message)))
            self._block_key_until_settled(message)
        return False

    def transactions_of(self, messages: Iterable[Message]) -> dict[int, int]:
        """The transaction of each row that is in the window, by the row's id."""
        return {message.id: self._xid(message) for message in messages}

    def drop_rows_not_owned(self, messages: Iterable[Message], owners: Mapping[int, str]) -> list[Message]:
        """Keep the rows that the relay owns. Rows without an owner are gone; the scheduler's rows block their key."""
        kept = []
        for message in messages:
            owner = owners.get(message.id)
            if owner == "relay":
                kept.append(message)
                continue
            self.window.leave((message.id,))
            if owner is not None and message.ordering_key is not None:
                self.blocked_keys.add(message.ordering_key)
        return kept

    def heads_of_blocked_keys(self, messages: Iterable[Message]) -> dict[str, int]:
        """The first row of each blocked key that may be free again, for a query on the table."""
        heads: dict[str, int] = {}
        for message in messages:
            key = message.ordering_key
            if key is not None and key in self.blocked_keys and not self._blocking_row_counts[key]:
                heads.setdefault(key, message.id)
        return heads

    def admit(self, messages: Iterable[Message], free_keys: Iterable[str], now: int) -> None:
        """Accepted rows, in commit order: publish them, queue them behind their key, or hand them over."""
        self.blocked_keys.difference_update(free_keys)
        for message in messages:
            key = message.ordering_key
            if not self.window.holds(message):
                continue  # a later row has its id
            if message.expires_at is not None and message.expires_at <= now:
                self._hand_over(message)  # the scheduler buries expired messages
            elif key is None:
                self._publish(message, now)
            elif key in self.blocked_keys:
                self._hand_over(message)
            elif self._key_queues.admit(message):
                self._publish(message, now)

    # -- outcomes and settlements -------------------------------------------------------------------------------------

    def apply_outcomes(self, outcomes: Iterable[Outcome], now: int) -> list[Confirmation]:
        """Settle confirmed messages, retry or bury refused ones, hand over those that met an outage."""
        confirmations = []
        for message, failure in outcomes:
            unconfirmed = self._unconfirmed.get(message.id)
            if unconfirmed is None or unconfirmed[0].event_id != message.event_id:
                continue  # handed over before the outcome arrived; or the id belongs to another row now
            del self._unconfirmed[message.id]
            if failure is None:
                transaction = self.window.transaction_of(message.id)
                self._to_settle.append(Delivered(message.id, transaction.xid))
                confirmations.append(Confirmation(message, transaction.commit_time, unconfirmed[1]))
                if message.ordering_key is not None:
                    self._publish_next_of_key(message, now)
            elif failure.kind is FailureKind.OUTAGE:
                self._hand_over(message)
                self._hand_over_waiting(message)
            else:
                decision = self._policy.decide(message, failure)
                self._to_settle.append(Failed(message.id, self._xid(message), message.event_type, decision))
                self._block_key_until_settled(message)
                self._hand_over_waiting(message)
        return confirmations

    def finish_settled(self, settlements: Iterable[Settlement]) -> None:
        """Remove rows whose settlement is written."""
        ids = self.window.leave_settled(settlements)
        if self._blocking_rows:
            self._unblock_rows(ids)

    def hand_over_unconfirmed(self) -> None:
        """Leave every message without an outcome to the scheduler, with those that wait behind it."""
        for message, _ in list(self._unconfirmed.values()):
            self._hand_over(message)
            self._hand_over_waiting(message)
        self._unconfirmed.clear()
        self._to_publish.clear()

    def cancel_unpublished(self) -> None:
        """Drop the messages that take_messages_to_publish has not returned yet. Their rows stay as they are."""
        for message in self._to_publish:
            del self._unconfirmed[message.id]
        self._to_publish.clear()

    def unblock_keys(self, keys_without_rows: set[str]) -> None:
        """Unblock these keys, which have no row in the table, unless this relay has an unsettled row of theirs."""
        self.blocked_keys.difference_update(keys_without_rows - self._blocking_row_counts.keys())

    # -- work to do ---------------------------------------------------------------------------------------------------

    def take_messages_to_publish(self) -> list[Message]:
        work, self._to_publish = self._to_publish, []
        return work

    def take_settlements(self) -> list[Settlement]:
        work, self._to_settle = self._to_settle, []
        return work

    def take_late(self) -> int:
        """How many rows of the relay were skipped since the last call because their hand-over is near or past."""
        late, self._late = self._late, 0
        return late

    @property
    def unconfirmed(self) -> int:
        return len(self._unconfirmed)

    @property
    def confirms_can_wait(self) -> bool:
        """Messages are in flight, and no message waits behind one of them."""
        return bool(self._unconfirmed) and not self._key_queues.waiting

    # -- one message --------------------------------------------------------------------------------------------------

    def _in_time(self, message: Message, now: int) -> bool:
        return now < message.next_attempt_at - self._margin

    def _publish(self, message: Message, now: int) -> None:
        self._unconfirmed[message.id] = (message, now)
        self._to_publish.append(message)

    def _publish_next_of_key(self, confirmed: Message, now: int) -> None:
        following = self._key_queues.confirmed(confirmed)
        while following is not None and not self.window.holds(following):
            following = self._key_queues.confirmed(following)
        if following is None:
            return
        if self._in_time(following, now):
            self._publish(following, now)
        else:  # it waited too long: a scheduler may have claimed it
            self._hand_over(following)
            self._hand_over_waiting(following)

    def _hand_over_waiting(self, message: Message) -> None:
        """Hand over the messages that wait behind this one."""
        if message.ordering_key is not None:
            for waiting in self._key_queues.failed(message):
                self._hand_over(waiting)

    def _hand_over(self, message: Message) -> None:
        if not self.window.holds(message):
            return
        self._to_settle.append(HandedOver(message.id, self._xid(message)))
        self._block_key_until_settled(message)

    def _forget_row_with_id(self, row_id: int) -> None:
        """
        A second row with the id of a row in the window (ids were restarted, or given by hand) shows that the first one
        was deleted: nothing of it is left to settle, and its outcome does not matter.
        """
        self.window.leave((row_id,))
        self._unblock_rows((row_id,))
        if (unconfirmed := self._unconfirmed.pop(row_id, None)) is not None:
            self._hand_over_waiting(unconfirmed[0])
        self._to_publish = [message for message in self._to_publish if message.id != row_id]
        self._to_settle = [settlement for settlement in self._to_settle if settlement.id != row_id]

    def _unblock_rows(self, ids: Iterable[int]) -> None:
        """These rows no longer block their keys. The keys stay blocked until a query finds them free."""
        for row_id in ids:
            key = self._blocking_rows.pop(row_id, None)
            if key is not None:
                self._blocking_row_counts[key] -= 1
                if not self._blocking_row_counts[key]:
                    del self._blocking_row_counts[key]

    def _block_key_until_settled(self, message: Message) -> None:
        """Block the key, and do not look it up in the table before this row is settled."""
        key = message.ordering_key
        if key is not None:
            self.blocked_keys.add(key)
            self._blocking_row_counts[key] += 1
            self._blocking_rows[message.id] = key

    def _xid(self, message: Message) -> int:
        return self.window.transaction_of(message.id).xid


def _is_supported(message: Message) -> bool:
    return OLDEST_SCHEMA_VERSION <= message.schema_version <= SCHEMA_VERSION
