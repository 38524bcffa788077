"""Installing RabbitMQ: what is refused, and that the machine's own policy on services is left as it was."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from outrider.embedded import rabbitmq


def test_without_root_there_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rabbitmq, "find_rabbitmq", lambda: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert rabbitmq.main(["--install"]) == 1
    assert capsys.readouterr().err == "RabbitMQ cannot be installed here: that needs root and apt-get\n"


def test_an_installed_rabbitmq_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rabbitmq, "find_rabbitmq", lambda: Path("/usr/lib/rabbitmq/bin"))
    monkeypatch.setattr(rabbitmq, "install_rabbitmq", lambda: pytest.fail("must not install"))
    assert rabbitmq.main(["--install"]) == 0
    assert capsys.readouterr().out == "RabbitMQ: /usr/lib/rabbitmq/bin\n"


def test_services_are_denied_only_while_packages_are_installed(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    with rabbitmq.services_held_back(policy):
        assert subprocess.run([policy, "rabbitmq-server", "start"], check=False).returncode == 101
    assert not policy.exists()


def test_a_policy_of_the_machine_itself_stays(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("theirs")
    with rabbitmq.services_held_back(policy):
        assert policy.read_text() == "theirs"
    assert policy.read_text() == "theirs"
