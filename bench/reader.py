"""
A program that reads a backlog from a slot as often as it is asked to: bench.decode_ours or bench.decode_debezium.

It is asked by a line on its standard input, and answers each with a line of JSON on its standard output. It is a
process of its own, and ends when its input does, so that none is left behind. A reading counts only if every row
came, once.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.stage import ROOT, BenchmarkError
from bench.traffic import event_id

END_SECONDS = 30.0


@dataclass(frozen=True)
class Reading:
    rows: int
    first_rows: int
    """Those of the first batch: the time begins when they are there, so they do not count."""
    seconds: float
    cpu_seconds: float
    """Of all threads of the program, from its start-up of the reading to its end."""

    @classmethod
    def checked(cls, answer: dict[str, Any], expected: int) -> Reading:
        """BenchmarkError unless exactly the rows from 0 to so many came, each once, and not all in one batch."""
        came = Counter(answer["event_ids"])
        wanted = Counter(str(event_id(number)) for number in range(expected))
        if came != wanted:
            missing, foreign = (wanted - came).total(), (came - wanted).total()
            raise BenchmarkError(f"{missing} of {expected} rows were not read, {foreign} too many")
        if answer["first_rows"] >= expected or answer["seconds"] <= 0:
            raise BenchmarkError(f"{expected} rows came in one batch: too few to measure a rate")
        return cls(expected, answer["first_rows"], answer["seconds"], answer["cpu_seconds"])

    @property
    def rows_per_second(self) -> float:
        return (self.rows - self.first_rows) / self.seconds

    @property
    def cpu_microseconds_per_row(self) -> float:
        return self.cpu_seconds / self.rows * 1e6


class Reader:
    def __init__(self, process: subprocess.Popen[str], log_file: Path, rows: int) -> None:
        self._process = process
        self._log_file = log_file
        self._rows = rows

    def read(self) -> Reading:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("read\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the empty answer says it
        answer = self._process.stdout.readline()
        if not answer:
            raise BenchmarkError(f"the reader ended: {self._last_words()}")
        return Reading.checked(json.loads(answer), self._rows)

    def _last_words(self) -> str:
        lines = self._log_file.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "without a word"


@contextmanager
def reader(command: Sequence[str], rows: int, directory: Path) -> Iterator[Reader]:
    """A program that runs in this directory and logs there."""
    log_file = directory / "reader.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [*command, str(rows)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
            process_group=0,  # Ctrl-C is for the harness, which then closes the pipe
        )
    try:
        yield Reader(process, log_file, rows)
        _end(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _end(process: subprocess.Popen[str]) -> None:
    try:
        process.communicate(timeout=END_SECONDS)  # closes its input
    except subprocess.TimeoutExpired:
        process.kill()
