"""
Health: what a service's loop knows about itself, for probes.

The loop writes (`beat` at every turn, the wire, the role), other threads read; nothing here starts a thread or does
network I/O. Healthy: the loop turned within `stall_seconds` and the wire has not been reported silent. Ready: healthy,
and connected in a role; a standby is ready, and says that it stands by.

Where probes have no HTTP, `liveness_file` is touched by the turning loop, at most once a second, while the service is
healthy: a probe compares its age with `stall_seconds`. It is removed at the end. It must be an empty file or none at
the start, so that a wrong path costs nobody a file.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple

from outrider.errors import SettingsError
from outrider.telemetry.logs import get_logger

Role = Literal["starting", "standby", "active", "stopping"]
TOUCH_SECONDS = 1.0

log = get_logger(__name__)


class _Standing(NamedTuple):
    """Replaced as a whole, so that readers never see half of a change."""

    ready: bool
    role: Role
    reason: str


class Health:
    """The facts of one service. As a context manager it creates the liveness file, and removes it at the end."""

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
        self._beaten = self._touched = clock()
        self._heard: float | None = None
        self._silence: str | None = None
        self._standing = _Standing(False, "starting", "not connected yet")
        self._touch_failed = False

    def __enter__(self) -> Health:
        if self._liveness_file is not None:
            _check_liveness_file(self._liveness_file)
            try:
                self._liveness_file.touch()
            except OSError as error:
                raise SettingsError(f"liveness_file: cannot write {self._liveness_file}: {error.strerror}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Not ready any more, and no liveness file."""
        self.stopping()
        if self._liveness_file is not None:
            with suppress(OSError):
                self._liveness_file.unlink(missing_ok=True)
            self._liveness_file = None

    def beat(self) -> None:
        """The loop turned. Cheap: to be called at every turn."""
        self._beaten = now = self._clock()
        if now - self._touched >= TOUCH_SECONDS and self._silence is None and self._liveness_file is not None:
            self._touched = now
            self._touch(self._liveness_file)

    def wire_heard(self) -> None:
        """The other end (of the replication stream, of the database connection) sent something."""
        self._heard = self._clock()
        self._silence = None

    def wire_silent(self, reason: str) -> None:
        """The other end does not answer though asked: unhealthy until it is heard again."""
        self._silence = reason

    def ready(self, role: Literal["standby", "active"], reason: str = "") -> None:
        """Connected, and at work or standing by."""
        self._standing = _Standing(True, role, reason)

    def not_ready(self, reason: str) -> None:
        """Not connected (again): the reason is for people."""
        self._standing = _Standing(False, "starting", reason)

    def stopping(self) -> None:
        """The drain has begun."""
        self._standing = _Standing(False, "stopping", "shutting down")

    @property
    def role(self) -> Role:
        return self._standing.role

    def healthz(self) -> tuple[bool, dict[str, object]]:
        """Should this process live on? With the facts behind the answer."""
        now = self._clock()
        stalled, heard, silence = now - self._beaten, self._heard, self._silence
        reason = ""
        if stalled > self._stall_seconds:
            reason = f"the loop has not turned for {stalled:.0f} s"
        elif silence is not None:
            reason = f"the wire is silent: {silence}"
        return not reason, {
            "healthy": not reason,
            "reason": reason,
            "last_turn_seconds": round(stalled, 3),
            "last_heard_seconds": None if heard is None else round(now - heard, 3),
        }

    def readyz(self) -> tuple[bool, dict[str, object]]:
        """Can this process do its work, in whichever role?"""
        standing = self._standing
        healthy, facts = self.healthz()
        ready = healthy and standing.ready
        return ready, {"ready": ready, "role": standing.role, "reason": standing.reason if healthy else facts["reason"]}

    def _touch(self, file: Path) -> None:
        try:
            file.touch()
        except OSError as error:  # delivering goes on: it is the probe's business to notice
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
