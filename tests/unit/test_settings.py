"""Settings: three sources, each overriding the one before; one error with all mistakes; no secret in any message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outrider.errors import SettingsError
from outrider.settings.database import DatabaseSettings
from outrider.settings.loading import load_settings
from outrider.settings.relay import RelaySettings
from outrider.settings.scheduler import SchedulerSettings
from outrider.settings.tls import TlsOptions

URL = "postgresql://shop:s3cret@db/shop"
BROKER = "amqp://guest:s3cret@broker//"


@pytest.fixture(autouse=True)
def _only_these_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OUTRIDER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "outbox.toml"


def mistakes(model: type[DatabaseSettings], flags: dict[str, object] | None = None, file: Path | None = None) -> str:
    with pytest.raises(SettingsError) as error:
        load_settings(model, flags or {}, config_file=str(file) if file else None)
    return str(error.value)


def test_the_environment_overrides_the_file_and_flags_override_both(
    monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    monkeypatch.setenv("OUTRIDER_SLOT", "from_environment")
    monkeypatch.setenv("OUTRIDER_SCHEMA", "from environment")
    monkeypatch.setenv("OUTRIDER_PUBLICATION", "")
    config.write_text(f'database_url = "{URL}"\nslot = "from_file"\nschema = "from file"\npublication = "from file"\n')
    settings = load_settings(DatabaseSettings, {"slot": "from_flag", "schema": None}, config_file=str(config))
    assert settings.database_dsn == URL
    assert settings.schema_name == "from environment"
    assert settings.slot == "from_flag"
    assert settings.publication == "from file"  # an empty variable counts as not set
    assert settings.log_level == "info"


LISTS = ["statsd_tags", "labelled_types", "reject_errors"]


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("text", ["NoRoute,Nacked", "NoRoute, Nacked", '["NoRoute", "Nacked"]'])
def test_a_list_is_comma_separated_or_json(name: str, text: str, monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    flags: dict[str, object] = {"database_url": URL, "broker_url": BROKER, "statsd_flavor": "dogstatsd"}
    monkeypatch.setenv(f"OUTRIDER_{name.upper()}", text)
    assert getattr(load_settings(RelaySettings, flags), name) == ("NoRoute", "Nacked")
    monkeypatch.delenv(f"OUTRIDER_{name.upper()}")
    config.write_text(f'{name} = ["NoRoute", "Nacked"]')
    assert getattr(load_settings(RelaySettings, flags, config_file=str(config)), name) == ("NoRoute", "Nacked")


def test_a_duration_is_a_number_of_seconds_or_text_with_a_unit(monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    monkeypatch.setenv("OUTRIDER_BACKOFF_SECONDS", "90s")
    config.write_text('max_backoff_seconds = "1h"\nsend_timeout_seconds = 2.5\ndead_letter_retention_seconds = "7d"')
    flags: dict[str, object] = {"database_url": URL, "broker_url": BROKER, "shutdown_timeout_seconds": "0s"}
    settings = load_settings(SchedulerSettings, flags, config_file=str(config))
    assert (settings.backoff_seconds, settings.max_backoff_seconds, settings.send_timeout_seconds) == (90, 3600, 2.5)
    assert (settings.shutdown_timeout_seconds, settings.dead_letter_retention_seconds) == (0, 7 * 86_400)
    assert "backoff_seconds: '90 s' is not a duration such as" in mistakes(
        RelaySettings, {**flags, "backoff_seconds": "90 s"}
    )


def test_the_file_can_be_named_in_the_environment(monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    config.write_text(f'database_url = "{URL}"\n')
    monkeypatch.setenv("OUTRIDER_CONFIG", str(config))
    assert load_settings(DatabaseSettings, {}).database_dsn == URL


def test_the_schema_is_called_schema_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_SCHEMA", 'we"ird %s')
    assert load_settings(DatabaseSettings, {"database_url": URL}).schema_name == 'we"ird %s'
    assert load_settings(DatabaseSettings, {"database_url": URL, "schema": "shop"}).schema_name == "shop"
    assert mistakes(DatabaseSettings, {"database_url": URL, "schema": "x" * 64}).startswith("schema: ")


def test_every_mistake_is_reported_at_once_by_the_name_of_its_setting(
    monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    monkeypatch.setenv("OUTRIDER_SLOT", "Not A Slot")
    monkeypatch.setenv("OUTRIDER_SLOTT", "outbox")
    config.write_text('window_mesages = 5\nhold_seconds = -1\nlog_level = "loud"\n')
    text = mistakes(RelaySettings, {"max_attempts": "many"}, config)
    for name in ("database_url", "broker_url", "slot", "hold_seconds", "log_level", "max_attempts"):
        assert f"{name}: " in text, name
    assert "OUTRIDER_SLOTT: unknown setting (did you mean slot?)" in text
    assert f"window_mesages in {config}: unknown setting (did you mean window_messages?)" in text
    assert "\n" not in text


def test_the_error_of_a_missing_setting_says_how_to_give_it() -> None:
    assert mistakes(DatabaseSettings) == (
        "database_url: must be set (OUTRIDER_DATABASE_URL, --database-url or the settings file)"
    )


def test_a_service_ignores_the_settings_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOLD_SECONDS", "1")
    monkeypatch.setenv("OUTRIDER_POLL_SECONDS", "2")
    flags = {"database_url": URL, "broker_url": BROKER}
    assert load_settings(RelaySettings, flags).hold_seconds == 1
    assert load_settings(SchedulerSettings, flags).poll_seconds == 2


def test_variables_of_tests_are_not_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_TEST_POSTGRES_URL", "x")
    load_settings(DatabaseSettings, {"database_url": URL})


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_SLOT", "")
    assert load_settings(DatabaseSettings, {"database_url": URL}).slot == "outbox"


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "soon", ""])
def test_a_duration_is_a_finite_number_of_seconds(value: str) -> None:
    assert mistakes(RelaySettings, {"database_url": URL, "broker_url": BROKER, "hold_seconds": value}).startswith(
        "hold_seconds: "
    )


@pytest.mark.parametrize("value", ["0", "-0.5"])
def test_a_timeout_is_positive(value: str) -> None:
    assert "send_timeout_seconds: " in mistakes(
        RelaySettings, {"database_url": URL, "broker_url": BROKER, "send_timeout_seconds": value}
    )


@pytest.mark.parametrize("slot", ["Outbox", "out-box", "ü", "", "x" * 64, 'a"b'])
def test_a_slot_has_a_name_that_postgresql_accepts(slot: str) -> None:
    assert mistakes(DatabaseSettings, {"database_url": URL, "slot": slot}).startswith("slot: ")


def test_secrets_are_neither_in_errors_nor_in_the_settings_as_text() -> None:
    settings = load_settings(RelaySettings, {"database_url": URL, "broker_url": BROKER, "sentry_dsn": "s3cret"})
    for text in (repr(settings), str(settings), settings.model_dump_json()):
        assert "s3cret" not in text
    broken = "postgresql://shop:s3cret@db:port/shop?nonsense=s3cret"
    text = mistakes(RelaySettings, {"database_url": broken, "broker_url": BROKER, "max_attempts": "s3cret"})
    assert text.startswith("database_url: ")
    assert "s3cret" not in text


def test_settings_cannot_be_changed_later() -> None:
    settings = load_settings(DatabaseSettings, {"database_url": URL})
    with pytest.raises(ValueError, match="frozen"):
        settings.slot = "other"


def test_retry_rules_come_from_tables_of_the_file_and_their_mistakes_are_named(config: Path) -> None:
    flags: dict[str, object] = {"database_url": URL, "broker_url": BROKER}
    config.write_text('[[retry_rules]]\nmatch = "order.*"\nmax_attempts = 9\n')
    settings = load_settings(SchedulerSettings, flags, config_file=str(config))
    assert [(rule.match, rule.max_attempts) for rule in settings.retry_rules] == [("order.*", 9)]
    config.write_text('[[retry_rules]]\nmatch = "order.*"\nmax_attempt = 9\n')
    assert mistakes(SchedulerSettings, flags, config).startswith("retry_rules[0][max_attempt]: ")


def test_a_file_that_cannot_be_read_is_an_error_in_one_line(config: Path) -> None:
    assert mistakes(DatabaseSettings, file=config) == (
        f"cannot read the settings file {config}: No such file or directory"
    )
    config.write_text("slot = ")
    assert mistakes(DatabaseSettings, file=config).startswith(f"{config} is not a TOML file: ")
    config.write_bytes(b"\xff\xfe")
    assert mistakes(DatabaseSettings, file=config).startswith(f"{config} is not a TOML file: ")


def test_tls_files_become_tls_options(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("broker_ca_file", "broker_certificate_file", "broker_key_file")}
    settings = load_settings(
        RelaySettings, {"database_url": "postgresql://db", "broker_url": "amqps://broker", **files}
    )
    assert settings.broker_tls == TlsOptions(*(str(file) for file in files.values()))  # type: ignore[arg-type]


def test_without_tls_files_certificates_are_verified() -> None:
    settings = load_settings(RelaySettings, {"database_url": "postgresql://db", "broker_url": "amqps://broker"})
    assert settings.broker_tls == TlsOptions(verify=True)
