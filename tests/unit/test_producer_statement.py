"""Named queries in the notation of each driver."""

from __future__ import annotations

import pytest

from outrider import Outbox
from outrider.producer.statement import Statement


def test_a_named_query_becomes_numbered_parameters() -> None:
    statement = Statement("SELECT %(b)s, %(a)s, %(b)s, 5 %% 2")
    assert statement.numeric == "SELECT $1, $2, $1, 5 % 2"
    assert statement.arguments({"a": 1, "b": 2, "c": 3}) == [2, 1]


def test_a_schemas_percent_sign_survives_the_translation() -> None:
    statement = Outbox(schema="100%")._statements["enqueue"]
    assert '"100%%".outbox' in statement.pyformat
    assert '"100%".outbox' in statement.numeric


def test_the_error_for_a_wrong_handle_lists_the_accepted_ones() -> None:
    with pytest.raises(
        TypeError, match=r"builtins\.object is not a handle; accepted are: a psycopg Connection.*asyncpg"
    ):
        Outbox().publish(object(), "x", {})  # type: ignore[call-overload]


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="warn, raise, allow"):
        Outbox(outside_transaction="maybe")  # type: ignore[arg-type]
