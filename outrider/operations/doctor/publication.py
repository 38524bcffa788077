"""
The publication: does it exist, does it publish exactly what the relay reads, and can the slot find it?
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outrider.operations.doctor.finding import Finding, failed, ok, warning
from outrider.operations.setup.facts import PublicationShape, SlotState

CHECK = "publication"
AGE_CHECK = "publication before slot"


@dataclass(frozen=True, slots=True)
class CatalogAges:
    """Ages in transactions."""

    publication_age: int
    slot_age: int | None
    """Of the oldest catalog that the slot can still read; None: no slot, or a lost one."""


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


def check_age(ages: CatalogAges, slot: SlotState) -> Iterator[Finding]:
    """
    A slot decodes with the catalog of its position: it does not find a publication that was created later.

    A slot that a relay reads has found it. Otherwise a publication that seems younger can still be older: a long
    transaction that ran while the slot was created makes the slot reserve an older catalog than it reads.
    """
    if ages.slot_age is None:
        return
    if slot.active or ages.publication_age > ages.slot_age:
        yield ok(AGE_CHECK, f"slot {slot.name} can find the publication")
    else:
        yield warning(
            AGE_CHECK,
            f"the publication was created or changed after slot {slot.name}, which may not find it",
            "start the relay, which replaces such a slot, or drop the slot and run `outrider setup`",
        )
