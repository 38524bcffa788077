"""Wakeups: what ends the relay's sleep, and which confirms may lie for a while."""

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


class Wire:
    """Stands for the stream or the courier: something with a socket."""

    has_more = False
    wants_write = False

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()

    def fileno(self) -> int:
        return self.ours.fileno()

    def speak(self) -> None:
        self.theirs.send(b"x")

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


class Scene:
    def __init__(self) -> None:
        self.stream, self.broker, self.events, self.shutdown = Wire(), Wire(), WakeableQueue[Any](), Shutdown()
        stream: Any = self.stream
        courier: Any = self.broker
        self.wakeups = Wakeups(stream, courier, self.events, self.shutdown)

    def wait(self, *, reading: bool = True, patient: bool = False, seconds: float = 0.05) -> Ready:
        return self.wakeups.wait(time.monotonic() + seconds, reading=reading, patient=patient)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    with scene.shutdown:
        yield scene
    scene.stream.close()
    scene.broker.close()
    scene.events.close()


def test_nothing_ends_at_the_deadline(scene: Scene) -> None:
    assert scene.wait() == NOTHING


def test_each_wire_wakes(scene: Scene) -> None:
    scene.stream.speak()
    assert scene.wait(seconds=60) == Ready(stream=True, broker=False)
    scene.broker.speak()
    assert scene.wait(seconds=60) == Ready(stream=True, broker=True)


def test_a_stream_without_room_does_not_wake(scene: Scene) -> None:
    scene.stream.speak()
    scene.stream.has_more = True
    assert scene.wait(reading=False) == NOTHING


def test_what_libpq_has_read_ahead_is_not_waited_for(scene: Scene) -> None:
    scene.stream.has_more = True
    assert scene.wait(seconds=60) == Ready(stream=True, broker=False)


def test_events_and_a_request_to_stop_wake(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "LONGEST_WAIT_SECONDS", 3600.0)
    scene.events.put([None])
    started = time.monotonic()
    assert scene.wait(seconds=60) == NOTHING
    scene.events.take()
    scene.shutdown.request()
    assert scene.wait(seconds=60) == NOTHING
    assert time.monotonic() - started < 60, "slept until the deadline"


def test_a_wait_is_never_longer_than_the_broker_can_bear(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "LONGEST_WAIT_SECONDS", 0.01)
    assert scene.wait(seconds=3600) == NOTHING


def test_a_wire_that_can_be_written_wakes_whoever_wants_to_write(scene: Scene) -> None:
    scene.broker.wants_write = True
    assert scene.wait(seconds=60) == Ready(stream=False, broker=True)


class TestConfirms:
    """A confirm that follows another one, with nobody waiting for it, lies until it is due."""

    @pytest.fixture(autouse=True)
    def _one_was_taken(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wakeups, "GATHER_SECONDS", 3600.0)
        monkeypatch.setattr(wakeups, "ALONG_SECONDS", 3600.0)
        scene.wakeups.confirms_taken()
        scene.broker.speak()

    def test_it_lies_though_the_stream_wakes(self, scene: Scene) -> None:
        assert scene.wait(patient=True) == NOTHING
        scene.stream.speak()
        assert scene.wait(patient=True, seconds=60) == Ready(stream=True, broker=False)

    def test_it_is_reported_when_somebody_waits_for_it(self, scene: Scene) -> None:
        assert scene.wait(patient=False, seconds=60) == Ready(stream=False, broker=True)

    def test_it_is_reported_when_it_is_due(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wakeups, "GATHER_SECONDS", 0.02)
        scene.wakeups.confirms_taken()
        assert scene.wait(patient=True, seconds=60) == Ready(stream=False, broker=True)

    def test_it_is_taken_along_when_a_row_comes_before_it_is_due(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wakeups, "ALONG_SECONDS", 0.0)
        assert scene.wait(patient=True) == NOTHING
        scene.stream.speak()
        assert scene.wait(patient=True, seconds=60) == Ready(stream=True, broker=True)

    def test_it_is_taken_along_in_a_turn_after_it_was_due(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wakeups, "GATHER_SECONDS", 0.0)
        scene.wakeups.confirms_taken()
        scene.stream.speak()
        assert scene.wait(patient=True, seconds=60) == Ready(stream=True, broker=True)


def test_a_broker_that_is_slow_to_confirm_is_listened_to(scene: Scene) -> None:
    """No confirm was taken lately: the next one wakes at once, and there is no looking for it in vain."""
    assert scene.wait(patient=True) == NOTHING
    scene.broker.speak()
    assert scene.wait(patient=True, seconds=60) == Ready(stream=False, broker=True)
