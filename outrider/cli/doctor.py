"""
`outrider doctor`: one line for each thing that an outbox needs: is it right, and if not, what to do.
"""

from __future__ import annotations

import sys
from collections import Counter

import click

from outrider.cli._options import Number
from outrider.cli._output import print_json
from outrider.operations.doctor import DoctorOptions, DoctorSettings, examine
from outrider.operations.doctor.roles import jobs_of, required_grants
from outrider.runtime.command import settings_flags
from outrider.settings.loading import load_settings
from outrider.telemetry.printable import printable

COLOURS = {"ok": "green", "unknown": "magenta", "warning": "yellow", "failed": "red"}
SETTINGS = (
    "database_url",
    "replication_url",
    "schema",
    "publication",
    "slot",
    "broker_url",
    "send_timeout_seconds",
    "connect_timeout_seconds",
    "status_interval_seconds",
)


def _jobs_and_roles(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001
    values: tuple[str, ...],
) -> dict[str, str]:
    roles = dict(value.partition("=")[::2] for value in values)
    known = jobs_of(required_grants())
    if wrong := [job for job, role in roles.items() if job not in known or not role]:
        raise click.BadParameter(f"{wrong[0]!r} must be JOB=ROLE, with JOB one of {', '.join(known)}")
    return roles


@click.command(name="doctor")
@settings_flags(DoctorSettings, only=SETTINGS)
@click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="JOB=ROLE",
    callback=_jobs_and_roles,
    help="role that does a job of sql/roles.sql, if it is not called outbox_JOB; can be repeated",
)
@click.option(
    "--exchange",
    "exchanges",
    multiple=True,
    metavar="NAME",
    help="exchange that must exist, besides those of pending rows; can be repeated",
)
@click.option(
    "--longest-transaction",
    type=Number(min=0),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="warn of transactions that have been open for longer than this",
)
@click.option("--strict", is_flag=True, help="treat warnings and unknown as failures")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object: ok, failed, warnings, unknown, findings")
def command(
    config: str | None,
    roles: dict[str, str],
    exchanges: tuple[str, ...],
    longest_transaction: float,
    strict: bool,
    as_json: bool,
    **flags: object,
) -> None:
    """
    Check everything that an outbox needs.

    Checks the database, the replication slot, the tables, the roles, the services and the broker. Prints one line for
    each check: ok, unknown, warning or failed, what was found, and what to do. Changes nothing. The broker is checked
    if broker_url is set. Any role can run it: what could not be examined is unknown, and the observer role of
    sql/roles.sql may read everything.

    Exit status: 0 no check failed; 1 a check failed (with --strict: or was not ok); 2 wrong settings or usage.
    """
    settings = load_settings(DoctorSettings, flags, config_file=config)
    findings = []
    for finding in examine(settings, DoctorOptions(roles, exchanges, longest_transaction)):
        findings.append(finding)
        if not as_json:
            level = click.style(f"{finding.level:<8}", fg=COLOURS[finding.level])
            click.echo(f"{level} {printable(finding.line)}")
    count = Counter(finding.level for finding in findings)
    healthy = not count["failed"] and not (strict and (count["warning"] or count["unknown"]))
    if as_json:
        counts = {"ok": healthy, "failed": count["failed"], "warnings": count["warning"], "unknown": count["unknown"]}
        print_json({**counts, "findings": [finding._asdict() for finding in findings]})
    else:
        click.echo(
            f"{count['ok']} ok, {count['unknown']} unknown, {count['warning']} warnings, {count['failed']} failed"
        )
    if not healthy:
        sys.exit(1)
