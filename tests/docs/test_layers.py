"""The layers hold because the imports say so: a module imports its own layer or a lower one, and no circle.

Read from the source. Every import counts, also one inside a function and one for type checkers only: neither gets
around a circle. An import inside a function is for what only some need, so that a start does not load it.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

import pytest

import xaqueue
from support.package_source import NAMES, imports_in, imports_of, is_in, tree_of

pytestmark = pytest.mark.xdist_group("source")  # which is read once

LAYERS: tuple[tuple[str, ...], ...] = (
    (
        *("xaqueue.errors", "xaqueue.xid", "xaqueue.xa", "xaqueue.message", "xaqueue.batch", "xaqueue.reservation"),
        "xaqueue.snapshot",
        *(
            "xaqueue.carried",
            "xaqueue.delivery",
            "xaqueue.times",
            "xaqueue.access",
            "xaqueue.endpoint",
            "xaqueue.resource_manager",
        ),
    ),
    *(
        ("xaqueue.transaction", "xaqueue.awaited"),
        ("xaqueue.savepoint",),
        ("xaqueue.one_call",),
        ("xaqueue.message_calls",),
    ),
    ("xaqueue.connection",),
    ("xaqueue.spans",),
    ("xaqueue.core.storage",),
    ("xaqueue.core.model",),
    ("xaqueue.core.engine",),
    ("xaqueue.core.recovery",),
    ("xaqueue.core.owner",),
    ("xaqueue.features.snapshots.options",),
    (
        *("xaqueue.features.replica.options", "xaqueue.features.replica.replicated", "xaqueue.features.streams.record"),
        *("xaqueue.features.streams.message_files", "xaqueue.features.streams.taken"),
    ),
    *(
        ("xaqueue.features.dedup", "xaqueue.features.groups", "xaqueue.features.limits", "xaqueue.features.counters"),
        ("xaqueue.features.carry", "xaqueue.features.topics", "xaqueue.features.scrub", "xaqueue.features.defining"),
        (
            "xaqueue.features.retries",
            "xaqueue.features.snapshots",
            "xaqueue.features.ages",
            "xaqueue.features.defining",
        ),
        ("xaqueue.features.batches", "xaqueue.features.streams", "xaqueue.features.replica", "xaqueue.features.pair"),
    ),
    ("xaqueue.features.kinds", "xaqueue.features.options"),
    ("xaqueue.features.opening",),
    ("xaqueue.offline.plan", "xaqueue.offline.overlay"),
    ("xaqueue.features.snapshots.restoring",),
    ("xaqueue.offline",),
    ("xaqueue.tm",),
    *(
        ("xaqueue.rpc.wire", "xaqueue.rpc.credentials", "xaqueue.rpc.client.branch"),
        ("xaqueue.rpc.client.sockets", "xaqueue.rpc.client.link"),
        ("xaqueue.rpc.methods.sessions", "xaqueue.rpc.server.peer", "xaqueue.rpc.verb", "xaqueue.rpc.plain"),
    ),
    *(
        ("xaqueue.features.leases", "xaqueue.features.streams.streams", "xaqueue.features.topics.bulk"),
        ("xaqueue.features.savepoints",),
        ("xaqueue.features.batches.verbs", "xaqueue.features.carry.verbs", "xaqueue.features.retries.verbs"),
        ("xaqueue.features.scrub.verbs", "xaqueue.features.snapshots.verbs"),
    ),
    ("xaqueue.features.session",),
    ("xaqueue.offline.reconstruct",),
    ("xaqueue.rpc",),
    ("xaqueue.work",),
    ("xaqueue.features.replica.journal_copy",),
    ("xaqueue.features.replica.follower", "xaqueue.features.replica.promote"),
    ("xaqueue",),
    ("xaqueue.testing",),
    ("xaqueue.contrib",),
    ("xaqueue.lake",),
    ("xaqueue.spark",),
    ("xaqueue.tools",),
    ("xaqueue.metrics",),
    ("xaqueue.web",),
    ("xaqueue.cli", "xaqueue.__main__"),
)
"""The lowest first: of a module, or of every module in a folder; the name of the whole package means its front door.

