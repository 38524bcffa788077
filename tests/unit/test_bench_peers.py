"""Peers of the benchmarks: what is installed, what is left alone, and what is said where that is impossible."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench import java, peer_environment
from bench.java import checked_version
from bench.peer_environment import PeerMissing, installed


def test_java_must_be_new_enough() -> None:
    assert checked_version('openjdk version "17.0.15" 2025-04-15\n') == "17.0.15"
    with pytest.raises(PeerMissing, match=r"there is 1\.8\.0_402"):
        checked_version('java version "1.8.0_402"\n')
    with pytest.raises(PeerMissing, match="an unknown one"):
        checked_version("no such command")


def test_an_installed_java_is_left_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(java, "java_version", lambda: "17.0.15")
    monkeypatch.setattr(java, "install_java", lambda: pytest.fail("must not install"))
    assert java.main(["--install"]) == 0
    assert capsys.readouterr().out == "Java: 17.0.15\n"


def test_without_root_there_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert java.main(["--install"]) == 1
    assert capsys.readouterr().err == "Java cannot be installed here: that needs root and apt-get\n"
    assert java.main([]) == 1
    assert capsys.readouterr().err == f"{java.MISSING}\n"


def test_an_environment_is_made_once_for_the_same_requirements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands: list[tuple[str, ...]] = []

    def run(*command: str) -> None:
        commands.append(command)
        (tmp_path / "peer").mkdir(exist_ok=True)

    monkeypatch.setattr(peer_environment, "DIRECTORY", tmp_path)
    monkeypatch.setattr(peer_environment, "_run", run)
    assert installed("peer", ["peer==1"]) == tmp_path / "peer" / "bin" / "python"
    installed("peer", ["peer==1"])
    assert len(commands) == 2  # venv, pip
    installed("peer", ["peer==2"])
    assert [command[-1] for command in commands] == [
        str(tmp_path / "peer"),
        "peer==1",
        str(tmp_path / "peer"),
        "peer==2",
    ]


def test_a_peer_that_cannot_be_installed_is_missing_for_the_reason_that_pip_gave(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(*command: str) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="WARNING: retrying\nERROR: no network\n")

    monkeypatch.setattr(peer_environment, "DIRECTORY", tmp_path)
    monkeypatch.setattr(peer_environment, "_run", run)
    with pytest.raises(PeerMissing, match=r"^peer==1 could not be installed: ERROR: no network$"):
        installed("peer", ["peer==1"])
