"""The project's SQL as text: quoting, named queries, migrations."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from outrider.storage.message import Message
from outrider.storage.sql_files import Queries, migrations, quote_identifier, quote_literal, script, sql_directory

WEIRD = 'we"ird %s'


def test_identifiers_are_always_quoted() -> None:
    assert quote_identifier("public") == '"public"'
    assert quote_identifier('we"ird') == '"we""ird"'


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_name_that_postgresql_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        quote_identifier(name)


def test_literals_are_quoted_whatever_standard_conforming_strings_says() -> None:
    assert quote_literal("it's") == "'it''s'"
    assert quote_literal("back\\slash'") == " E'back\\\\slash'''"
    with pytest.raises(ValueError, match="NUL"):
        quote_literal("a\0b")


def test_a_script_gets_its_names_and_keeps_percent_signs() -> None:
    sql = script("setup/publication.sql", schema=WEIRD, publication="it's")
    assert 'CREATE PUBLICATION "it\'s" FOR TABLE "we""ird %s".outbox' in sql


def test_a_variable_that_is_not_given_is_an_error() -> None:
    with pytest.raises(KeyError, match="publication"):
        script("setup/publication.sql", schema="public")


def test_queries_double_the_percent_signs_of_the_schema_because_they_are_bound() -> None:
    assert '"we""ird %%s".outbox' in Queries(WEIRD)["settle"]


def test_every_query_is_expanded_and_has_nothing_left_to_fill_in() -> None:
    for name, text in Queries("public").items():
        assert text, name
        without_casts_and_strings = re.sub(r"::|'[^']*'", "", text)
        assert not re.search(r":[\"'a-z]", without_casts_and_strings), name


def test_every_query_says_what_it_is_for() -> None:
    lines = (sql_directory() / "queries.sql").read_text().splitlines()
    for line, following in pairwise(lines):
        if re.fullmatch(r"-- \w+ --", line):
            assert following.startswith("-- "), line


def test_message_columns_are_the_fields_of_a_message_in_their_order() -> None:
    columns = re.findall(r"\bo\.(\w+)", Queries("public")["message_columns"])
    assert tuple(dict.fromkeys(columns)) == Message._fields


def test_migrations_are_numbered_from_one_without_a_gap() -> None:
    assert [migration.version for migration in migrations()] == list(range(1, len(migrations()) + 1))


def test_every_migration_records_itself() -> None:
    for migration in migrations():
        sql = script(migration.path, schema="public")
        assert re.search(rf"outbox_migration \(version, name\) VALUES\s*\({migration.version}, ", sql), migration
