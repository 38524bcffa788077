"""The project's SQL as text: named queries, migrations."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from outrider.storage import sql_files
from outrider.storage.decision import DEAD_LETTER_REASONS
from outrider.storage.message import OLDEST_SCHEMA_VERSION, SCHEMA_VERSION, Message
from outrider.storage.sql_files import Queries, migrations, script, sql_directory

WEIRD = 'we"ird %s'


def test_a_script_gets_quoted_names_and_keeps_percent_signs() -> None:
    sql = script("setup/publication.sql", schema=WEIRD, publication="it's")
    assert 'CREATE PUBLICATION "it\'s" FOR TABLE "we""ird %s".outbox' in sql


def test_a_variable_that_is_not_given_is_an_error() -> None:
    with pytest.raises(KeyError, match="publication"):
        script("setup/publication.sql", schema="public")


def test_queries_double_the_percent_signs_of_the_schema_because_they_are_bound() -> None:
    assert '"we""ird %%s".outbox' in Queries(WEIRD)["settle"]


def test_every_query_has_all_fragments_and_variables_replaced() -> None:
    for name, text in Queries("public").items():
        assert text, name
        without_casts_and_strings = re.sub(r"::|'[^']*'", "", text)
        assert not re.search(r":[\"'a-z]", without_casts_and_strings), name


def query_files() -> list[Path]:
    return sorted((sql_directory() / "queries").glob("*.sql"))


def test_every_query_says_what_it_is_for() -> None:
    for file in query_files():
        for line, following in pairwise(file.read_text().splitlines()):
            if re.fullmatch(r"-- \w+ --", line):
                assert following.startswith("-- "), (file.name, line)


def test_every_file_of_queries_says_first_who_runs_them() -> None:
    for file in query_files():
        assert re.match(r"-- (Run by|Fragments) ", file.read_text()), file.name


def test_a_query_that_is_in_two_files_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "queries").mkdir()
    for name in ("relay.sql", "scheduler.sql"):
        (tmp_path / "queries" / name).write_text("-- settle --\n-- Purpose.\nSELECT 1;\n")
    monkeypatch.setattr(sql_files, "sql_directory", lambda: tmp_path)
    with pytest.raises(ValueError, match=r"two blocks called settle, one of them in scheduler\.sql"):
        sql_files._read_blocks.__wrapped__()


def test_message_columns_are_the_fields_of_a_message_in_their_order() -> None:
    columns = re.findall(r"\bo\.(\w+)", Queries("public")["message_columns"])
    assert tuple(dict.fromkeys(columns)) == Message._fields


def test_the_table_of_dead_letters_allows_exactly_the_reasons_that_the_code_knows() -> None:
    reasons = ", ".join(f"'{reason}'" for reason in DEAD_LETTER_REASONS)
    assert f"CHECK (reason IN ({reasons}))" in script("schema.sql", schema="public")


def test_migrations_are_numbered_from_one_without_a_gap() -> None:
    assert [migration.version for migration in migrations()] == list(range(1, len(migrations()) + 1))


def test_every_migration_records_itself() -> None:
    for migration in migrations():
        sql = script(migration.path, schema="public")
        assert re.search(rf"outbox_migration \(version, name\) VALUES\s*\({migration.version}, ", sql), migration


def test_the_supported_versions_are_the_same_in_sql_and_in_python() -> None:
    condition = f"schema_version BETWEEN {OLDEST_SCHEMA_VERSION} AND {SCHEMA_VERSION}"
    assert condition in Queries("public")["claim_due"]
