"""Peers of the benchmarks: installing them, leaving an installed one unchanged, and the errors."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench import java, peer_venv
from bench.java import checked_version
from bench.peer_venv import PeerUnavailable, installed


def test_java_must_be_new_enough() -> None:
    assert checked_version('openjdk version "17.0.15" 2025-04-15\n') == "17.0.15"
    with pytest.raises(PeerUnavailable, match=r"found: 1\.8\.0_402"):
        checked_version('java version "1.8.0_402"\n')
    with pytest.raises(PeerUnavailable, match="an unknown version"):
        checked_version("no such command")


def test_an_installed_java_is_not_installed_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(java, "java_version", lambda: "17.0.15")
    monkeypatch.setattr(java, "install_java", lambda: pytest.fail("must not install"))
    assert java.main(["--install"]) == 0
    assert capsys.readouterr().out == "Java: 17.0.15\n"


def test_without_root_the_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert java.main(["--install"]) == 1
    assert capsys.readouterr().err == "Java cannot be installed: this needs root and apt-get\n"
    assert java.main([]) == 1
    assert capsys.readouterr().err == f"{java.MISSING}\n"


def test_a_virtual_environment_is_created_once_for_the_same_requirements(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[tuple[str, ...]] = []

    def run(*command: str) -> None:
        commands.append(command)
        (tmp_path / "peer").mkdir(exist_ok=True)

    monkeypatch.setattr(peer_venv, "DIRECTORY", tmp_path)
    monkeypatch.setattr(peer_venv, "_run", run)
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


def test_a_peer_that_cannot_be_installed_is_unavailable_with_pips_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(*command: str) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="WARNING: retrying\nERROR: no network\n")

    monkeypatch.setattr(peer_venv, "DIRECTORY", tmp_path)
    monkeypatch.setattr(peer_venv, "_run", run)
    with pytest.raises(PeerUnavailable, match=r"^peer==1 could not be installed: ERROR: no network$"):
        installed("peer", ["peer==1"])
