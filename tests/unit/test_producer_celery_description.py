"""The fast description of a task's arguments equals Celery's, or is None."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from celery.utils.saferepr import saferepr
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.producer.celery.description import describe

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30)
flat = st.lists(scalars, max_size=6) | st.lists(scalars, max_size=6).map(tuple) | st.dictionaries(st.text(), scalars)
anything = flat | st.lists(flat) | st.dictionaries(scalars, flat, max_size=4)


@given(anything, st.sampled_from([1024, 60, 9, 1, None]))
def test_a_description_equals_celerys(arguments: Any, longest: int | None) -> None:
    described = describe(arguments, longest)
    assert described is None or described == saferepr(arguments, longest)


@given(flat)
@example(["it's", 'a "word"', "a\\b\n"])
@example({"it's": True})
@example(("one",))
def test_flat_and_plain_arguments_are_described(arguments: Any) -> None:
    assert describe(arguments, 100_000) == saferepr(arguments, 100_000)


class Name(str):
    pass


@pytest.mark.parametrize(
    "arguments", [[[]], (Decimal(1),), {"a": b"bytes"}, {1: 2}, [Name("a")], {"a": {1}}, None, "a"]
)
def test_other_arguments_are_left_to_celery(arguments: Any) -> None:
    assert describe(arguments, 1024) is None
