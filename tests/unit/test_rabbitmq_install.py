"""Installing RabbitMQ: refusals, and the machine's own policy on services stays unchanged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from outrider.embedded import rabbitmq


def test_without_root_the_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rabbitmq, "find_rabbitmq", lambda: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert rabbitmq.main(["--install"]) == 1
    assert capsys.readouterr().err == "RabbitMQ cannot be installed: this needs root and apt-get\n"


def test_an_installed_rabbitmq_is_not_installed_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rabbitmq, "find_rabbitmq", lambda: Path("/usr/lib/rabbitmq/bin"))
    monkeypatch.setattr(rabbitmq, "install_rabbitmq", lambda: pytest.fail("must not install"))
    assert rabbitmq.main(["--install"]) == 0
    assert capsys.readouterr().out == "RabbitMQ: /usr/lib/rabbitmq/bin\n"


def test_services_are_denied_only_while_packages_are_installed(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    with rabbitmq.without_service_start(policy):
        assert subprocess.run([policy, "rabbitmq-server", "start"], check=False).returncode == 101
    assert not policy.exists()


def test_an_existing_policy_file_stays_unchanged(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("theirs")
    with rabbitmq.without_service_start(policy):
        assert policy.read_text() == "theirs"
    assert policy.read_text() == "theirs"
