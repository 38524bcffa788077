"""Wakeups: what ends a wait of the relay, and which confirms are collected later."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from outrider.cdc_relay import wakeups
from outrider.cdc_relay.wakeups import Ready, Wakeups
from outrider.runtime.shutdown import Shutdown
from outrider.runtime.wakeable_queue import WakeableQueue

NOTHING = Ready(stream=False, broker=False)


class FakeConnection:
    """Stands for the stream or the publisher: something with a socket."""

    has_more = False
    wants_write = False

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()

    def fileno(self) -> int:
        return self.ours.fileno()

    def receive(self) -> None:
        self.theirs.send(b"x")

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


class Scene:
    def __init__(self) -> None:
        self.stream, self.broker = FakeConnection(), FakeConnection()
        self.events, self.shutdown = WakeableQueue[Any](), Shutdown()
        stream: Any = self.stream
        publisher: Any = self.broker
        self.wakeups = Wakeups(stream, publisher, [self.events, self.shutdown])

    def wait(self, *, reading: bool = True, confirms_can_wait: bool = False, seconds: float = 0.05) -> Ready:
        return self.wakeups.wait(time.monotonic() + seconds, reading=reading, confirms_can_wait=confirms_can_wait)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    with scene.shutdown:
        yield scene
    scene.stream.close()
    scene.broker.close()
    scene.events.close()


def test_a_wait_ends_at_the_deadline(scene: Scene) -> None:
    assert scene.wait() == NOTHING


def test_the_stream_and_the_broker_end_a_wait(scene: Scene) -> None:
    scene.stream.receive()
    assert scene.wait(seconds=60) == Ready(stream=True, broker=False)
    scene.broker.receive()
    assert scene.wait(seconds=60) == Ready(stream=True, broker=True)


def test_the_stream_does_not_end_a_wait_while_the_window_is_full(scene: Scene) -> None:
    scene.stream.receive()
    scene.stream.has_more = True
    assert scene.wait(reading=False) == NOTHING


def test_frames_that_libpq_has_buffered_end_a_wait(scene: Scene) -> None:
    scene.stream.has_more = True
    assert scene.wait(seconds=60) == Ready(stream=True, broker=False)


def test_an_event_and_a_request_to_stop_end_a_wait(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "LONGEST_WAIT_SECONDS", 3600.0)
    scene.events.put([None])
    started = time.monotonic()
    assert scene.wait(seconds=60) == NOTHING
    scene.events.take()
    scene.shutdown.request()
    assert scene.wait(seconds=60) == NOTHING
    assert time.monotonic() - started < 60, "waited until the deadline"


def test_a_wait_is_short_enough_for_the_heartbeats_of_the_broker(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "LONGEST_WAIT_SECONDS", 0.01)
    assert scene.wait(seconds=3600) == NOTHING


def test_a_writable_connection_ends_the_wait_if_data_is_to_be_written(scene: Scene) -> None:
    scene.broker.wants_write = True
    assert scene.wait(seconds=60) == Ready(stream=False, broker=True)


class TestConfirms:
    """A confirm that follows another one, and that no message waits for, is collected when the interval is over."""

    @pytest.fixture(autouse=True)
    def _one_was_collected(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wakeups, "CONFIRM_INTERVAL_SECONDS", 3600.0)
        monkeypatch.setattr(wakeups, "CONFIRM_INTERVAL_WHEN_AWAKE_SECONDS", 3600.0)
        scene.wakeups.confirms_collected()
        scene.broker.receive()

    def test_it_waits_although_the_stream_ends_the_wait(self, scene: Scene) -> None:
        assert scene.wait(confirms_can_wait=True) == NOTHING
        scene.stream.receive()
        assert scene.wait(confirms_can_wait=True, seconds=60) == Ready(stream=True, broker=False)

    def test_it_ends_the_wait_if_a_message_waits_for_it(self, scene: Scene) -> None:
        assert scene.wait(confirms_can_wait=False, seconds=60) == Ready(stream=False, broker=True)

    def test_it_is_collected_when_it_is_due(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wakeups, "CONFIRM_INTERVAL_SECONDS", 0.02)
        scene.wakeups.confirms_collected()
        assert scene.wait(confirms_can_wait=True, seconds=60) == Ready(stream=False, broker=True)

    def test_it_is_collected_earlier_if_a_row_ends_the_wait(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wakeups, "CONFIRM_INTERVAL_WHEN_AWAKE_SECONDS", 0.0)
        assert scene.wait(confirms_can_wait=True) == NOTHING
        scene.stream.receive()
        assert scene.wait(confirms_can_wait=True, seconds=60) == Ready(stream=True, broker=True)

    def test_it_is_collected_in_a_turn_after_it_was_due(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wakeups, "CONFIRM_INTERVAL_SECONDS", 0.0)
        scene.wakeups.confirms_collected()
        scene.stream.receive()
        assert scene.wait(confirms_can_wait=True, seconds=60) == Ready(stream=True, broker=True)


def test_a_confirm_of_a_slow_broker_ends_the_wait(scene: Scene) -> None:
    """Without a recent confirm the next one ends the wait at once."""
    assert scene.wait(confirms_can_wait=True) == NOTHING
    scene.broker.receive()
    assert scene.wait(confirms_can_wait=True, seconds=60) == Ready(stream=False, broker=True)
