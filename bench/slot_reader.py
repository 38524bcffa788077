"""
SlotReader: a process that reads a backlog from a slot on request: bench.decode_ours or bench.decode_debezium.

A line on its standard input requests a reading, and it answers with a line of JSON on its standard output. It ends when
its input ends. A reading counts only if every row arrived once.
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

from bench.messages import event_id
from bench.servers import ROOT, BenchmarkError

END_SECONDS = 30.0


@dataclass(frozen=True)
class Reading:
    rows: int
    first_rows: int
    """Rows of the first batch. The time starts after it, so they do not count."""
    seconds: float
    cpu_seconds: float
    """CPU time of all threads of the process, for the whole reading."""

    @classmethod
    def checked(cls, answer: dict[str, Any], expected: int) -> Reading:
        """Raise BenchmarkError unless rows 0 to expected - 1 arrived once each, and not all in one batch."""
        read = Counter(answer["event_ids"])
        wanted = Counter(str(event_id(number)) for number in range(expected))
        if read != wanted:
            missing, extra = (wanted - read).total(), (read - wanted).total()
            raise BenchmarkError(f"{missing} of {expected} rows were not read, {extra} too many")
        if answer["first_rows"] >= expected or answer["seconds"] <= 0:
            raise BenchmarkError(f"{expected} rows arrived in one batch: too few to measure a rate")
        return cls(expected, answer["first_rows"], answer["seconds"], answer["cpu_seconds"])

    @property
    def rows_per_second(self) -> float:
        return (self.rows - self.first_rows) / self.seconds

    @property
    def cpu_microseconds_per_row(self) -> float:
        return self.cpu_seconds / self.rows * 1e6


class SlotReader:
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
            pass  # then the answer is empty
        answer = self._process.stdout.readline()
        if not answer:
            raise BenchmarkError(f"the reader ended: {self._last_log_line()}")
        return Reading.checked(json.loads(answer), self._rows)

    def _last_log_line(self) -> str:
        lines = self._log_file.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"


@contextmanager
def slot_reader(command: Sequence[str], rows: int, directory: Path) -> Iterator[SlotReader]:
    """Run the command in this directory, with its log file there."""
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
            process_group=0,  # Ctrl-C goes to the benchmark, which then closes the pipe
        )
    try:
        yield SlotReader(process, log_file, rows)
        _end(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _end(process: subprocess.Popen[str]) -> None:
    try:
        process.communicate(timeout=END_SECONDS)  # closes the input of the process
    except subprocess.TimeoutExpired:
        process.kill()