The core stands below the features: what it imports of them all the same is the business of ``test_core.py`` alone.
"""

PURE = {
    *LAYERS[0],
    *("xaqueue.core.model.block", "xaqueue.core.model.branch", "xaqueue.core.model.index"),
    *(
        "xaqueue.features.carry.carrier",
        "xaqueue.features.dedup.values",
        "xaqueue.core.model.entry",
        "xaqueue.features.groups.groups",
    ),
    *("xaqueue.core.model.message_name", "xaqueue.core.model.message_block", "xaqueue.core.model.packed_index"),
    *("xaqueue.features.counters.values", "xaqueue.core.model.order"),
    *("xaqueue.features.retries.policy", "xaqueue.features.limits.limits"),
    *("xaqueue.rpc.wire", "xaqueue.rpc.client.branch", "xaqueue.tm.gtrid", "xaqueue.tm.voting"),
}
"""Vocabulary and logic, which know nothing of the world and import nothing that does."""

WORLD = {
    *("os", "io", "time", "threading", "asyncio", "concurrent", "multiprocessing", "subprocess", "signal", "socket"),
    *("pathlib", "shutil", "tempfile", "fcntl", "mmap", "random", "secrets", "uuid", "logging"),
}
"""Modules of the standard library that vocabulary and logic never need: no I/O, no clock, no threads, no chance."""

OWNED = {
    "pyspark": ("xaqueue.spark",),
    "pyarrow": ("xaqueue.lake", "xaqueue.spark"),
    "pyiceberg": ("xaqueue.lake",),
    "deltalake": ("xaqueue.lake",),
    "typer": ("xaqueue.cli",),
    "click": ("xaqueue.cli",),
    "watchdog": ("xaqueue.core.owner.watches",),
    "sqlalchemy": ("xaqueue.contrib", "xaqueue.lake.orphans"),
    "opentelemetry": ("xaqueue.spans",),
    "prometheus_client": ("xaqueue.metrics", "xaqueue.web"),
    "starlette": ("xaqueue.web",),
    "uvicorn": ("xaqueue.web",),
    "fcntl": ("xaqueue.core.storage", "xaqueue.tools"),
    "matplotlib": ("xaqueue.tools.demo",),
    "psycopg": ("xaqueue.cli.tm_config",),
    "pymysql": ("xaqueue.cli.tm_config",),
}
"""Packages that only these rooms may import."""

EMPTY = {"xaqueue.core", "xaqueue.features"}
"""Folders that hold folders alone."""

STRANGERS = tuple(
    (room, "xaqueue.tm")
    for room in (
        *("xaqueue.core.model", "xaqueue.core.engine", "xaqueue.core.recovery", "xaqueue.core.owner"),
        *("xaqueue.features", "xaqueue.offline"),
    )
)
"""Rooms that meet only through the protocols in ``xa``: of the core the transaction manager has its files alone."""

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
    "xaqueue.core.owner.open": "makes the directories of a new space, before there is a port that is opened on them",
    "xaqueue.features.replica.follower": "makes the directory of a new replica, before a port is opened on it",
    "xaqueue.features.snapshots.copies": "copies a snapshot to a directory that the person named",
    "xaqueue.tools.rates": "makes the preallocated log that the disk is measured by, on files of its own",
    "xaqueue.tools.iotest": "measures the bare system calls that a space would make, on files of its own",
    "xaqueue.tools.demo.stage": "makes and removes the demo's own directory, keeps what its programs print there",
    "xaqueue.tools.demo.story": "writes its page beside its chart, where the person is",
    "xaqueue.tools.torture.work": "writes what it says into its parent's pipe: no file of a space",
    "xaqueue.tools.torture.power": "lays out what a power loss may leave, in directories of its own",
    "xaqueue.rpc.server.listeners": "makes and removes the Unix socket that it listens on: no file of a space",
    "xaqueue.rpc.client.server_launcher": "makes the log and directory of a job's server: no file of a space",
    "xaqueue.lake.ingest_tables": "makes the directory for Parquet files that the person named",
    "xaqueue.lake.iceberg": "writes files of tables where the person keeps them, each synced by who has written it",
    "xaqueue.spark.java": "links a Java runtime into the person's cache",
    "xaqueue.cli.messages": "writes a message's body into a file that the person named",
    "xaqueue.cli.log_output": "writes events to stderr from a thread, where Python's own stream would hold a lock",
    "xaqueue.cli.replacing": "replaces files that the person named, each as a whole",
    "xaqueue.cli.exit_codes": "points standard output at nothing once its reader is gone",
}
"""Modules outside ``core/storage/`` that change files, and why it is none of the port's business."""


def layer_of(module: str) -> int | None:
    """The layer of the module or of the nearest folder that has one; the front door is no folder."""
    rooms = {room: layer for layer, line in enumerate(LAYERS) for room in line}
    if module == "xaqueue":
        return rooms[module]
    while module != "xaqueue":
        if module in rooms:
            return rooms[module]
        module = module.rpartition(".")[0]
    return None


def is_listed(module: str, other: str) -> bool:
    """Of the core, and of a feature: each stands in the list of ``test_core.py``."""
    return is_in(module, "xaqueue.core") and is_in(other, "xaqueue.features")


