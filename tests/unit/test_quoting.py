"""Quoting of names and strings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.storage.quoting import quote_identifier, quote_literal, quote_replication_literal


def test_identifiers_are_always_quoted() -> None:
    assert quote_identifier("public") == '"public"'
    assert quote_identifier('we"ird') == '"we""ird"'


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_name_that_postgresql_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        quote_identifier(name)


def test_literals_mean_the_same_under_every_standard_conforming_strings() -> None:
    assert quote_literal("it's") == "'it''s'"
    assert quote_literal("back\\slash'") == " E'back\\\\slash'''"


def test_a_backslash_in_a_replication_command_is_an_ordinary_character() -> None:
    assert quote_replication_literal("back\\slash'") == "'back\\slash'''"


@pytest.mark.parametrize("quote", [quote_literal, quote_replication_literal])
def test_a_literal_with_a_nul_is_refused(quote: Callable[[str], str]) -> None:
    with pytest.raises(ValueError, match="NUL"):
        quote("a\0b")


@given(st.text(st.characters(exclude_characters="\0"), min_size=1))
def test_quoted_text_ends_only_at_its_last_quote(text: str) -> None:
    for quoted, mark in ((quote_identifier(text), '"'), (quote_replication_literal(text), "'")):
        assert quoted[0] == quoted[-1] == mark
        assert quoted[1:-1].replace(mark * 2, "").count(mark) == 0
        assert quoted[1:-1].replace(mark * 2, mark) == text
