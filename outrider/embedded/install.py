"""
`python -m <module> [--install]` for a program that this project needs and pip does not bring: report it or install it.

Packages are installed with apt-get, which needs root on Debian or Ubuntu. Nothing is installed without `--install`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

from outrider.embedded.process import EmbeddedServerError


def apt_get_install(name: str, *packages: str) -> None:
    """Raises EmbeddedServerError without root or apt-get, CalledProcessError if apt-get fails."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise EmbeddedServerError(f"{name} cannot be installed: this needs root and apt-get")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        subprocess.run(["apt-get", "-q", *command], env=environment, check=True, stdout=subprocess.DEVNULL)


def install_main(
    arguments: Sequence[str],
    *,
    module: str,
    name: str,
    find: Callable[[], object | None],
    install: Callable[[], None],
    missing: str,
) -> int:
    """The exit status of the command; `missing` is printed if the program is not found."""
    if list(arguments) not in ([], ["--install"]):
        sys.stderr.write(f"usage: python -m {module} [--install]\n")
        return 2
    if arguments and find() is None:
        try:
            install()
        except (EmbeddedServerError, OSError, subprocess.SubprocessError) as error:
            sys.stderr.write(f"{error}\n")
            return 1
    found = find()
    sys.stdout.write(f"{name}: {found}\n" if found else f"{missing}\n")
    return 0 if found else 1
