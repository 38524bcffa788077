"""
Set-up: create what an outbox needs in its database: tables, publication, slot.

`facts` reads what exists, `plan` decides which steps are missing (pure), `apply` runs a step. The relay uses `facts`
and `apply` when its slot is missing. Nothing here prints. A database that cannot be set up raises SetupError with what
to do.
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
