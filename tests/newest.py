"""
What `make test-newest` asks: which packages to install, and whether their newest releases differ from those of `.venv`.

    python -m tests.newest requirements         every dependency of the project, without version bounds
    python -m tests.newest differs INTERPRETER  exit status 0 if that environment holds other releases than this one
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def requirements(project: dict[str, object]) -> list[str]:
    """Names with their extras; the project's own extras are resolved by listing all of them."""
    groups = project["optional-dependencies"]
    assert isinstance(groups, dict)
    parsed = [Requirement(text) for group in groups.values() for text in group]
    return sorted(
        {
            f"{each.name}[{','.join(sorted(each.extras))}]" if each.extras else each.name
            for each in parsed
            if each.name != project["name"]
        }
    )


def releases(interpreter: str) -> dict[str, str]:
    command = [interpreter, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    listed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {each["name"].lower(): each["version"] for each in listed}


def differences(tested: dict[str, str], newest: dict[str, str]) -> list[str]:
    """Packages in both environments with another release; pip itself does not count."""
    return [
        f"{name} {tested[name]} -> {newest[name]}"
        for name in sorted(tested.keys() & newest.keys() - {"pip", "setuptools"})
        if tested[name] != newest[name]
    ]


def main(arguments: list[str]) -> int:
    match arguments:
        case ["requirements"]:
            print(*requirements(tomllib.loads(PROJECT.read_text())["project"]))
            return 0
        case ["differs", interpreter]:
            found = differences(releases(sys.executable), releases(interpreter))
            print("\n".join(found) or "no dependency has a newer release than the one that `make test` tests")
            return 0 if found else 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
