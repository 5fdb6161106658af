"""ARCHITECTURE.md names what there is: files, functions, classes, rooms and threads, read from the source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from support.package_source import NAMES, ROOT, called, defined_in, imports_of, is_in, tree_of

pytestmark = pytest.mark.xdist_group("source")  # which is read once

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "ARCHITECTURE.md").read_text()
TABLE = PAGE.partition("## The rooms")[2].partition("\n## ")[0]
ROOMS = [re.findall(r"`([^`]+)`", line.split("|")[1]) for line in TABLE.splitlines() if line.startswith("| `")]
LINES = 160
"""Two pages are what people read."""


def named_in(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


def is_there(name: str) -> bool:
    """A path from the project or from the package; else a module, what it defines, or a class and its member."""
    if "/" in name or name.endswith((".py", ".md")):
        return any((root / name).exists() for root in (PROJECT, ROOT))
    return any(is_in_module(name, module) for module in NAMES)


def is_in_module(name: str, module: str) -> bool:
    """The module may be named by the end of its name, or not at all."""
    if f".{module}".endswith(f".{name}") or name in defined_in(module):
        return True
    path, _, last = name.rpartition(".")
    outer, _, inner = path.rpartition(".")
    places = [(path, last), (outer, f"{inner}.{last}")]
    return any(place and f".{module}".endswith(f".{place}") and what in defined_in(module) for place, what in places)


def wrong_in(text: str) -> list[str]:
    return [name for name in named_in(text) if not is_there(name)]


def module_of(room: str) -> str:
    return room if room == "xaqueue" else "xaqueue." + room.rstrip("/").replace("/", ".")


def room_of(module: str) -> int | None:
    """The row of the module: its own, or that of its folder."""
    rows = {module_of(room): (number, room) for number, row in enumerate(ROOMS) for room in row}
    while module not in rows or (module == "xaqueue" and rows[module][1].endswith("/")):
        module = module.rpartition(".")[0]
        if module in ("", "xaqueue"):
            return None
    return rows[module][0]


def threads() -> set[str]:
    """The names of all threads and pools of the package, without what is made for one of them alone."""
    calls = [
        node
        for module in NAMES
        if not is_in(module, "xaqueue.tools")
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Call) and called(node) in ("Thread", "ThreadPoolExecutor")
    ]
    names = [word.value for call in calls for word in call.keywords if word.arg in ("name", "thread_name_prefix")]
    assert len(names) == len(calls), "every thread has a name"
    constants = [node for name in names for node in ast.walk(name) if isinstance(node, ast.Constant)]
    return {str(constant.value).rstrip("- ") for constant in constants}


def test_every_name_is_there() -> None:
    assert len(named_in(PAGE)) > 150
    assert wrong_in(PAGE) == []


@pytest.mark.parametrize(
    "name",
    [
        *("xaqueue/core/engine/commit.py", "core/engine/commit.py", "core/engine/", "commit.prepare", "Space.lock"),
        *("engine.commit.prepare", "engine.log.Log.stage", "Session._take", "xaqueue.connect", "STEP_FILES"),
    ],
)
def test_a_name_that_is_there_is_found(name: str) -> None:
    assert wrong_in(f"A step is `{name}`, and so on.") == []


@pytest.mark.parametrize(
    "name",
    [
        *("xaqueue/core/engine/commits.py", "engine/commit.py", "core/motor/", "commit.prepared_not", "Space.luck"),
        *("engine.commit.Space", "recovery.commit.prepare", "Sessions._take", "connect.prepare", "STEPS_FILES"),
        *("prepare.commit", "ommit.prepare", "make it so"),
    ],
)
def test_a_wrong_name_is_found_out(name: str) -> None:
    assert wrong_in(f"`Space.lock` is held by `{name}`.") == [name]


def test_the_rooms_are_the_folders() -> None:
    folders = {module for module, path in NAMES.items() if path.name == "__init__.py" and module != "xaqueue"}
    outer = {"xaqueue.core", "xaqueue.features"}  # holds rooms alone
    assert {module_of(room) for row in ROOMS for room in row if room.endswith("/")} == folders - outer


def test_every_module_has_its_room() -> None:
    nowhere = {module for module in NAMES if room_of(module) is None}
    assert nowhere == {"xaqueue.__main__", "xaqueue.core", "xaqueue.features"}


def test_a_room_imports_itself_and_those_above() -> None:
    """What the core imports of the features stands in ``test_core.py``."""
    wrong = [
        f"{module} imports {found.name}"
        for module in NAMES
        if (own := room_of(module)) is not None
        for found in imports_of(module)
        if is_in(found.name, "xaqueue") and ((other := room_of(found.name)) is None or other > own)
        if not (is_in(module, "xaqueue.core") and is_in(found.name, "xaqueue.features"))
    ]
    assert wrong == []


def test_every_thread_is_told() -> None:
    found = threads()
    assert len(found) > 8
    assert {name for name in found if f"| {name}" not in PAGE} == set()


def test_it_is_short_and_linked() -> None:
    assert len(PAGE.splitlines()) <= LINES
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "(ARCHITECTURE.md)" in (PROJECT / page).read_text()
