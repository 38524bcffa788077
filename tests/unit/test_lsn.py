"""A WAL position prints and parses as PostgreSQL does, and is an int otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cdc_relay.lsn import Lsn

POSITIONS = st.integers(0, 2**64 - 1)


def test_a_position_prints_as_postgresql_prints_it() -> None:
    lsn = Lsn(0x16_B374D848)

    assert str(lsn) == "16/B374D848"
    assert f"{lsn}" == "16/B374D848"
    assert repr(lsn) == "Lsn('16/B374D848')"


def test_no_position_prints_as_zero() -> None:
    assert str(Lsn(0)) == "0/0"


@pytest.mark.parametrize("text", ["0/1a", "0/1A", "0/0000001A", "00000000/1A"])
def test_case_and_leading_zeros_do_not_matter(text: str) -> None:
    assert Lsn.parse(text) == 0x1A


@given(POSITIONS)
def test_a_printed_position_parses_back(value: int) -> None:
    parsed = Lsn.parse(str(Lsn(value)))

    assert parsed == value
    assert type(parsed) is Lsn


@given(POSITIONS, POSITIONS)
def test_positions_compare_as_numbers(left: int, right: int) -> None:
    assert (Lsn(left) < Lsn(right)) == (left < right)
    assert (Lsn(left) == right) == (left == right)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "16",
        "16/",
        "/16",
        "1/2/3",
        "g/0",
        "-1/0",
        "+1/0",
        "0x1/0",
        " 1/0",
        "1/0\n",
        "1_0/0",
        "123456789/0",
        "\u0661/0",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a WAL position"):
        Lsn.parse(text)


@given(st.text())
def test_random_text_parses_or_is_a_value_error(text: str) -> None:
    try:
        parsed = Lsn.parse(text)
    except ValueError:
        return
    assert 0 <= parsed < 2**64
