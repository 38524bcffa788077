"""
SmallDisk: a tmpfs for the database's files, so that it can be filled without filling the machine's disk.

Needs root and the right to mount; `SmallDisk.mount` returns None without them. It is unmounted at the end, also if the
process that mounted it is killed: a shell under the process guard unmounts it on SIGTERM.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path

from outrider.embedded.process import ProcessGuard

SIZE = "1536m"
PAGE_BYTES = 4096
UNMOUNTER = 'trap "umount -l $0; exit 0" TERM; while :; do sleep 1 & wait $!; done'


class SmallDisk:
    def __init__(self, directory: Path, guard: ProcessGuard) -> None:
        self.directory = directory
        self._filler = directory / "filler"
        self._unmounter = guard.start(
            ["/bin/sh", "-c", UNMOUNTER, str(directory)],
            directory=Path("/"),
            environment=dict(os.environ),
            log_file=Path(os.devnull),
            stop_signal=signal.SIGTERM,
        )

    @classmethod
    def mount(cls, directory: Path, guard: ProcessGuard) -> SmallDisk | None:
        directory.mkdir(mode=0o711)
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=711", "tmpfs", str(directory)]
        try:
            mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            mounted = False
        if not mounted:
            directory.rmdir()
            return None
        return cls(directory, guard)

    def fill(self) -> None:
        """Fill the disk completely."""
        with self._filler.open("wb", buffering=0) as file:
            size = 0
            step = 64 * 1024 * 1024
            while step >= PAGE_BYTES:
                try:
                    os.posix_fallocate(file.fileno(), size, step)
                    size += step
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 4

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def unmount(self) -> None:
        self._unmounter.end(signal.SIGTERM, 10.0)
