"""
One replication session: from START_REPLICATION to the first thing that goes wrong, or to a request to stop.

One thread reads the stream, decides (`Pipeline`), publishes through the courier and reports the confirmed position. It
never waits for the broker, which is the courier's business, nor for the table, which is the settler's, so PostgreSQL
hears from it however slow either is. Whatever fails on the side of the database ends the session with a DatabaseError;
the relay starts a new one, and no state is carried over: the table and the slot know everything.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from outrider.cdc_relay.lsn import Lsn
from outrider.cdc_relay.nonblocking_publisher import NonBlockingPublisher
from outrider.cdc_relay.pgoutput import INSERT, Begin, Commit, Relation, decode
from outrider.cdc_relay.pipeline import Pipeline, Settlement
from outrider.cdc_relay.replication_frames import Arrival
from outrider.cdc_relay.reporting import RelayReporter
from outrider.cdc_relay.row_decoder import RowDecoder
from outrider.cdc_relay.server_clock import ServerClock
from outrider.cdc_relay.settler import Settler
from outrider.cdc_relay.stream import ReplicationStream
from outrider.cdc_relay.wakeups import Ready, Wakeups
from outrider.cdc_relay.window import Window
from outrider.delivery.outcome import Outcome
from outrider.delivery.publisher import Publisher
from outrider.delivery.retry_policy import RetryPolicy
from outrider.errors import BrokerOutage, DatabaseError, ReplicationError
from outrider.runtime.crash_points import crash_point
from outrider.runtime.shutdown import Shutdown
from outrider.runtime.wakeable_queue import WakeableQueue
from outrider.settings.models import RelaySettings
from outrider.storage.message import Message
from outrider.storage.store import Store
from outrider.telemetry.health import Health
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

READ_LIMIT = 1000
"""Messages of the stream that are read in one turn: feedback and events are looked at in between."""

FORGET_BLOCKED_SECONDS = 30.0
HAND_OVER_SECONDS = 5.0
SALVAGE_SECONDS = 3.0


class ReplicationSession:
    """Owns its stream, its two stores (one to ask, one to settle) and its publisher, and closes them."""

    def __init__(
        self,
        settings: RelaySettings,
        *,
        stream: ReplicationStream,
        asking: Store,
        settling: Store,
        publisher: Publisher,
        shutdown: Shutdown,
        must_reach_broker: bool,
        heartbeat: Callable[[], None],
        report: RelayReporter,
        health: Health,
    ) -> None:
        self._settings = settings
        self._stream = stream
        self._asking = asking
        self._shutdown = shutdown
        self._must_reach_broker = must_reach_broker
        self._heartbeat = heartbeat
        self._report = report
        self._health = health
        self._events: WakeableQueue[Callable[[], None]] = WakeableQueue()
        self._clock = ServerClock(asking.server_clock())
        self._pipeline = Pipeline(
            Window(max_messages=settings.window_messages, max_bytes=settings.window_bytes),
            RetryPolicy.from_settings(settings),
            margin_seconds=settings.send_timeout_seconds,
        )
        # The keys are loaded before the position is read: a row that blocks a key later than that is checked itself.
        self._pipeline.blocked = asking.keys_in_table()
        self._checked_up_to = Lsn.parse(asking.wal_position())
        self._catching_up = True
        self._rows = RowDecoder(settings.schema_name)
        self._server_at = 0
        self._settling = 0
        self._status_due = 0.0
        self._forget_due = time.monotonic() + FORGET_BLOCKED_SECONDS
        self._after_read = crash_point("relay.after_read")
        self._after_confirm = crash_point("relay.after_confirm")
        self._before_feedback = crash_point("relay.before_feedback")
        self._draining = crash_point("relay.draining")
        self._handing_over = crash_point("relay.handing_over")
        self._courier = NonBlockingPublisher(
            publisher,
            hold_seconds=settings.hold_seconds,
            server_clock=self._clock.now,
            post=lambda event: self._events.put([event]),
            on_outcomes=self._resolved,
            on_shed=self._pipeline.abandon,
        )
        self._wakeups = Wakeups(stream, self._courier, self._events, shutdown)
        self._settler = Settler(
            settling,
            archive=settings.archive,
            has_left_behind=lambda: bool(self._pipeline.blocked),
            on_settled=lambda done, seconds: self._events.put([partial(self._settled, done, seconds)]),
            on_crash=lambda error: self._events.put([partial(self._crashed, error)]),
        )

    @property
    def reached_broker(self) -> bool:
        return self._courier.ever_connected

    def run(self) -> None:
        """Stream until asked to stop. Raises DatabaseError, or BrokerOutage if the broker never answered."""
        self._courier.start()
        self._settler.start()
        try:
            while not self._shutdown.requested:
                self._turn()
            self._drain()
        except ReplicationError:
            self._salvage()
            raise
        finally:
            self._courier.close()
            self._settler.close()
            self._events.close()
            self._stream.close()

    # -- one turn -----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        room = self._pipeline.window.room
        ready = self._wakeups.wait(
            self._status_due, reading=room > 0, patient=room > 0 and self._pipeline.can_wait_for_confirms
        )
        if ready.stream and (arrival := self._stream.read(min(room, READ_LIMIT))) is not None:
            self._clock.observe(arrival.sent_at)
            rows = self._take_in(arrival.messages)
            self._hand_out_work()  # what is new goes out first: all that is left to do is bookkeeping, and can wait
            self._heard(arrival)
            if rows:
                self._report.read(rows)
        self._handle_events(ready)
        self._hand_out_work()
        self._feed_back()
        self._heartbeat()
        self._health.beat()
        self._forget_unblocked()
        if self._must_reach_broker:
            self._give_up_without_broker()

    def _handle_events(self, ready: Ready) -> None:
        for event in self._events.take():
            event()
        self._courier.collect(ready=ready.broker)

    def _hand_out_work(self) -> None:
        while messages := self._pipeline.take_publish():  # the answer to one can be known at once, and free another
            self._courier.submit(messages)
        self._submit_settlements()

    def _submit_settlements(self) -> None:
        if settlements := self._pipeline.take_settle():
            self._settling += len(settlements)
            self._settler.submit(settlements)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _take_in(self, messages: Sequence[bytes]) -> list[Message]:
        """What pgoutput says; returns the rows among it that are the relay's."""
        window = self._pipeline.window
        rows: list[Message] = []
        catching_up = self._catching_up
        now = self._clock.now()
        for payload in messages:
            message = decode(payload)
            if message is INSERT:
                row = self._rows.read(payload)
                if row is not None and self._pipeline.read(row, now):
                    rows.append(row)
            elif isinstance(message, Begin):
                window.begin(message.xid, message.commit_time)
                self._caught_up_at(message.final_lsn)
            elif isinstance(message, Commit):
                window.commit(message.end_lsn)
            elif isinstance(message, Relation):
                self._rows.learn(message)
        if rows:
            self._admit(rows, check=catching_up)
            self._after_read()
        return rows

    def _heard(self, arrival: Arrival) -> None:
        """What the server says of itself."""
        self._server_at = max(self._server_at, arrival.wal_end)
        self._health.wire_heard()
        if arrival.keepalive is not None:
            # RowDecoder that came before it are in the window, which is idle only if they are done with. Those that came
            # after it are further on in the WAL.
            self._pipeline.window.server_reached(arrival.keepalive.wal_end)
            self._caught_up_at(arrival.keepalive.wal_end)
            if arrival.keepalive.reply_requested:
                self._status_due = 0.0

    def _caught_up_at(self, position: int) -> None:
        if self._catching_up and position >= self._checked_up_to:
            self._catching_up = False
            log.info("caught_up", position=str(Lsn(position)))

    def _admit(self, rows: list[Message], *, check: bool) -> None:
        if check:
            rows = self._pipeline.drop_disowned(rows, self._asking.owners([row.id for row in rows]))
        free: set[str] = set()
        if self._pipeline.blocked and (heads := self._pipeline.heads_of_blocked_keys(rows)):
            free = self._asking.free_keys(heads)
        self._pipeline.admit(rows, free, self._clock.now())

    # -- events -------------------------------------------------------------------------------------------------------

    def _resolved(self, outcomes: Sequence[Outcome]) -> None:
        self._after_confirm()
        self._wakeups.confirms_taken()
        now = self._clock.now()
        self._report.refused(outcomes)
        self._report.confirmed(self._pipeline.resolved(outcomes, now), now)

    def _settled(self, done: Sequence[Settlement], seconds: float) -> None:
        self._settling -= len(done)
        self._pipeline.settled([item.id for item in done])
        self._report.settled(done, seconds)
        self._before_feedback()

    def _crashed(self, error: BaseException) -> None:
        raise error

    # -- feedback -----------------------------------------------------------------------------------------------------

    def _feed_back(self) -> None:
        now = time.monotonic()
        if now >= self._status_due:
            silent = self._stream.silent_for()
            if self._pipeline.window.room and silent > self._settings.silence_timeout_seconds:
                reason = f"the replication connection has been silent for {silent:.0f} s"
                self._health.wire_silent(reason)
                raise ReplicationError(f"PostgreSQL: {reason}")
            # Ask for an answer when nothing was heard for a while, so that silence means something.
            ask = self._catching_up or silent > self._settings.silence_timeout_seconds / 3
            confirmed = self._pipeline.window.confirmed
            self._stream.send_status(flushed=confirmed, reply=ask)
            self._report.gauges(self._pipeline, lag_bytes=self._server_at - confirmed)
            self._status_due = now + self._settings.status_interval_seconds
        elif self._stream.wants_write:
            self._stream.flush()

    def _forget_unblocked(self) -> None:
        """Keys that were blocked and are never written again must not pile up in memory."""
        if self._pipeline.blocked and time.monotonic() >= self._forget_due:
            self._pipeline.forget_unblocked(self._asking.keys_in_table())
            self._forget_due = time.monotonic() + FORGET_BLOCKED_SECONDS

    def _give_up_without_broker(self) -> None:
        """A broker that never answered is most likely a wrong address: what has come is the scheduler's, and we end."""
        if self._courier.ever_connected:
            self._must_reach_broker = False
        elif self._courier.shedding is not None and not self._catching_up and self._pipeline.window.idle:
            self._stream.send_status(flushed=self._pipeline.window.confirmed)
            raise BrokerOutage(self._courier.shedding.text)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Finish what is in flight, hand over what is not done in time, confirm."""
        log.info("draining", in_flight=len(self._pipeline.window))
        self._health.stopping()
        self._settler.hurry()
        self._draining()
        self._settle_until(time.monotonic() + self._settings.shutdown_timeout_seconds)
        if self._pipeline.unconfirmed:
            log.warning("handing_over", unconfirmed=self._pipeline.unconfirmed)
            self._pipeline.abandon()
            self._handing_over()
            self._settle_until(time.monotonic() + HAND_OVER_SECONDS)
        self._stream.send_status(flushed=self._pipeline.window.confirmed)

    def _settle_until(self, deadline: float) -> None:
        self._hand_out_work()
        while len(self._pipeline.window) and time.monotonic() < deadline:
            self._handle_events(self._wakeups.wait(deadline, reading=False))
            self._hand_out_work()
            self._feed_back()

    def _salvage(self) -> None:
        """The stream is lost, the table is not: what the broker confirms soon is settled, and not sent again."""
        deadline = time.monotonic() + SALVAGE_SECONDS
        self._settler.hurry()
        with suppress(DatabaseError):
            self._pipeline.retract_unsent()
            self._submit_settlements()
            while (self._pipeline.unconfirmed or self._settling) and (left := deadline - time.monotonic()) > 0:
                broker = self._courier.fileno()
                select.select([self._events] + ([] if broker is None else [broker]), [], [], min(left, 0.1))
                self._handle_events(Ready(stream=False, broker=True))
                self._pipeline.retract_unsent()
                self._submit_settlements()
