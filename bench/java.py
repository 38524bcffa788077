"""
Java for the Debezium peer: found on this machine, or installed.

`python -m bench.java --install` installs Debian's or Ubuntu's package where root and apt-get are at hand. Nothing else
of the benchmarks installs anything outside this clone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import Final

from bench.peer_environment import PeerMissing

OLDEST: Final = 17
PACKAGES: Final = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
MISSING: Final = f"no Java {OLDEST} here: install it with `python -m bench.java --install` (root, Debian or Ubuntu)"
INSTALL_SECONDS: Final = 600


def java_version() -> str:
    """Such as 17.0.15. PeerMissing where there is none, or an older one."""
    try:
        run = subprocess.run(["java", "-version"], check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerMissing(MISSING) from error
    return checked_version(run.stderr)


def checked_version(told: str) -> str:
    """The version in what `java -version` tells."""
    match = re.search(r'version "((\d+)[^"]*)"', told)
    if match is None or int(match[2]) < OLDEST:
        raise PeerMissing(f"{MISSING}; there is {match[1] if match else 'an unknown one'}")
    return match[1]


def install_java() -> None:
    """The first of the packages that the machine's distribution has."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise PeerMissing("Java cannot be installed here: that needs root and apt-get")
    _apt_get("update")
    for package in PACKAGES:
        if _apt_get("install", "-y", "--no-install-recommends", package) == 0:
            return
    raise PeerMissing(f"apt-get could not install any of {', '.join(PACKAGES)}")


def _apt_get(*arguments: str) -> int:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "-q", *arguments]
    return subprocess.run(
        command, env=environment, check=False, capture_output=True, timeout=INSTALL_SECONDS
    ).returncode


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--install"]):
        sys.stderr.write("usage: python -m bench.java [--install]\n")
        return 2
    try:
        try:
            version = java_version()
        except PeerMissing:
            if not arguments:
                raise
            install_java()
            version = java_version()
    except (PeerMissing, subprocess.SubprocessError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"Java: {version}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
