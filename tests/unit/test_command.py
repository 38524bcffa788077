"""What all commands have in common: flags from settings, errors in one line, exit status."""

from __future__ import annotations

import sys
from typing import Never

import click
import pytest
from click.testing import CliRunner

from outrider.cli import outrider
from outrider.errors import DatabaseError, OutboxError, SettingsError
from outrider.runtime.command import run, settings_flags
from outrider.settings.database import DatabaseSettings, setting_name
from outrider.settings.loading import load_settings
from outrider.settings.relay import RelaySettings


def command_that_raises(error: BaseException) -> click.Command:
    @click.command("outrider")
    def command() -> Never:
        raise error

    return command


def run_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: click.Command, *arguments: str
) -> tuple[object, str]:
    """Exit status and standard error."""
    monkeypatch.setattr(sys, "argv", ["outrider", *arguments])
    with pytest.raises(SystemExit) as exit_:
        run(command)
    return exit_.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SettingsError("slot: too long"), 2),
        (DatabaseError("PostgreSQL: no", sqlstate="42501"), 1),
        (OutboxError("the broker refused"), 1),
    ],
)
def test_an_outbox_error_is_one_line_and_an_exit_status(
    error: OutboxError, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, stderr = run_with(monkeypatch, capsys, command_that_raises(error))
    assert code == status
    assert stderr == f"outrider: error: {error}\n"


def test_wrong_usage_ends_with_status_2_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, stderr = run_with(monkeypatch, capsys, command_that_raises(AssertionError()), "--no-such-flag")
    assert code == 2
    assert "--no-such-flag" in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), click.Abort()])
def test_ctrl_c_ends_with_status_130(
    interruption: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = run_with(monkeypatch, capsys, command_that_raises(interruption))
    assert code == 130


def test_a_bug_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["outrider"])
    with pytest.raises(ZeroDivisionError):
        run(command_that_raises(ZeroDivisionError()))


def test_every_setting_of_a_service_but_the_rules_is_a_flag_with_help() -> None:
    @click.command()
    @settings_flags(RelaySettings)
    def command(**flags: object) -> None: ...

    options = {option.name: option for option in command.params if isinstance(option, click.Option)}
    assert options.keys() == {setting_name(field) for field in RelaySettings.model_fields} - {"retry_rules"} | {
        "config"
    }
    assert all(option.help for option in options.values())


def test_only_the_wanted_settings_become_flags() -> None:
    @click.command()
    @settings_flags(DatabaseSettings, only=["database_url", "schema"])
    def command(**flags: object) -> None: ...

    assert {option.name for option in command.params} == {"config", "database_url", "schema"}


def test_help_lists_every_command_with_a_line() -> None:
    result = CliRunner().invoke(outrider, ["--help"])
    assert result.exit_code == 0
    for name in ("demo", "setup", "teardown"):
        assert any(line.split()[:1] == [name] and len(line.split()) > 2 for line in result.output.splitlines()), name


@pytest.mark.parametrize("flag", ["--statsd-tags", "--labelled-types", "--reject-errors"])
@pytest.mark.parametrize(
    "values", [["NoRoute,Nacked"], ["NoRoute", "Nacked"], ['["NoRoute"]', "Nacked"], ['["NoRoute","Nacked"]']]
)
def test_a_flag_with_a_list_takes_commas_and_can_be_repeated(flag: str, values: list[str]) -> None:
    seen: list[object] = []

    @click.command()
    @settings_flags(RelaySettings)
    def command(config: str | None, **flags: object) -> None:
        given: dict[str, object] = {"database_url": "host=db", "broker_url": "amqp://", "statsd_flavor": "dogstatsd"}
        settings = load_settings(RelaySettings, {**flags, **given}, config_file=config)
        seen.append(getattr(settings, flag.strip("-").replace("-", "_")))

    arguments = [argument for value in values for argument in (flag, value)]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert seen == [("NoRoute", "Nacked")]
    assert CliRunner().invoke(command, [], catch_exceptions=False).exit_code == 0
    assert seen[1] == ()
    refused = CliRunner().invoke(command, [flag, "[1]"])
    assert refused.exit_code == 2
    assert "neither comma-separated text nor a JSON array" in refused.output
