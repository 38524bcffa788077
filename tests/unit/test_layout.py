"""
The layout rules that import-linter cannot see: modules that are named in strings, entry points, and the old top-level
names, which must not come back.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PARTS = ("cdc_relay", "consumer", "producer", "retry_scheduler")
ROOMS = ("cli", "delivery", "demo", "embedded", "operations", "runtime", "settings", "storage", "telemetry")
MODULE = re.compile(r"outrider(?:\.[a-z_][a-z0-9_]*)+")


def python_files() -> Iterator[tuple[str, Path]]:
    """Every module of the package with its dotted name."""
    for path in sorted((ROOT / "outrider").glob("*.py")):
        yield f"outrider.{path.stem}", path
    for room in (*ROOMS, *PARTS):
        for path in sorted((ROOT / "outrider" / room).rglob("*.py")):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts), path


def modules_named_in_strings() -> Iterator[tuple[str, str]]:
    """(the module that holds the string, the module that it names), where a string is nothing but a module's name."""
    for name, path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value):
                yield name, node.value


def layer_of(module: str) -> int | None:
    """The height of its layer in the contract of pyproject.toml; None for a module that is in no layer."""
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    for height, layer in enumerate(reversed(layers)):
        if any(module == each or module.startswith(f"{each}.") for each in layer.split(" | ")):
            return height
    return None


def test_the_first_level_is_the_rooms_the_parts_and_a_few_modules() -> None:
    found = {path.name for path in (ROOT / "outrider").iterdir() if path.name != "__pycache__"}
    modules = {"__init__.py", "__main__.py", "errors.py", "failures.py", "version.py", "py.typed"}
    assert found == {*ROOMS, *PARTS, "sql", *modules}
    for part in (*PARTS, "sql"):
        assert (ROOT / "outrider" / part).readlink() == Path("..") / part


def test_every_room_and_part_is_in_a_layer() -> None:
    assert [name for name in (*ROOMS, *PARTS) if layer_of(f"outrider.{name}") is None] == []


def test_modules_that_are_named_in_strings_exist_and_lie_in_a_lower_layer() -> None:
    named = list(modules_named_in_strings())
    assert ("outrider.__init__", "outrider.producer") in named  # the search finds what it is meant to find
    for source, target in named:
        spec = find_spec(target) or find_spec(target.rpartition(".")[0])
        assert spec is not None, f"{source} names {target}, which does not exist"
        below, above = layer_of(target), layer_of(source)
        if below is not None and above is not None:
            assert below <= above, f"{source} names {target}, which is in a higher layer"


def test_entry_points_lead_to_something() -> None:
    scripts: dict[str, str] = PROJECT["project"]["scripts"]
    assert set(scripts) == {"outrider", "cdc-relay", "retry-scheduler"}
    for target in (*scripts.values(), *PROJECT["project"]["entry-points"]["pytest11"].values()):
        module, _, function = target.partition(":")
        assert module.startswith("outrider.")
        source = find_spec(module)
        assert source is not None
        assert source.origin is not None
        assert not function or f"def {function}(" in Path(source.origin).read_text()


@pytest.mark.parametrize("old", ["outbox", *PARTS])
def test_the_linter_refuses_the_old_top_level_names(old: str, tmp_path: Path) -> None:
    for statement in (f"import {old}", f"from {old} import anything", f"from {old}.module import anything"):
        (tmp_path / "sample.py").write_text(f"{statement}\n")
        checked = subprocess.run(
            [
                sys.executable,
                "-m",
                "ruff",
                "check",
                "--select",
                "TID251",
                "--config",
                str(ROOT / "pyproject.toml"),
                ".",
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "TID251" in checked.stdout, f"{statement}: {checked.stdout}{checked.stderr}"
