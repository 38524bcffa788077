"""
Grants: does each role have the privileges that its job needs? The jobs and their privileges are those of sql/roles.sql.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from outrider.operations.doctor.finding import Finding, failed, ok, warning
from outrider.storage.quoting import quote_identifier
from outrider.storage.sql_files import sql_directory

_GRANT = re.compile(r"^GRANT ([A-Z, ]+) ON (SCHEMA\b)?([^;]+?) TO ([^;]+);", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RequiredGrant:
    job: str
    privilege: str
    relation: str | None
    """None: the schema."""


@dataclass(frozen=True, slots=True)
class MissingGrant:
    role: str
    relation: str | None
    privilege: str


def required_grants() -> list[RequiredGrant]:
    """The grants of sql/roles.sql."""
    text = re.sub(r"^\s*--.*$", "", (sql_directory() / "roles.sql").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = []
    for privileges, schema, objects, jobs in _GRANT.findall(text):
        relations = [None] if schema else re.findall(r':"schema"\.(\w+)', objects)
        for job in re.findall(r':"(\w+)"', jobs):
            found += [
                RequiredGrant(job, privilege.strip(), relation)
                for relation in relations
                for privilege in privileges.split(",")
            ]
    return found


def jobs_of(required: Iterable[RequiredGrant]) -> list[str]:
    return list(dict.fromkeys(grant.job for grant in required))


def missing_for(
    required: Iterable[RequiredGrant], job: str, role: str, missing: Iterable[MissingGrant]
) -> list[MissingGrant]:
    """The missing grants of the role that the job requires."""
    of_job = {(grant.relation, grant.privilege) for grant in required if grant.job == job}
    return [each for each in missing if each.role == role and (each.relation, each.privilege) in of_job]


def check_role(job: str, role: str, missing: list[MissingGrant], schema: str) -> Finding:
    check = f"grants of the {job}"
    if missing:
        what = ", ".join(f"{each.privilege} on {each.relation or 'the schema'}" for each in missing)
        return failed(check, f"{role} lacks {what}", _grant_statements(missing, schema))
    return ok(check, f"{role} has the grants of sql/roles.sql")


def check_own_role(role: str, able: Sequence[str]) -> Finding:
    """`able`: the jobs for which this role has all grants."""
    if able:
        return ok("own grants", f"{role} can act as {', '.join(able)}")
    return warning(
        "own grants", f"{role} has the grants of no job, so little can be checked", "GRANT it a role of sql/roles.sql"
    )


def check_unknown_roles(roles: Mapping[str, str], existing: Collection[str]) -> list[Finding]:
    """`roles`: those given with --role."""
    return [
        failed(f"grants of the {job}", f"there is no role {role}", "create it (see sql/roles.sql), or correct --role")
        for job, role in roles.items()
        if role not in existing
    ]


def _grant_statements(missing: list[MissingGrant], schema: str) -> str:
    statements = []
    for relation, group in groupby(missing, key=lambda each: each.relation):
        privileges = ", ".join(each.privilege for each in group)
        target = f"{schema}.{relation}" if relation else f"SCHEMA {schema}"
        statements.append(f"GRANT {privileges} ON {target} TO {quote_identifier(missing[0].role)}")
    return "; ".join(statements)
