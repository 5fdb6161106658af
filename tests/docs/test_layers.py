"""The layers hold because the imports say so: read from the source, with no exceptions but the ones listed here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import xaqueue

ROOT = Path(xaqueue.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

LAYERS = {
    "xaqueue.errors": 0,
    "xaqueue.xid": 0,
    "xaqueue.xa": 0,
    "xaqueue.message": 0,
    "xaqueue.times": 0,
    "xaqueue.phases": 0,
    "xaqueue.batch": 0,
    "xaqueue.reservation": 0,
    "xaqueue.space.model.block": 1,
    "xaqueue.space.model.branch": 1,
    "xaqueue.space.model.index": 1,
    "xaqueue.space.model.message_name": 1,
    "xaqueue.space.model.packed_index": 1,
    "xaqueue.rpc.wire": 1,
    "xaqueue.access": 1,
    "xaqueue.endpoint": 1,
    "xaqueue.rpc.client.branch": 1,
    "xaqueue.tm.gtrid": 1,
    "xaqueue.tm.voting": 1,
    "xaqueue.connection": 2,
    "xaqueue.storage": 2,
    "xaqueue.space": 3,
    "xaqueue.tm": 3,
    "xaqueue.rpc": 4,
    "xaqueue.spark": 5,
    "xaqueue.cli": 5,
    "xaqueue.tools": 5,
    "xaqueue": 5,
}
"""Of a module, or of every module in a package."""

WORLD = {
    *("os", "io", "time", "threading", "asyncio", "concurrent", "multiprocessing", "subprocess", "signal", "socket"),
    *("pathlib", "shutil", "tempfile", "fcntl", "mmap", "random", "secrets", "uuid", "logging"),
}
"""Modules of the standard library that vocabulary and logic never need: no I/O, no clock, no threads, no chance."""

OWNED = {
    "pyspark": ("xaqueue.spark",),
    "typer": ("xaqueue.cli",),
    "click": ("xaqueue.cli",),
    "watchdog": ("xaqueue.space",),
    "fcntl": ("xaqueue.storage", "xaqueue.tools"),
}
"""Packages that only these rooms may import."""

STRANGERS = (("xaqueue.space", "xaqueue.tm"),)
"""Rooms of one layer that meet only through the protocols in ``xa``."""

CHANGES = {
    *(
        "rename",
        "renames",
        "replace",
        "unlink",
        "remove",
        "rmdir",
        "removedirs",
        "mkdir",
        "makedirs",
        "link",
        "symlink",
    ),
    *("fsync", "fdatasync", "sync", "write", "writev", "pwrite", "pwritev", "truncate", "ftruncate", "utime", "mkfifo"),
    *("posix_fallocate", "sendfile", "copy_file_range", "fdopen"),
}
"""Calls of ``os`` that change files or harden them."""
OPENS_TO_WRITE = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"}
PATH_CHANGES = {
    *("mkdir", "rmdir", "unlink", "rename", "touch", "write_text", "write_bytes", "symlink_to", "hardlink_to"),
}
SHUTIL_CHANGES = {"rmtree", "move", "copy", "copy2", "copyfile", "copytree", "copyfileobj"}

EXCEPTIONS = {
    "xaqueue.space.owner.open": "makes the directories of a new space, before there is a port that is opened on them",
    "xaqueue.tools.bench": "waits for the disk to be quiet before a measurement",
    "xaqueue.tools.bare": "makes the bare system calls that the engine is compared with, on files of its own",
    "xaqueue.tools.iotest": "measures the bare system calls that a space would make, on files of its own",
    "xaqueue.tools.demo.stage": "makes and removes the demo's own directory",
    "xaqueue.tools.demo.flights": "keeps what a child process complained of: no file of a space",
    "xaqueue.tools.demo.ledger_parties": "keeps what a child process printed: no file of a space",
    "xaqueue.tools.demo.ledger_service": "writes what it says to its standard output: no file of a space",
    "xaqueue.tools.demo.postgres": "makes and removes the data directory of another database",
    "xaqueue.tools.torture.work": "writes what it says into its parent's pipe: no file of a space",
    "xaqueue.tools.torture.power": "lays out what a power loss may leave, in directories of its own",
    "xaqueue.rpc.server.listeners": "makes and removes the Unix socket that it listens on: no file of a space",
    "xaqueue.spark.runtime.server_launcher": "makes the log and directory of a job's server: no file of a space",
    "xaqueue.spark.ingest.target": "makes the directory for Parquet files that the person named",
    "xaqueue.spark.runtime.java": "links a Java runtime into the person's cache",
    "xaqueue.cli.messages": "writes a message's body into a file that the person named",
    "xaqueue.cli.tools": "writes a bench's result into a file that the person named",
    "xaqueue.cli.exit_codes": "points standard output at nothing once its reader is gone",
}
"""Modules outside ``storage/`` that change files, and why it is none of the port's business."""


class Import(NamedTuple):
    """One imported module, and whether it is for type checkers only."""

    name: str
    line: int
    types_only: bool


def name_of(path: Path) -> str:
    parts = ["xaqueue", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path): path for path in MODULES}
every_module = pytest.mark.parametrize("module", sorted(NAMES))


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(NAMES[module].read_text("utf-8"))


