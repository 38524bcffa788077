"""
One replication session: from START_REPLICATION to the first database error, or to a request to stop.

One thread reads the stream, decides (`Pipeline`), publishes (`NonBlockingPublisher`) and reports the confirmed
position. It makes no blocking broker call, and it does not write settlements (`Settler` does), so neither a slow broker
nor slow settling delays the status that PostgreSQL expects. It does run short queries, and waits for these:

    start            server clock, keys in the table, WAL position
    _run_turn        server clock, once a second at most, while frames of the stream are older than the estimate
    _admit           owners of rows while catching up; whether keys are free, only while keys are blocked
    KeySweep         which of the blocked keys have no row any more, 500 keys at a time
    _check_database  the server clock, only if the idle connection has received something

Each has a bounded number of rows and, as every statement of the services, a time limit. Presence and gauges are not
read here: see runtime/bookkeeping.py.

A database error ends the session with a DatabaseError. The relay then starts a new session, without any state of this
one: the table and the slot hold everything that is needed.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from contextlib import suppress

from outrider.cdc_relay.key_sweep import KeySweep
from outrider.cdc_relay.lsn import Lsn
from outrider.cdc_relay.nonblocking_publisher import NonBlockingPublisher
from outrider.cdc_relay.pgoutput import INSERT, Begin, Commit, Relation, decode
from outrider.cdc_relay.pipeline import Pipeline
from outrider.cdc_relay.replication_frames import FrameBatch
from outrider.cdc_relay.reporting import RelayReporter
from outrider.cdc_relay.row_decoder import RowDecoder
from outrider.cdc_relay.server_clock import ServerClock
from outrider.cdc_relay.settler import Settler
from outrider.cdc_relay.stream import ReplicationStream
from outrider.cdc_relay.wakeups import Ready, Wakeups
from outrider.cdc_relay.window import Window
from outrider.delivery.publisher import Outcome, Publisher
from outrider.delivery.retry_policy import RetryPolicy
from outrider.errors import BrokerOutage, DatabaseError, ReplicationError
from outrider.runtime.crash_points import crash_point
from outrider.runtime.shutdown import Shutdown
from outrider.settings.relay import RelaySettings
from outrider.storage.message import Message
from outrider.storage.store import Store
from outrider.telemetry.health import Health
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

READ_LIMIT = 1000
"""Frames read in one turn, so that statuses and outcomes are handled in between."""

HAND_OVER_SECONDS = 5.0
SETTLE_AFTER_LOSS_SECONDS = 3.0


class ReplicationSession:
    """Closes the stream and the publisher at its end. The stores belong to the caller."""

    def __init__(
        self,
        settings: RelaySettings,
        *,
        stream: ReplicationStream,
        query_store: Store,
        settle_store: Store,
        publisher: Publisher,
        shutdown: Shutdown,
        must_reach_broker: bool,
        reporter: RelayReporter,
        health: Health,
    ) -> None:
        """`settle_store` is used by the settler's thread only. `must_reach_broker`: see `run`."""
        self._settings = settings
        self._stream = stream
        self._store = query_store
        self._shutdown = shutdown
        self._must_reach_broker = must_reach_broker
        self._reporter = reporter
        self._health = health
        self._clock = ServerClock(query_store.server_clock)
        # The keys are read before the position: a row that is committed in between is not among them, but every row
        # before the position is checked against the table.
        self._pipeline = Pipeline(
            Window(max_messages=settings.window_messages, max_bytes=settings.window_bytes),
            RetryPolicy.from_settings(settings),
            margin_seconds=settings.send_timeout_seconds,
            blocked_keys=self._load_keys(),
        )
        self._catch_up_to = Lsn.parse(query_store.wal_position())
        self._catching_up = True
        self._row_decoder = RowDecoder(settings.schema_name)
        self._server_position = 0
        self._unfinished_settlements = 0
        self._status_due = 0.0
        self._key_sweep = KeySweep(query_store, self._pipeline)
        self._after_read = crash_point("relay.after_read")
        self._after_confirm = crash_point("relay.after_confirm")
        self._before_feedback = crash_point("relay.before_feedback")
        self._draining = crash_point("relay.draining")
        self._handing_over = crash_point("relay.handing_over")
        self._publisher = NonBlockingPublisher(
            publisher, self, hold_seconds=settings.hold_seconds, server_clock=self._clock.now
        )
        self._settler = Settler(settle_store, archive=settings.archive, blocked_keys=self._pipeline.blocked_keys)
        self._wakeups = Wakeups(stream, self._publisher, [self._publisher.reports, self._settler, shutdown])

    @property
    def reached_broker(self) -> bool:
        return self._publisher.ever_connected

    def run(self) -> None:
        """
        Stream until a request to stop. Raises DatabaseError; with must_reach_broker also BrokerOutage, if the broker
        was never reached.
        """
        self._publisher.start()
        self._settler.start()
        try:
            while not self._shutdown.requested:
                self._run_turn()
            self._drain()
        except ReplicationError:
            self._settle_after_loss()
            raise
        finally:
            self._publisher.close()
            self._settler.close()
            self._stream.close()

    def _load_keys(self) -> set[str]:
        """Every key with a row. It can be millions: PostgreSQL gets its status in between, and a stop ends it."""
        keys: set[str] = set()
        for portion in self._store.keys_in_table():
            keys.update(portion)
            self._health.record_loop()
            self._stream.send_status(flushed=0)
            if self._shutdown.requested:
                break
        return keys

    # -- one turn -----------------------------------------------------------------------------------------------------

    def _run_turn(self) -> None:
        room = self._pipeline.window.room
        ready = self._wakeups.wait(
            self._status_due, reading=room > 0, confirms_can_wait=room > 0 and self._pipeline.confirms_can_wait
        )
        if ready.stream and (batch := self._stream.read(min(room, READ_LIMIT))) is not None:
            if jump := self._clock.observe(batch.sent_at):
                self._reporter.report_clock_jump(jump)
            rows = self._decode_messages(batch.messages)
            self._submit_work()  # publish new rows before the bookkeeping
            self._update_server_position(batch)
            if rows:
                self._reporter.report_rows(rows)
            if late := self._pipeline.take_late():
                self._reporter.report_late(late, in_a_row=0 if self._catching_up else self._pipeline.late_in_a_row)
        self._handle_events(ready)
        self._submit_work()
        self._send_status()
        self._health.record_loop()
        self._key_sweep.run_due()
        if self._must_reach_broker:
            self._fail_if_broker_unreachable()

    def _handle_events(self, ready: Ready) -> None:
        self._finish_settled()
        self._publisher.collect(ready=ready.broker)

    def _submit_work(self) -> None:
        # A loop, because an outcome can be known at once and release the next message of its key.
        while messages := self._pipeline.take_messages_to_publish():
            self._publisher.submit(messages)
        self._submit_settlements()

    def _submit_settlements(self) -> None:
        if settlements := self._pipeline.take_settlements():
            self._unfinished_settlements += len(settlements)
            self._settler.submit(settlements)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _decode_messages(self, messages: Sequence[bytes]) -> list[Message]:
        """Decode pgoutput messages and admit their rows; returns the rows that are the relay's."""
        window = self._pipeline.window
        rows: list[Message] = []
        catching_up = self._catching_up
        now = self._clock.now()
        for payload in messages:
            message = decode(payload)
            if message is INSERT:
                row = self._row_decoder.decode(payload)
                if row is not None and self._pipeline.accept(row, now):
                    rows.append(row)
            elif isinstance(message, Begin):
                window.begin(message.xid, message.commit_time)
                self._check_caught_up(message.final_lsn)
            elif isinstance(message, Commit):
                window.commit(message.end_lsn)
            elif isinstance(message, Relation):
                self._row_decoder.set_relation(message)
        if rows:
            self._admit(rows, check_owners=catching_up)
            self._after_read()
        return rows

    def _admit(self, rows: list[Message], *, check_owners: bool) -> None:
        if check_owners:
            rows = self._pipeline.drop_rows_not_owned(rows, self._store.owners(self._pipeline.transactions_of(rows)))
        free: set[str] = set()
        if self._pipeline.blocked_keys and (heads := self._pipeline.heads_of_blocked_keys(rows)):
            free = self._store.free_keys(heads)
        self._pipeline.admit(rows, free, self._clock.now())

    def _update_server_position(self, batch: FrameBatch) -> None:
        self._server_position = max(self._server_position, batch.wal_end)
        self._health.connection_answered()
        if batch.keepalive is not None:
            # Rows that arrived before the keepalive are in the window, which is idle only once they are settled. Rows
            # that arrived after it have a later WAL position.
            self._pipeline.window.server_reached(batch.keepalive.wal_end)
            self._check_caught_up(batch.keepalive.wal_end)
            if batch.keepalive.reply_requested:
                self._status_due = 0.0

    def _check_caught_up(self, position: int) -> None:
        if self._catching_up and position >= self._catch_up_to:
            self._catching_up = False
            log.info("caught_up", position=str(Lsn(position)))

    # -- outcomes and settlements -------------------------------------------------------------------------------------

    def apply_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Settle, retry or hand over. Called by NonBlockingPublisher, in `submit` and `collect`."""
        self._after_confirm()
        self._wakeups.confirms_collected()
        now = self._clock.now()
        self._reporter.report_failures(outcomes)
        self._reporter.report_confirmations(self._pipeline.apply_outcomes(outcomes, now), now)

    def apply_shed(self) -> None:
        """Hand over everything that is unconfirmed. Called by NonBlockingPublisher, in `collect`."""
        self._pipeline.hand_over_unconfirmed()

    def _finish_settled(self) -> None:
        for settlements, seconds in self._settler.take_settled():
            self._unfinished_settlements -= len(settlements)
            self._pipeline.finish_settled(settlements)
            self._reporter.report_settlements(settlements, seconds)
            self._before_feedback()

    # -- at intervals -------------------------------------------------------------------------------------------------

    def _send_status(self) -> None:
        """Report the confirmed position if that is due. Raises ReplicationError if the server has been silent."""
        now = time.monotonic()
        if now >= self._status_due:
            silent = self._stream.silent_for()
            if self._pipeline.window.room and silent > self._settings.silence_timeout_seconds:
                reason = f"the replication connection has been silent for {silent:.0f} s"
                self._health.connection_silent(reason)
                raise ReplicationError(f"PostgreSQL: {reason}")
            # After a while without a frame, ask for a reply: a live server then ends the silence.
            reply = self._catching_up or silent > self._settings.silence_timeout_seconds / 3
            confirmed = self._pipeline.window.confirmed
            self._stream.send_status(flushed=confirmed, reply=reply)
            self._reporter.set_gauges(self._pipeline, lag_bytes=self._server_position - confirmed)
            self._status_due = now + self._settings.status_interval_seconds
            outage = self._publisher.shedding
            self._health.set_degraded(None if outage is None else outage.text)
            self._check_database()
        elif self._stream.wants_write:
            self._stream.flush()

    def _check_database(self) -> None:
        """
        Raise DatabaseError if the server has ended the connection for queries, which is idle most of the time. A server
        that shuts down waits for this session's end while messages are held.
        """
        if select.select([self._store.connection], [], [], 0)[0]:
            self._store.server_clock()

    def _fail_if_broker_unreachable(self) -> None:
        """A broker that was never reached is probably a wrong address. Ends the session once all rows are shed."""
        if self._publisher.ever_connected:
            self._must_reach_broker = False
        elif self._publisher.shedding is not None and not self._catching_up and self._pipeline.window.idle:
            self._stream.send_status(flushed=self._pipeline.window.confirmed)
            raise BrokerOutage(self._publisher.shedding.text)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Finish the messages in flight, hand over those that take too long, confirm."""
        log.info("draining", in_flight=len(self._pipeline.window))
        self._health.set_stopping()
        self._settler.stop_gathering()
        self._draining()
        self._empty_window(time.monotonic() + self._settings.shutdown_timeout_seconds)
        if self._pipeline.unconfirmed:
            log.warning("handing_over", unconfirmed=self._pipeline.unconfirmed)
            self._pipeline.hand_over_unconfirmed()
            self._handing_over()
            self._empty_window(time.monotonic() + HAND_OVER_SECONDS)
        self._stream.send_status(flushed=self._pipeline.window.confirmed)

    def _empty_window(self, deadline: float) -> None:
        self._submit_work()
        while len(self._pipeline.window) and time.monotonic() < deadline:
            self._handle_events(self._wakeups.wait(deadline, reading=False))
            self._submit_work()
            self._send_status()

    def _settle_after_loss(self) -> None:
        """The stream is lost: settle the messages that the broker still confirms, so that they are not sent again."""
        deadline = time.monotonic() + SETTLE_AFTER_LOSS_SECONDS
        self._settler.stop_gathering()
        with suppress(DatabaseError):
            self._pipeline.cancel_unpublished()
            self._submit_settlements()
            while (self._pipeline.unconfirmed or self._unfinished_settlements) and time.monotonic() < deadline:
                broker = self._publisher.fileno()
                events = [self._publisher.reports.fileno(), self._settler.fileno()]
                select.select(events if broker is None else [*events, broker], [], [], 0.1)
                self._handle_events(Ready(stream=False, broker=True))
                self._pipeline.cancel_unpublished()
                self._submit_settlements()
