"""
The publication: does it exist, and does it publish exactly what the relay reads?

A slot does not find a publication that was created after it. That is not checked: PostgreSQL does not say when either
was created (beside another slot, a slot's catalog_xmin is older than the slot), and the relay replaces such a slot.
"""

from __future__ import annotations

from outrider.operations.doctor.finding import Finding, failed, ok
from outrider.operations.setup.facts import PublicationShape

CHECK = "publication"


def check_publication(shape: PublicationShape | None, schema: str, publication: str) -> Finding:
    if shape is None:
        return failed(CHECK, f"there is no publication {publication}", "run `outrider setup`, or correct publication")
    if problem := shape.problem(schema, publication):
        repairable = not shape.all_tables and not shape.column_list and shape.tables in ([], [f"{schema}.outbox"])
        remedy = (
            "run `outrider setup`" if repairable else "drop it or choose another publication, and run `outrider setup`"
        )
        return failed(CHECK, problem, remedy)
    return ok(CHECK, f"{publication} publishes exactly the inserts into {schema}.outbox")
