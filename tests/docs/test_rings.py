"""The tests stand in their rings: no test module imports another one, what they share is in ``support``."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
NOT_RINGS = {"support", "bench"}
READ_ONCE = pytest.mark.xdist_group("source")
PROCESSES = {"subprocess", "multiprocessing", "psycopg", "pyspark.sql.SparkSession", "support.postgres"}


@cache
def imported(module: Path) -> set[str]:
    """The names of all modules that it imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@READ_ONCE
def test_no_module_imports_a_test_module() -> None:
    modules = {module: imported(module) for module in TESTS.rglob("*.py")}
    tests = {module.stem for module in modules if module.name.startswith("test_")}
    assert len(tests) > 100
    wrong = {
        f"{module.relative_to(TESTS)}: {name}"
        for module, names in modules.items()
        for name in names
        if not name.startswith("xaqueue.") and tests.intersection(name.split("."))
    }
    assert wrong == set()


def test_every_ring_is_a_marker_and_has_its_row() -> None:
    rings = {module.relative_to(TESTS).parts[0] for module in TESTS.rglob("test_*.py")}
    options = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert {marker.partition(":")[0] for marker in options["markers"]} == rings
    assert set(re.findall(r"^\| `(\w+)", (TESTS / "README.md").read_text(), re.MULTILINE)) == rings
    assert not rings & NOT_RINGS


@READ_ONCE
def test_the_unit_ring_starts_no_process() -> None:
    wrong = {
        f"{module.relative_to(TESTS)}: {name}"
        for module in (TESTS / "unit").rglob("*.py")
        for name in imported(module)
        if any(name == one or name.startswith(f"{one}.") for one in PROCESSES)
    }
    assert wrong == set()


@pytest.mark.xdist_group("alone")
def test_a_group_is_kept_in_one_worker(request: pytest.FixtureRequest) -> None:
    """Else each worker starts a Spark session and a browser of its own: pytest-xdist knows a group by this name."""
    is_dealt_by_groups = bool(request.config.getoption("loadgroup", False))
    assert request.node.nodeid.endswith("@alone") == is_dealt_by_groups
