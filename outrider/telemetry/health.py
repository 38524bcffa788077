"""
Health of a service, for liveness and readiness probes.

The service's main loop writes (`set_waiting`: its bookkeeping thread; `set_degraded`: a broker probe), other threads
read; nothing here starts a thread or does network I/O.
Healthy: the loop ran within `stall_seconds`, and its connection is not reported silent.
Ready: healthy, connected as active or standby, no statement hangs, and the broker can be reached.

For probes without HTTP, the loop touches `liveness_file` at most once a second while the service is healthy: a probe
compares its age with `stall_seconds`. The file is removed at the end. At the start it must be missing or empty, so that
a wrong path destroys no file.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from outrider.errors import SettingsError
from outrider.telemetry.logs import get_logger

Role = Literal["starting", "standby", "active", "stopping"]
TOUCH_SECONDS = 1.0

log = get_logger(__name__)


class _Readiness(NamedTuple):
    """Replaced as a whole, so that readers never see half of a change."""

    ready: bool
    role: Role
    reason: str


class Health:
    """As a context manager it creates the liveness file, and removes it at the end."""

    def __init__(
        self,
        *,
        stall_seconds: float = 30.0,
        liveness_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stall_seconds = stall_seconds
        self._liveness_file = liveness_file
        self._clock = clock
        self._loop_ran_at = self._touched_at = clock()
        self._heard_at: float | None = None
        self._silence: str | None = None
        self._waiting: str | None = None
        self._degraded: str | None = None
        self._readiness = _Readiness(False, "starting", "not connected yet")
        self._touch_failed = False

    def __enter__(self) -> Health:
        if self._liveness_file is not None:
            _check_liveness_file(self._liveness_file)
            try:
                self._liveness_file.touch()
            except OSError as error:
                raise SettingsError(f"liveness_file: cannot write {self._liveness_file}: {error.strerror}") from None
        return self

    def __exit__(self, *_: object) -> None:
        self.set_stopping()
        if self._liveness_file is not None:
            with suppress(OSError):
                self._liveness_file.unlink(missing_ok=True)
            self._liveness_file = None

    def record_loop(self) -> None:
        """The main loop ran. Cheap: to be called in every iteration."""
        self._loop_ran_at = now = self._clock()
        if now - self._touched_at >= TOUCH_SECONDS and self._silence is None and self._liveness_file is not None:
            self._touched_at = now
            self._touch(self._liveness_file)

    def connection_answered(self) -> None:
        """The other end of the replication or database connection sent something."""
        self._heard_at = self._clock()
        self._silence = None

    def connection_silent(self, reason: str) -> None:
        """The other end does not answer: unhealthy until `connection_answered`."""
        self._silence = reason

    def set_ready(self, role: Literal["standby", "active"], reason: str = "") -> None:
        """Connected, and active or standing by."""
        self._readiness = _Readiness(True, role, reason)

    def set_not_ready(self, reason: str) -> None:
        """Not connected, or not any more. `reason` is text for people."""
        self._readiness = _Readiness(False, "starting", reason)

    def set_waiting(self, reason: str | None) -> None:
        """A statement hangs, for this reason; None: no more. May be called from another thread."""
        self._waiting = reason

    def set_degraded(self, reason: str | None) -> None:
        """The broker cannot be reached, for this reason; None: it can. The role stays. Called from any thread."""
        self._degraded = reason

    def set_stopping(self) -> None:
        """The shutdown has begun."""
        self._readiness = _Readiness(False, "stopping", "shutting down")

    @property
    def role(self) -> Role:
        return self._readiness.role

    def healthz(self) -> tuple[bool, dict[str, object]]:
        """Whether the process is healthy (if not, it should be restarted), and the facts behind it."""
        now = self._clock()
        stalled, heard, silence = now - self._loop_ran_at, self._heard_at, self._silence
        reason = ""
        if stalled > self._stall_seconds:
            reason = f"the main loop has not run for {stalled:.0f} s"
        elif silence is not None:
            reason = f"the connection is silent: {silence}"
        return not reason, {
            "healthy": not reason,
            "reason": reason,
            "last_turn_seconds": round(stalled, 3),
            "last_heard_seconds": None if heard is None else round(now - heard, 3),
        }

    def readyz(self) -> tuple[bool, dict[str, object]]:
        """Whether the process can work, as active or standby, and the facts behind it."""
        readiness, waiting = self._readiness, self._waiting
        if waiting is None and self._degraded is not None:
            waiting = f"degraded: {self._degraded}"
        healthy, facts = self.healthz()
        ready = healthy and readiness.ready and waiting is None
        return ready, {
            "ready": ready,
            "role": readiness.role,
            "reason": (waiting or readiness.reason) if healthy else facts["reason"],
        }

    def _touch(self, file: Path) -> None:
        try:
            file.touch()
        except OSError as error:  # delivery goes on: the probe notices the old file
            if not self._touch_failed:
                log.warning("liveness_file_not_written", path=str(file), error=error.strerror)
            self._touch_failed = True
        else:
            self._touch_failed = False


def _check_liveness_file(file: Path) -> None:
    try:
        found = file.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise SettingsError(f"liveness_file: cannot read {file}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode) or found.st_size:
        raise SettingsError(f"liveness_file: {file} exists and is not an empty file: name another one")
