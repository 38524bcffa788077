"""
The publication: is it there, does it publish what the relay reads and nothing else, and can the slot see it?
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outrider.operations.doctor.finding import Finding, failed, ok, warning
from outrider.operations.setup.facts import PublicationShape, SlotState

CHECK = "publication"
AGE_CHECK = "publication before slot"


@dataclass(frozen=True, slots=True)
class Ages:
    """In transactions since then."""

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
    return ok(CHECK, f"{publication} publishes inserts into {schema}.outbox alone")


def check_age(ages: Ages, slot: SlotState) -> Iterator[Finding]:
    """
    A slot decodes with the catalog as it was: it does not find a publication that is younger than its position.

    A slot from which a relay reads has found it. Otherwise a publication that seems younger may still be older: a
    transaction that ran for long when the slot was made reserves more of the past than the slot reads.
    """
    if ages.slot_age is None:
        return
    if slot.active or ages.publication_age > ages.slot_age:
        yield ok(AGE_CHECK, f"slot {slot.name} knows the publication")
    else:
        yield warning(
            AGE_CHECK,
            f"the publication was made or changed after slot {slot.name}, which may not find it",
            "start the relay, which replaces such a slot, or drop the slot and run `outrider setup`",
        )
