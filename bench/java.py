"""
Java for the Debezium peer: found on this machine, or installed.

`python -m bench.java --install` installs Debian's or Ubuntu's package (needs root and apt-get). No other part of the
benchmarks installs anything outside this clone.
"""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress
from typing import Final

from bench.peer_venv import PeerUnavailable
from outrider.embedded.install import apt_get_install
from outrider.embedded.process import EmbeddedServerError

OLDEST: Final = 17
PACKAGES: Final = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
MISSING: Final = f"Java {OLDEST} is not installed: run `python -m bench.java --install` (root, Debian or Ubuntu)"


def java_version() -> str:
    """For example 17.0.15. Raises PeerUnavailable if there is none, or an older one."""
    try:
        run = subprocess.run(["java", "-version"], check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerUnavailable(MISSING) from error
    return checked_version(run.stderr)


def checked_version(output: str) -> str:
    """Parse the output of `java -version`."""
    match = re.search(r'version "((\d+)[^"]*)"', output)
    if match is None or int(match[2]) < OLDEST:
        raise PeerUnavailable(f"{MISSING}; found: {match[1] if match else 'an unknown version'}")
    return match[1]


def install_java() -> None:
    """Install the first package that the distribution has."""
    for package in PACKAGES:
        with suppress(subprocess.CalledProcessError):
            apt_get_install("Java", package)
            return
    raise PeerUnavailable(f"apt-get could not install any of {', '.join(PACKAGES)}")


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--install"]):
        sys.stderr.write("usage: python -m bench.java [--install]\n")
        return 2
    try:
        try:
            version = java_version()
        except PeerUnavailable:
            if not arguments:
                raise
            install_java()
            version = java_version()
    except (PeerUnavailable, EmbeddedServerError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"Java: {version}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
