"""Find consumers and databases by name, as `outrider worker` does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outrider.consumer.discovery import find_consumers, find_database
from outrider.errors import SettingsError


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def test_every_consumer_of_the_modules_is_found_once(modules: Path) -> None:
    (modules / "first_found.py").write_text(
        "from outrider.consumer import consume\n"
        "@consume(queue='a')\ndef f(body): ...\n"
        "@consume(queue='b')\nasync def g(body): ...\n"
    )
    (modules / "second_found.py").write_text("from first_found import f\n")
    found = find_consumers(["first_found", "second_found"])
    assert [consumer.queue for consumer in found] == ["a", "b"]


def test_a_name_that_does_not_exist_is_a_one_line_error(modules: Path) -> None:
    (modules / "without_consumers.py").write_text("database = object()\n")
    for names, complaint in (
        (["without_consumers"], "without_consumers has no consumers: decorate a function"),
        (["no_such_module"], "there is no module no_such_module"),
        (["without_consumers.sub"], "there is no module without_consumers.sub"),
        ([".relative"], "is not the name of a module"),
        ([""], "is not the name of a module"),
    ):
        with pytest.raises(SettingsError, match=complaint):
            find_consumers(names)
    with pytest.raises(SettingsError, match="without_consumers has no nothing"):
        find_database("without_consumers:nothing")


def test_an_exception_of_the_applications_own_code_is_passed_on(modules: Path) -> None:
    (modules / "imports_missing.py").write_text("import not_installed_here\n")
    (modules / "raises_value_error.py").write_text("raise ValueError('mine')\n")
    with pytest.raises(ModuleNotFoundError, match="not_installed_here"):
        find_consumers(["imports_missing"])
    with pytest.raises(ValueError, match="mine"):
        find_consumers(["raises_value_error"])


def test_a_database_is_an_attribute_or_a_django_alias(modules: Path) -> None:
    (modules / "has_database.py").write_text("class settings:\n    engine = 'the engine'\n")
    assert find_database("has_database:settings.engine") == "the engine"
    assert find_database("default") == "default"
