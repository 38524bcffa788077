"""Describes the machine of a run, and reads memory and CPU time of a process from /proc."""

from __future__ import annotations

import os
import platform
import shutil
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psycopg

from bench.broker import open_connection
from bench.servers import BenchServers

MEMORY_DIRECTORY: Final = Path("/dev/shm")
MOUNTS: Final = Path("/proc/self/mounts")
MEMORY_BYTES: Final = 2 << 30
"""More than both servers write during one measurement."""


def memory_directory(
    directory: Path = MEMORY_DIRECTORY, mounts: Path = MOUNTS, *, needed_bytes: int = MEMORY_BYTES
) -> Path | None:
    """A tmpfs directory with space for two servers; None if there is none."""
    try:
        lines = (line.split() for line in mounts.read_text().splitlines())
        kinds = [kind for _, where, kind, *_ in lines if where == str(directory)]
        has_space = shutil.disk_usage(directory).free >= needed_bytes
    except OSError:
        return None
    return directory if kinds[-1:] == ["tmpfs"] and has_space else None


def describe(servers: BenchServers) -> dict[str, Any]:
    with psycopg.connect(servers.postgres.dsn()) as database:
        postgresql = database.info.parameter_status("server_version")
    with open_connection(servers.rabbitmq.url) as connection:
        rabbitmq = connection.server_properties.get("version")
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "processors": os.cpu_count(),
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "postgresql": postgresql,
        "rabbitmq": rabbitmq,
        "outrider": version("outrider"),
        "load_at_start": load(),
    }


def load() -> float:
    """The load average of the last minute. If it is not near 0 at the start, the figures are noisy."""
    return round(os.getloadavg()[0], 2)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far; other load on the machine hardly affects it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
