"""
Set-up: create what an outbox needs in its database: tables, publication, slot.

`facts` reads what exists, `plan` decides which steps are missing (pure), `apply` runs a step. The relay uses `facts`
and `apply` when its slot is missing. Nothing here prints. A database that cannot be set up raises SetupError with what
to do.
"""
