"""
Set-up: what an outbox needs in its database, and how it gets there.

`facts` reads what is there, `plan` decides what is missing (pure), `apply` does it. The relay uses the same parts when
its slot is gone. Nothing here prints; wrong databases come out as SetupError, in one line that says what to do.
"""

from outrider.operations.setup.apply import apply_step, create_slot, drop_slot
from outrider.operations.setup.facts import (
    Facts,
    PublicationShape,
    SlotState,
    applied_migrations,
    handover_seconds,
    publication_problem,
    read_facts,
    server_problem,
    slot_state,
)
from outrider.operations.setup.plan import Step, Target, as_script, plan_setup, plan_teardown, slot_problem

__all__ = [
    "Facts",
    "PublicationShape",
    "SlotState",
    "Step",
    "Target",
    "applied_migrations",
    "apply_step",
    "as_script",
    "create_slot",
    "drop_slot",
    "handover_seconds",
    "plan_setup",
    "plan_teardown",
    "publication_problem",
    "read_facts",
    "server_problem",
    "slot_problem",
    "slot_state",
]
