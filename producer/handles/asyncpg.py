"""asyncpg: a connection, or one that was acquired from a pool."""

from __future__ import annotations

from typing import Any

from outrider.producer.handles import Adapter, Guard, Rows, StatementsOnly
from outrider.producer.statement import Parameters, Statement


class Asyncpg(StatementsOnly):
    is_async = True

    def in_transaction(self, handle: Any) -> bool:
        return bool(handle.is_in_transaction())

    async def execute(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> int:
        guard(handle.is_in_transaction())
        status: str = await handle.execute(statement.numeric, *statement.arguments(parameters))
        return int(status.rpartition(" ")[2])  # "INSERT 0 1"

    async def fetch(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> Rows:
        guard(handle.is_in_transaction())
        return [tuple(row) for row in await handle.fetch(statement.numeric, *statement.arguments(parameters))]


ADAPTER: Adapter = Asyncpg()
