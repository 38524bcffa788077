"""
Threads: run plain functions in a fixed number of threads.

A job that waits for a thread can be withdrawn or cancelled; a running job cannot be stopped. The threads are daemons,
so a handler that never returns does not keep the process alive (ThreadPoolExecutor would wait for it at exit).
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from outrider.consumer.errors import NotStarted

T = TypeVar("T")


class _Job(NamedTuple):
    work: Callable[[], Any]
    context: contextvars.Context
    future: Future[Any]


class Threads:
    """A pool that belongs to one event loop. Threads start when they are first needed."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in the caller's context and return its result. Raises NotStarted if it is withdrawn first."""
        future: Future[T] = Future()
        self._unfinished += 1
        try:
            self._jobs.put(_Job(work, contextvars.copy_context(), future))
            if len(self._threads) < min(self._count, self._unfinished):
                thread = threading.Thread(target=self._serve, name=f"handler-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            return await asyncio.wrap_future(future)
        finally:
            self._unfinished -= 1

    def withdraw(self) -> None:
        """Withdraw every job that has not started."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None and job.future.set_running_or_notify_cancel():
                job.future.set_exception(NotStarted())

    def close(self) -> None:
        """Let every thread end after its current job."""
        for _ in self._threads:
            self._jobs.put(None)
        self._threads.clear()

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.future.set_running_or_notify_cancel():
                try:
                    job.future.set_result(job.context.run(job.work))
                except (StopIteration, GeneratorExit) as error:  # asyncio cannot pass them on to a coroutine
                    job.future.set_exception(RuntimeError(f"the handler raised {type(error).__name__}"))
                except BaseException as error:  # also SystemExit: it must not end the thread
                    job.future.set_exception(error)
            del job  # keep no message in memory while the thread waits
