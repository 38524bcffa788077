"""Shutdown: the first signal is a request to stop, the second one ends the process."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from outrider.runtime.shutdown import Shutdown

PROGRAM = """
import sys, time
from outrider.runtime.shutdown import Shutdown
with Shutdown() as shutdown:
    print("ready", flush=True)
    shutdown.wait(60)
    print("requested", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_a_request_to_stop(number: signal.Signals) -> None:
    with Shutdown() as shutdown:
        assert not shutdown.wait(0)
        os.kill(os.getpid(), number)
        assert shutdown.wait(5)
        assert shutdown.requested
        assert select.select([shutdown], [], [], 0)[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_the_process_at_once(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "requested\n"
        process.send_signal(number)
        assert process.wait(10) == 128 + number


def test_a_request_ends_a_wait() -> None:
    with Shutdown() as shutdown:
        started = time.monotonic()
        timer = threading.Timer(0.05, shutdown.request)
        timer.start()
        assert shutdown.wait(30)
        timer.join()
        assert time.monotonic() - started < 10


def test_a_wait_without_a_request_lasts_its_time() -> None:
    with Shutdown() as shutdown:
        started = time.monotonic()
        assert not shutdown.wait(0.05)
        assert time.monotonic() - started >= 0.05


def test_a_second_request_changes_nothing() -> None:
    with Shutdown() as shutdown:
        shutdown.request()
        shutdown.request()
        assert shutdown.requested


def test_the_old_handlers_are_restored() -> None:
    before = {number: signal.getsignal(number) for number in Shutdown.SIGNALS}
    with Shutdown():
        assert all(signal.getsignal(number) != handler for number, handler in before.items())
    assert {number: signal.getsignal(number) for number in Shutdown.SIGNALS} == before


HANGING_PROGRAM = """
import time
from outrider.runtime import shutdown
shutdown.FORCE_AFTER_SECONDS = 0.3
with shutdown.Shutdown(shutdown_timeout_seconds=0.1) as request:
    print("ready", flush=True)
    request.wait(60)
    time.sleep(60)
"""


def test_a_process_that_does_not_stop_in_time_is_ended_with_status_1() -> None:
    with subprocess.Popen([sys.executable, "-c", HANGING_PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 1


def test_a_process_that_stops_in_time_is_left_alone() -> None:
    with Shutdown(shutdown_timeout_seconds=0.0) as shutdown:
        shutdown.request()
    with Shutdown(shutdown_timeout_seconds=0.0) as never_requested:
        assert not never_requested.requested
