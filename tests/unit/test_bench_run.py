"""Running the benchmarks: a failing measurement does not affect others, and invalid readings do not count."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from bench.figures import WANTED, Figures, percentile
from bench.machine import memory_directory
from bench.messages import event_id
from bench.peer_venv import PeerUnavailable
from bench.run import Part, run_parts
from bench.scale import QUICK, Scale
from bench.servers import BenchmarkError, BenchServers
from bench.slot_reader import Reading


class NoServers:
    """In place of BenchServers: these measurements need none."""

    def start(self) -> None: ...


def succeed(_: BenchServers, __: Scale, figures: Figures) -> None:
    figures.put("bulk_enqueue_vs_insert", 1.25)


def fail_halfway(_: BenchServers, __: Scale, figures: Figures) -> None:
    figures.put("latency_p50_vs_direct", 1.0)
    raise BenchmarkError("3 of 10 messages did not arrive\nand a log")


def raise_peer_unavailable(_: BenchServers, __: Scale, ___: Figures) -> None:
    raise PeerUnavailable("no Java 17 here")


def raise_keyboard_interrupt(_: BenchServers, __: Scale, ___: Figures) -> None:
    raise KeyboardInterrupt


def hang(_: BenchServers, __: Scale, ___: Figures) -> None:
    time.sleep(60)


SUCCEED = Part("bulk", succeed, ("bulk_enqueue_vs_insert",))


def run(tmp_path: Path, *parts: Part, scale: Scale = QUICK) -> tuple[bool, dict[str, Any]]:
    console = Console(file=io.StringIO())
    complete = run_parts(parts, cast(BenchServers, NoServers()), scale, Figures(), console, tmp_path / "latest.json")
    return complete, json.loads((tmp_path / "latest.json").read_text())


def test_a_failing_part_is_null_with_its_reason_and_the_others_continue(tmp_path: Path) -> None:
    failing = Part("latency", fail_halfway, ("latency_p50_vs_direct", "latency_p99_vs_direct"))
    missing = Part("decode", raise_peer_unavailable, ("decode_vs_debezium",))
    complete, results = run(tmp_path, failing, missing, SUCCEED)
    assert complete
    assert set(WANTED) < set(results)
    assert results["bulk_enqueue_vs_insert"] == 1.25
    assert results["latency_p50_vs_direct"] is None
    assert results["latency_p99_vs_direct"] is None
    assert results["notes"]["latency_p50_vs_direct"] == "failed: 3 of 10 messages did not arrive"
    assert results["notes"]["decode_vs_debezium"] == "no Java 17 here"
    assert results["notes"]["worker_vs_raw_consume"] == "not part of this run"


def test_ctrl_c_ends_the_run_and_keeps_the_results_so_far(tmp_path: Path) -> None:
    interrupted = Part("worker", raise_keyboard_interrupt, ("worker_vs_raw_consume",))
    never = Part("latency", fail_halfway, ("latency_p50_vs_direct",))
    complete, results = run(tmp_path, SUCCEED, interrupted, never)
    assert not complete
    assert results["bulk_enqueue_vs_insert"] == 1.25
    assert results["notes"]["worker_vs_raw_consume"] == "interrupted"
    assert results["notes"]["latency_p50_vs_direct"] == "not part of this run"


def test_a_part_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    hanging = Part("worker", hang, ("worker_vs_raw_consume",))
    complete, results = run(tmp_path, hanging, SUCCEED, scale=replace(QUICK, part_seconds=0.05))
    assert complete
    assert results["notes"]["worker_vs_raw_consume"] == "failed: stopped after 0.05 s"
    assert results["bulk_enqueue_vs_insert"] == 1.25


def test_a_part_whose_peer_cannot_be_prepared_is_not_measured(tmp_path: Path) -> None:
    def prepare() -> None:
        raise PeerUnavailable("it could not be installed")

    complete, results = run(tmp_path, replace(SUCCEED, prepare=prepare))
    assert complete
    assert results["bulk_enqueue_vs_insert"] is None
    assert results["notes"]["bulk_enqueue_vs_insert"] == "it could not be installed"


def answer(*numbers: int, first_rows: int = 1, seconds: float = 2.0) -> dict[str, Any]:
    event_ids = [str(event_id(number)) for number in numbers]
    return {"event_ids": event_ids, "first_rows": first_rows, "seconds": seconds, "cpu_seconds": 0.5}


def test_the_rate_of_a_reading_is_that_of_the_rows_after_its_first_batch() -> None:
    assert Reading.checked(answer(2, 0, 1, 3, 4), expected=5).rows_per_second == 2.0


@pytest.mark.parametrize(
    ("read", "complaint"),
    [
        (answer(0, 1), "1 of 3 rows were not read, 0 too many"),
        (answer(0, 1, 1), "1 of 3 rows were not read, 1 too many"),
        (answer(0, 1, 2, 2), "0 of 3 rows were not read, 1 too many"),
        (answer(0, 1, 7), "1 of 3 rows were not read, 1 too many"),
        (answer(0, 1, 2, first_rows=3, seconds=0.0), "3 rows arrived in one batch: too few to measure a rate"),
    ],
)
def test_a_reading_counts_only_if_every_row_arrived_once(read: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BenchmarkError, match=f"^{complaint}$"):
        Reading.checked(read, expected=3)


def test_a_memory_directory_is_a_tmpfs_with_enough_space(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    for kind, expected in (("tmpfs", tmp_path), ("ext4", None)):
        mounts.write_text(f"proc /proc proc rw 0 0\nnone {tmp_path} {kind} rw 0 0\n")
        assert memory_directory(tmp_path, mounts, needed_bytes=1) == expected
    mounts.write_text(f"none {tmp_path} tmpfs rw 0 0\n")
    assert memory_directory(tmp_path, mounts, needed_bytes=1 << 80) is None
    assert memory_directory(tmp_path / "absent", mounts) is None
    assert memory_directory(tmp_path, tmp_path / "absent") is None


def test_a_percentile_is_the_value_that_this_share_does_not_exceed() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.99)) == (50.0, 99.0, 7.0)