def types_only_nodes(tree: ast.Module) -> set[ast.AST]:
    guards = (node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    return {inner for guard in guards for statement in guard.body for inner in ast.walk(statement)}


@cache
def imports_of(module: str) -> tuple[Import, ...]:
    """Every import in the module, at its top or inside a function; ``from package import module`` names the module."""
    tree = tree_of(module)
    types_only = types_only_nodes(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno, node in types_only) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.append(Import(inner if inner in NAMES else node.module or "", node.lineno, node in types_only))
    return tuple(found)


def layer_of(module: str) -> int | None:
    """The layer of the module or of the nearest package that has one; the top package's is its own alone."""
    if module == "xaqueue" or module == "xaqueue.__main__":
        return LAYERS["xaqueue"]
    while module != "xaqueue":
        if module in LAYERS:
            return LAYERS[module]
        module = module.rpartition(".")[0]
    return None


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@every_module
def test_every_module_has_a_layer(module: str) -> None:
    assert layer_of(module) is not None, f"say in LAYERS where {module} belongs"


@every_module
def test_a_module_imports_its_own_layer_or_a_lower_one(module: str) -> None:
    own = layer_of(module)
    assert own is not None
    wrong = []
    for found in imports_of(module):
        if not is_in(found.name, "xaqueue"):
            continue
        other = layer_of(found.name)
        same_package = module.rpartition(".")[0] == found.name.rpartition(".")[0]
        if other is None or (other > own and not (found.types_only and same_package)):
            wrong.append(f"{module}:{found.line} (layer {own}) imports {found.name} (layer {other})")
    assert wrong == []


@every_module
def test_rooms_that_meet_through_protocols_do_not_import_each_other(module: str) -> None:
    for one, other in (*STRANGERS, *(pair[::-1] for pair in STRANGERS)):
        if is_in(module, one):
            assert [found for found in imports_of(module) if is_in(found.name, other)] == []


@pytest.mark.parametrize("module", [name for name in sorted(NAMES) if layer_of(name) in (0, 1)])
def test_vocabulary_and_logic_know_nothing_of_the_world(module: str) -> None:
    assert [found for found in imports_of(module) if found.name.partition(".")[0] in WORLD] == []


@every_module
def test_packages_are_imported_only_in_the_rooms_that_own_them(module: str) -> None:
    wrong = []
    for found in imports_of(module):
        rooms = OWNED.get(found.name.partition(".")[0])
        if rooms is not None and not any(is_in(module, room) for room in rooms):
            wrong.append(f"{module}:{found.line} imports {found.name}, which belongs to {', '.join(rooms)}")
    assert wrong == []


def is_port(receiver: ast.expr) -> bool:
    """``fs.rename``, ``space.fs.rename``, ``self._fs.rename``: a call of the port, by the name it has everywhere."""
    name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
    return name.lstrip("_") == "fs"


def writes(call: ast.Call, mode_at: int) -> bool:
    """Whether a call of ``open`` has a mode that changes the file; a mode that is no constant may."""
    modes = [keyword.value for keyword in call.keywords if keyword.arg == "mode"] + call.args[mode_at : mode_at + 1]
    return any(not isinstance(mode, ast.Constant) or set("wax+") & set(str(mode.value)) for mode in modes)


def changes_of(module: str) -> Iterator[str]:
    """Where a module changes files without the port."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            changing = {"os": CHANGES, "shutil": SHUTIL_CHANGES}.get(node.value.id, set())
            if node.attr in changing or (node.value.id == "os" and node.attr in OPENS_TO_WRITE):
                yield f"{module}:{node.lineno} {node.value.id}.{node.attr}"
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "shutil"):
            yield from (f"{module}:{node.lineno} from {node.module} import {alias.name}" for alias in node.names)
        if isinstance(node, ast.Call):
            yield from change_by_call(module, node)


def change_by_call(module: str, call: ast.Call) -> Iterator[str]:
    where = f"{module}:{call.lineno}"
    if isinstance(call.func, ast.Name) and call.func.id == "open" and writes(call, 1):
        yield f"{where} open"
    if not isinstance(call.func, ast.Attribute) or is_port(call.func.value):
        return
    name, receiver = call.func.attr, call.func.value
    is_module = isinstance(receiver, ast.Name) and receiver.id in ("os", "shutil")
    moved = name == "replace" and len(call.args) == 1 and not call.keywords
    if not is_module and (name in PATH_CHANGES or moved or (name == "open" and writes(call, 0))):
        yield f"{where} .{name}"


@pytest.mark.parametrize("module", [name for name in sorted(NAMES) if not is_in(name, "xaqueue.storage")])
def test_files_are_changed_and_hardened_only_through_the_port(module: str) -> None:
    found = list(changes_of(module))
    assert found == [] or module in EXCEPTIONS


@pytest.mark.parametrize("module", sorted(EXCEPTIONS))
def test_an_exception_that_is_no_longer_needed_goes(module: str) -> None:
    assert list(changes_of(module)) != []


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.rename(a, b)",
        "import os\nsync = os.fsync",
        "import os\nos.open(p, os.O_RDONLY | os.O_CREAT)",
        "from os import unlink",
        "import shutil\nshutil.rmtree(p)",
        "path.write_text('x')",
        "(root / name).mkdir(exist_ok=True)",
        "path.rename(other)",
        "path.replace(other)",
        "path.open('ab')",
        "open(p, 'w')",
        "open(p, mode=m)",
    ],
)
def test_a_change_of_files_is_recognised(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_layers.tree_of", lambda _: ast.parse(source))
    assert list(changes_of("any")) != []


@pytest.mark.parametrize(
    "source",
    [
        "space.fs.rename(a, b)",
        "self._fs.unlink(a)",
        "import os\nos.open(p, os.O_RDONLY | os.O_DIRECTORY)",
        "text.replace('a', 'b')",
        "when.replace(tzinfo=UTC)",
        "path.open('rb')",
        "open(p)",
        "path.read_text()",
    ],
)
def test_what_changes_no_file_is_not_mistaken_for_it(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_layers.tree_of", lambda _: ast.parse(source))
    assert list(changes_of("any")) == []
