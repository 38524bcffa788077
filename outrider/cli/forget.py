"""
`outrider forget`: delete the key with which the payloads of a subject are encrypted.
"""

from __future__ import annotations

import click

from outrider.cli._options import EXIT_STATUS, database_flags, json_flag, open_store, text, yes_flag
from outrider.cli._output import confirm, print_json, print_line


@click.command(name="forget", epilog=EXIT_STATUS)
@click.argument("subject", type=text())
@yes_flag
@json_flag
@database_flags
def command(config: str | None, subject: str, yes: bool, as_json: bool, **flags: object) -> None:
    """
    Make the encrypted payloads of SUBJECT unreadable.

    Deletes its key, so that they can never be read again: in the log of event streams, the outbox, the archive, the
    dead letters and at consumers.

    Backups of the database still have the key, and WAL that is archived; unencrypted payloads and read models are not
    touched. Needs the role that owns the tables.
    """
    with open_store(config, flags) as store:
        confirm(lambda: f"Delete the key of {subject} for ever?", yes=yes)
        had_key = store.forget_subject(subject)
    if as_json:
        print_json({"subject": subject, "had_key": had_key})
    else:
        print_line("forgotten" if had_key else "it had no key, and will get none")
