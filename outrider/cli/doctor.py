"""
`outrider doctor`: a line for everything that an outbox needs, whether it is so, and the remedy where it is not.
"""

from __future__ import annotations

import json
import sys
from collections import Counter

import click

from outrider.cli._options import Number
from outrider.operations.doctor import DoctorOptions, DoctorSettings, Finding, examine
from outrider.operations.doctor.roles import jobs, needs
from outrider.runtime.command import settings_flags
from outrider.settings.loading import load_settings

COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}
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
    known = jobs(needs())
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
    help="whose grants are examined for a job of sql/roles.sql, where the role is not called outbox_JOB; repeatable",
)
@click.option(
    "--exchange",
    "exchanges",
    multiple=True,
    metavar="NAME",
    help="an exchange that must exist, beside those of pending rows; repeatable",
)
@click.option(
    "--longest-transaction",
    type=Number(min=0),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="warn of transactions that have been open for longer",
)
@click.option("--strict", is_flag=True, help="warnings count as failures")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object: ok, failed, warnings, findings")
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
    Examine the database, the replication slot, the tables, the roles, the services and the broker.

    One line for each check: ok, warning or failed, what was found, and the remedy. Nothing is changed. The broker is
    examined where broker_url is set. Any role can ask; what it may not see is a warning, and the observer role of
    sql/roles.sql sees everything.

    Exit status: 0 nothing failed, 1 something did (with --strict: or there is a warning), 2 wrong settings or usage.
    """
    settings = load_settings(DoctorSettings, flags, config_file=config)
    findings = []
    for finding in examine(settings, DoctorOptions(roles, exchanges, longest_transaction)):
        findings.append(finding)
        if not as_json:
            level = click.style(f"{finding.level:<8}", fg=COLOURS[finding.level])
            click.echo(f"{level} {finding.line}")
    count = Counter(finding.level for finding in findings)
    healthy = not count["failed"] and not (strict and count["warning"])
    if as_json:
        click.echo(json.dumps(_document(findings, healthy)))
    else:
        click.echo(f"{count['ok']} ok, {count['warning']} warnings, {count['failed']} failed")
    if not healthy:
        sys.exit(1)


def _document(findings: list[Finding], healthy: bool) -> dict[str, object]:
    return {
        "ok": healthy,
        "failed": sum(finding.level == "failed" for finding in findings),
        "warnings": sum(finding.level == "warning" for finding in findings),
        "findings": [finding._asdict() for finding in findings],
    }
