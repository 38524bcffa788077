"""Plain functions in threads: a limited number at a time, in the caller's context; waiting jobs can be withdrawn."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from outrider.consumer.errors import NotStarted
from outrider.consumer.threads import Threads

variable: ContextVar[str] = ContextVar("variable", default="unset")


def test_a_job_runs_in_its_callers_context_and_returns_or_raises() -> None:
    def fail() -> None:
        raise ValueError("mine")

    def stop() -> None:
        raise StopIteration

    async def main() -> None:
        threads = Threads(2)
        variable.set("the caller's")
        assert await threads.run(lambda: (variable.get(), threading.current_thread().daemon)) == ("the caller's", True)
        with pytest.raises(ValueError, match="mine"):
            await threads.run(fail)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.run(stop)
        threads.close()

    asyncio.run(main())


def test_jobs_beyond_the_number_of_threads_wait_and_can_be_withdrawn() -> None:
    release = threading.Event()
    began: list[int] = []

    def job(number: int) -> int:
        began.append(number)
        assert release.wait(30)
        return number

    async def main() -> list[Any]:
        threads = Threads(2)
        jobs = [asyncio.create_task(threads.run(lambda number=number: job(number))) for number in range(5)]  # type: ignore[misc]
        async with asyncio.timeout(30):
            while len(began) < 2:
                await asyncio.sleep(0.001)
        threads.withdraw()
        release.set()
        results = await asyncio.gather(*jobs, return_exceptions=True)
        threads.close()
        return results

    results = asyncio.run(main())
    assert results[:2] == [0, 1]
    assert [type(result) for result in results[2:]] == [NotStarted] * 3
    assert sorted(began) == [0, 1]


def test_a_job_that_ends_after_its_loop_closed_raises_nothing() -> None:
    began, release, ended = threading.Event(), threading.Event(), threading.Event()

    def job() -> None:
        began.set()
        assert release.wait(30)
        ended.set()

    async def main() -> Threads:
        threads = Threads(1)
        task = asyncio.create_task(threads.run(job))
        await asyncio.sleep(0)
        assert began.wait(30)
        task.cancel()
        return threads

    threads = asyncio.run(main())
    threads.close()
    release.set()
    assert ended.wait(30)
