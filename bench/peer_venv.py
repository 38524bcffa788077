"""
Virtual environments for the peers, created once below bench/venvs, without anything of this project.

PeerUnavailable says why a peer cannot run; the results that need it are then null, with this reason.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

DIRECTORY: Final = Path(__file__).parent / "venvs"
INSTALL_SECONDS: Final = 300


class PeerUnavailable(Exception):
    """A peer cannot run on this machine."""


def installed(name: str, requirements: Sequence[str]) -> Path:
    """The Python of a venv with exactly these requirements. An incomplete or different venv is created again."""
    directory = DIRECTORY / name
    python, stamp = directory / "bin" / "python", directory / ".installed"
    wanted = "\n".join(requirements)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(directory, ignore_errors=True)
        try:
            _run(sys.executable, "-m", "venv", str(directory))
            _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
        except (OSError, subprocess.SubprocessError) as error:
            raise PeerUnavailable(f"{requirements[0]} could not be installed: {_reason(error)}") from error
        stamp.write_text(wanted)
    return python


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)


def _reason(error: Exception) -> str:
    """The last line of pip's error output, if there is one."""
    lines = (getattr(error, "stderr", None) or "").strip().splitlines()
    return lines[-1] if lines else str(error)
