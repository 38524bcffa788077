"""
stop_on_signals: SIGTERM and SIGINT call a function, for a worker that a program runs itself.

A second signal ends the process at once. Only signals that still have Python's or asyncio's own handler are taken:
where the program handles a signal (uvicorn does), that handler stays, and stops the worker with
`loop.call_soon_threadsafe(worker.stop)`. Outside of the main thread nothing is done, because
Python delivers no signals there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Enter and leave it in a running event loop."""
    taken: dict[signal.Signals, Any] = {}
    requested = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal requested
        if requested:
            os._exit(128 + number)
        requested = True
        stop()

    loop = asyncio.get_running_loop()
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if _is_free(handler := signal.getsignal(number)):
                taken[number] = handler
                loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number, handler in taken.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _is_free(handler: Any) -> bool:
    """Whether this is the handler of Python, or that of asyncio.run, which cancels the main task on SIGINT."""
    of_asyncio = getattr(getattr(handler, "func", None), "__module__", None) == asyncio.Runner.__module__
    return handler in (signal.SIG_DFL, signal.default_int_handler) or of_asyncio
