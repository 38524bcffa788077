"""
The relay's decisions: what is sent, in which order, what is left to the scheduler. Pure: no I/O, no threads.

Events go in (rows read, outcomes of the broker, settlements done), work comes out (`take_publish`, `take_settle`).
The rules it keeps, for rows with an ordering key:

- at most one unconfirmed message per key; the others wait behind it, in commit order;
- whatever is left behind blocks its key: failed, shed, handed over, too late, not the relay's;
- a row of a blocked key goes to the scheduler, unless the caller has seen that the table holds nothing before it and
  this relay has no row of that key on its way to the scheduler either (such a row may not be visible to others yet).

Every row that enters the window leaves it by exactly one settlement, or at once if it is not the relay's to settle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from outrider.cdc_relay.window import Window
from outrider.delivery.key_queues import KeyQueues
from outrider.delivery.outcome import Outcome
from outrider.delivery.retry_policy import RetryPolicy
from outrider.failures import FailureKind
from outrider.storage.message import SCHEMA_VERSION, Message
from outrider.storage.store import Burial, Refusal


class Delivered(NamedTuple):
    """The broker has it: remove the row."""

    id: int
    xid: int


class HandOver(NamedTuple):
    """The scheduler is to send it: mark the row."""

    id: int
    xid: int


class Failed(NamedTuple):
    """The broker refused it: back off, or bury."""

    id: int
    xid: int
    event_type: str
    verdict: Refusal | Burial


Settlement = Delivered | HandOver | Failed


class Confirmation(NamedTuple):
    """A message that the broker has, and the instants that tell how long it took."""

    message: Message
    committed_at: int
    sent_at: int


class Pipeline:
    """The state of one replication session, between reading a row and settling it."""

    def __init__(self, window: Window, policy: RetryPolicy, *, margin_seconds: float) -> None:
        self.window = window
        self.blocked: set[str] = set()
        self._policy = policy
        self._margin = round(margin_seconds * 1_000_000)
        self._lanes = KeyQueues()
        self._leaving: Counter[str] = Counter()  # rows of a key whose settlement leaves them in the table
        self._leaving_keys: dict[int, str] = {}
        self._unconfirmed: dict[int, tuple[Message, int]] = {}  # with the instant it was sent
        self._publish: list[Message] = []
        self._settle: list[Settlement] = []

    # -- rows ---------------------------------------------------------------------------------------------------------

    def read(self, message: Message, now: int) -> bool:
        """A row was read: is it the relay's? If so it is in the window from now on, and must be admitted."""
        if message.owner == "relay" and message.schema_version <= SCHEMA_VERSION and self._in_time(message, now):
            self.window.enter(message)
            return True
        self._block(message)
        return False

    def drop_disowned(self, messages: Iterable[Message], owners: Mapping[int, str]) -> list[Message]:
        """While catching up: keep the rows that the table still shows as the relay's."""
        kept = []
        for message in messages:
            owner = owners.get(message.id)
            if owner == "relay":
                kept.append(message)
                continue
            self.window.leave((message.id,))
            if owner is not None:
                self._block(message)
        return kept

    def heads_of_blocked_keys(self, messages: Iterable[Message]) -> dict[str, int]:
        """The first row of each blocked key that could be free again: to be looked up in the table."""
        heads: dict[str, int] = {}
        for message in messages:
            key = message.ordering_key
            if key is not None and key in self.blocked and not self._leaving[key]:
                heads.setdefault(key, message.id)
        return heads

    def admit(self, messages: Iterable[Message], free_keys: Iterable[str], now: int) -> None:
        """Rows in commit order: publish, keep waiting behind their key, or hand over."""
        self.blocked.difference_update(free_keys)
        for message in messages:
            key = message.ordering_key
            if message.expires_at is not None and message.expires_at <= now:
                self._hand_over(message)  # it is the scheduler that buries it
            elif key is None:
                self._send(message, now)
            elif key in self.blocked:
                self._hand_over(message)
            elif self._lanes.admit(message):
                self._send(message, now)

    # -- what became of them ------------------------------------------------------------------------------------------

    def resolved(self, outcomes: Iterable[Outcome], now: int) -> list[Confirmation]:
        """The broker, or the lack of one, has spoken."""
        confirmations = []
        for message, failure in outcomes:
            sent = self._unconfirmed.pop(message.id, None)
            if sent is None:
                continue  # handed over in the meantime
            if failure is None:
                transaction = self.window.transaction_of(message.id)
                self._settle.append(Delivered(message.id, transaction.xid))
                confirmations.append(Confirmation(message, transaction.commit_time, sent[1]))
                if message.ordering_key is not None:
                    self._send_next(message, now)
            elif failure.kind is FailureKind.OUTAGE:
                self._hand_over(message)
                self._fail_lane(message)
            else:
                self._settle.append(
                    Failed(message.id, self._xid(message), message.event_type, self._policy.verdict(message, failure))
                )
                self._leave_behind(message)
                self._fail_lane(message)
        return confirmations

    def settled(self, ids: Iterable[int]) -> None:
        """The table says so now."""
        ids = list(ids)
        self.window.leave(ids)
        for row_id in ids if self._leaving_keys else ():
            key = self._leaving_keys.pop(row_id, None)
            if key is not None:
                self._leaving[key] -= 1
                if not self._leaving[key]:
                    del self._leaving[key]

    def abandon(self) -> None:
        """The end: what is neither confirmed nor settled by now is handed over."""
        for message, _ in list(self._unconfirmed.values()):
            self._hand_over(message)
            self._fail_lane(message)
        self._unconfirmed.clear()
        self._publish.clear()

    def retract_unsent(self) -> None:
        """What was not taken by take_publish yet is not sent: its rows stay as they are."""
        for message in self._publish:
            del self._unconfirmed[message.id]
        self._publish.clear()

    def forget_unblocked(self, keys_in_table: set[str]) -> None:
        """Keys without a row in the table, and without one on its way to the scheduler, are not blocked any more."""
        self.blocked = {key for key in self.blocked if key in keys_in_table or key in self._leaving}

    # -- work ---------------------------------------------------------------------------------------------------------

    def take_publish(self) -> list[Message]:
        work, self._publish = self._publish, []
        return work

    def take_settle(self) -> list[Settlement]:
        work, self._settle = self._settle, []
        return work

    @property
    def unconfirmed(self) -> int:
        return len(self._unconfirmed)

    @property
    def can_wait_for_confirms(self) -> bool:
        """Confirms are on their way, and no message waits for one."""
        return bool(self._unconfirmed) and not self._lanes.waiting

    # -- steps --------------------------------------------------------------------------------------------------------

    def _in_time(self, message: Message, now: int) -> bool:
        return now < message.next_attempt_at - self._margin

    def _send(self, message: Message, now: int) -> None:
        self._unconfirmed[message.id] = (message, now)
        self._publish.append(message)

    def _send_next(self, confirmed: Message, now: int) -> None:
        following = self._lanes.confirmed(confirmed)
        if following is None:
            return
        if self._in_time(following, now):
            self._send(following, now)
        else:  # it waited too long: the scheduler may hold it by now
            self._hand_over(following)
            self._fail_lane(following)

    def _fail_lane(self, message: Message) -> None:
        if message.ordering_key is not None:
            for waiting in self._lanes.failed(message):
                self._hand_over(waiting)

    def _hand_over(self, message: Message) -> None:
        self._settle.append(HandOver(message.id, self._xid(message)))
        self._leave_behind(message)

    def _leave_behind(self, message: Message) -> None:
        key = message.ordering_key
        if key is not None:
            self.blocked.add(key)
            self._leaving[key] += 1
            self._leaving_keys[message.id] = key

    def _block(self, message: Message) -> None:
        if message.ordering_key is not None:
            self.blocked.add(message.ordering_key)

    def _xid(self, message: Message) -> int:
        return self.window.transaction_of(message.id).xid
