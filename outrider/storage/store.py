"""
Store: every named query that the services and operators run, as methods, on one psycopg connection.

Each base class has the methods for one file of sql/queries/. How queries run (autocommit, deadlocks, errors) is in
query_runner.py.
"""

from __future__ import annotations

from outrider.storage.operator_queries import OperatorQueries
from outrider.storage.relay_queries import RelayQueries
from outrider.storage.scheduler_queries import SchedulerQueries
from outrider.storage.service_queries import ServiceQueries


class Store(ServiceQueries, RelayQueries, SchedulerQueries, OperatorQueries):
    """The outbox tables of one schema, over one connection. Not thread-safe."""
