"""Fingerprints: failures that differ only in numbers, ids and quoted values have the same one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.storage.fingerprint import LENGTH, fingerprint, pattern


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, ""),
        ("NoRoute: 312 NO_ROUTE", "NoRoute: <n> NO_ROUTE"),
        ("queue 'orders-17' is full", "queue <value> is full"),
        ('exchange "it\'s \\"quoted\\"" is missing', "exchange <value> is missing"),
        ("task 0d9f1c52-6e0c-4c52-9a7e-1d2f3a4b5c6d gone", "task <id> gone"),
        ("object at 0x7f3A and commit 8f2e9a11c0ffee", "object at <id> and commit <id>"),
        ("took 1.5 s, at 12:30:05, -3 left", "took <n> s, at <n>, <n> left"),
        ("the deadbeef cafe is a word", "the deadbeef cafe is a word"),
    ],
)
def test_numbers_ids_and_quoted_values_are_replaced(error: str | None, expected: str) -> None:
    assert pattern(error) == expected


def test_the_same_failure_has_the_same_fingerprint_and_another_one_does_not() -> None:
    one = fingerprint("rejected", "order.placed", "Nacked: queue 'a' holds 17")
    assert one == fingerprint("rejected", "order.placed", "Nacked: queue 'b' holds 4")
    others = {
        fingerprint("expired", "order.placed", "Nacked: queue 'a' holds 17"),
        fingerprint("rejected", "order.paid", "Nacked: queue 'a' holds 17"),
        fingerprint("rejected", "order.placed", "NoRoute: queue 'a' holds 17"),
        fingerprint("rejected", "order.placed", None),
    }
    assert len(others | {one}) == 5


@given(st.text(), st.text(), st.none() | st.text())
def test_every_text_has_a_fingerprint(reason: str, event_type: str, error: str | None) -> None:
    name = fingerprint(reason, event_type, error)
    assert len(name) == LENGTH
    assert int(name, 16) >= 0