def circles(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The groups of nodes each of which is reached from every other one of its group."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        found, todo = reached.setdefault(start, set()), list(graph[start])
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo += graph.get(node, ())
    groups = {frozenset({a, *(b for b in reached[a] if a in reached.get(b, ()))}) for a in graph if a in reached[a]}
    return sorted(sorted(group) for group in groups)


def within(room: str) -> list[str]:
    return [module for module in NAMES if is_in(module, room)]


def test_every_module_has_a_layer() -> None:
    without = [module for module in NAMES if layer_of(module) is None]
    assert set(without) == EMPTY, "say in LAYERS where it belongs"


def test_a_folder_of_folders_has_no_code() -> None:
    assert [module for module in sorted(EMPTY) if len(tree_of(module).body) != 1] == []


def test_a_module_imports_its_own_layer_or_a_lower_one() -> None:
    wrong = []
    for module in NAMES:
        own = layer_of(module)
        for found in imports_of(module):
            if not is_in(found.name, "xaqueue") or is_listed(module, found.name):
                continue
            other = layer_of(found.name)
            if own is None or other is None or other > own:
                wrong.append(f"{module}:{found.line} (layer {own}) imports {found.name} (layer {other})")
    assert wrong == []


def test_no_module_imports_itself_in_a_circle() -> None:
    assert circles({module: {found.name for found in imports_of(module)} for module in NAMES}) == []


def test_what_has_a_layer_is_there() -> None:
    assert [room for line in LAYERS for room in line if room not in NAMES] == []


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"f"}, "f": {"e"}, "g": {"a", "d"}}
    assert circles(graph) == [["a", "b", "c"], ["e", "f"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize(
    "source",
    [
        "from xaqueue.core.engine import state",
        "import xaqueue.core.engine.state",
        "def get():\n    from xaqueue.core.engine.state import Space",
        "if TYPE_CHECKING:\n    from xaqueue.core.engine.state import Space",
        "import_module('xaqueue.core.engine.state')",
    ],
)
def test_an_import_counts_wherever_it_stands(source: str) -> None:
    assert [found.name for found in imports_in(ast.parse(source))] == ["xaqueue.core.engine.state"]


def test_rooms_that_meet_through_protocols_do_not_import_each_other() -> None:
    wrong = [
        f"{module} imports {found.name}"
        for one, other in (*STRANGERS, *(pair[::-1] for pair in STRANGERS))
        for module in within(one)
        for found in imports_of(module)
        if is_in(found.name, other)
    ]
    assert wrong == []


def test_contrib_uses_what_everybody_may_use() -> None:
    imports = [
        (module, node)
        for module in within("xaqueue.contrib")
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.ImportFrom) and node.module == "xaqueue"
    ]
    wrong = {f"{module}: {alias.name}" for module, node in imports for alias in node.names}
    assert wrong <= {f"{module}: {name}" for module, _ in imports for name in xaqueue.__all__}
    assert outside("xaqueue.contrib", {"xaqueue"}) == []


def test_workers_use_what_everybody_may_use() -> None:
    """The front door has them, so that they cannot come in by it: they import what it hands out."""
    handed_out = {"xaqueue.connection", "xaqueue.errors", "xaqueue.message", "xaqueue.spans", "xaqueue.tm.manager"}
    assert outside("xaqueue.work", {*handed_out, "xaqueue.rpc.client.reach"}) == []


def outside(room: str, allowed: set[str]) -> list[str]:
    """What the modules of a room import of the package, but for the room's own and what is allowed."""
    imports = {(module, found.name) for module in within(room) for found in imports_of(module)}
    wrong = [(module, name) for module, name in imports if is_in(name, "xaqueue") and not is_in(name, room)]
    return sorted(f"{module} imports {name}" for module, name in wrong if name not in allowed)


def test_vocabulary_and_logic_know_nothing_of_the_world() -> None:
    imports = {(module, found.name) for module in PURE for found in imports_of(module)}
    assert {one for one in imports if one[1].partition(".")[0] in WORLD} == set()
    assert {one for one in imports if is_in(one[1], "xaqueue") and one[1] not in PURE} == set()


def test_packages_are_imported_only_in_the_rooms_that_own_them() -> None:
    wrong = []
    for module in NAMES:
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


def test_files_are_changed_and_hardened_only_through_the_port() -> None:
    outside_it = [name for name in NAMES if not is_in(name, "xaqueue.core.storage") and name not in EXCEPTIONS]
    assert [found for module in outside_it for found in changes_of(module)] == []


def test_an_exception_that_is_no_longer_needed_goes() -> None:
    assert [module for module in EXCEPTIONS if not list(changes_of(module))] == []


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
