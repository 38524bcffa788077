"""
Grants: does each role have what its job takes? The jobs and their privileges are those of sql/roles.sql.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from outrider.operations.doctor.finding import Finding, failed, ok, warning
from outrider.storage.sql_files import quote_identifier, sql_directory

_GRANT = re.compile(r"^GRANT ([A-Z, ]+) ON (SCHEMA\b)?([^;]+?) TO ([^;]+);", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Need:
    job: str
    privilege: str
    relation: str | None
    """None: the schema."""


@dataclass(frozen=True, slots=True)
class Missing:
    role: str
    relation: str | None
    privilege: str


def needs() -> list[Need]:
    """What every job takes, as sql/roles.sql grants it."""
    text = re.sub(r"^\s*--.*$", "", (sql_directory() / "roles.sql").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = []
    for privileges, schema, objects, jobs in _GRANT.findall(text):
        relations = [None] if schema else re.findall(r':"schema"\.(\w+)', objects)
        for job in re.findall(r':"(\w+)"', jobs):
            found += [
                Need(job, privilege.strip(), relation) for relation in relations for privilege in privileges.split(",")
            ]
    return found


def jobs(needed: Iterable[Need]) -> list[str]:
    return list(dict.fromkeys(need.job for need in needed))


def lacking(needed: Iterable[Need], job: str, role: str, missing: Iterable[Missing]) -> list[Missing]:
    """What of the job's needs the role is missing."""
    wanted = {(need.relation, need.privilege) for need in needed if need.job == job}
    return [each for each in missing if each.role == role and (each.relation, each.privilege) in wanted]


def check_role(job: str, role: str, lacking: list[Missing], schema: str) -> Finding:
    check = f"grants of the {job}"
    if lacking:
        what = ", ".join(f"{each.privilege} on {each.relation or 'the schema'}" for each in lacking)
        return failed(check, f"{role} lacks {what}", _grants(lacking, schema))
    return ok(check, f"{role} has what sql/roles.sql grants")


def check_own_role(role: str, able: Sequence[str]) -> Finding:
    """`able`: the jobs for which the asking role lacks nothing."""
    if able:
        return ok("own grants", f"{role} can act as {', '.join(able)}")
    return warning(
        "own grants", f"{role} has the grants of no job, so that little can be seen", "GRANT it a role of sql/roles.sql"
    )


def check_unknown_roles(roles: Mapping[str, str], there: Collection[str]) -> list[Finding]:
    """Roles that somebody asked for by name."""
    return [
        failed(f"grants of the {job}", f"there is no role {role}", "create it (see sql/roles.sql), or correct --role")
        for job, role in roles.items()
        if role not in there
    ]


def _grants(lacking: list[Missing], schema: str) -> str:
    """The statements that give what is lacking."""
    statements = []
    for relation, group in groupby(lacking, key=lambda each: each.relation):
        privileges = ", ".join(each.privilege for each in group)
        target = f"{schema}.{relation}" if relation else f"SCHEMA {schema}"
        statements.append(f"GRANT {privileges} ON {target} TO {quote_identifier(lacking[0].role)}")
    return "; ".join(statements)
