"""What several files of this tier share: the store of a database that a file has to itself, emptied for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outrider.storage.store import Store
from tests.fixtures.database import Database
from tests.fixtures.rows import emptied, scratch_database, store_of


@pytest.fixture(scope="module")
def scratch(template_database: Database) -> Iterator[Database]:
    with scratch_database(template_database) as database:
        yield database


@pytest.fixture
def store(scratch: Database) -> Iterator[Store]:
    with store_of(scratch) as store:
        yield emptied(store)
