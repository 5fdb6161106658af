"""What a dry run of a command that mends a space says is what the command does, and the dry run changes nothing."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import xaqueue
from support.harms import blocks, garbled, harmed, littered, overdue, replaceable, spent, torn
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import app
from xaqueue.core.model import layout
from xaqueue.core.owner import open as owning
from xaqueue.core.owner.chores import NEVER, Chores
from xaqueue.features.counters.values import COUNTERS
from xaqueue.offline import aside, reconstruct
from xaqueue.offline import check as checking

VARIES = re.compile(r"\d+\.\d\d s|removed/\d{8}T\d{6}Z|since [\dT:+-]+")

DOORS: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "check": (harmed, ["check", "--repair"]),
    "check QUEUE": (harmed, ["check", "orders", "--repair"]),
    "check, blocks": (blocks, ["check", "--repair"]),
    "check, a range": (spent, ["check", "--repair"]),
    "check QUEUE, a range": (spent, ["check", "orders", "--repair"]),
    "reconstruct": (garbled, ["reconstruct"]),
    "reconstruct, blocks": (blocks, ["reconstruct"]),
    "reconstruct -m": (garbled, ["reconstruct", "-m"]),
    "reconstruct QUEUE": (harmed, ["reconstruct", "orders"]),
    "salvage-journal": (torn, ["salvage-journal", "--yes"]),
    "restore": (replaceable, ["restore", "--yes"]),
    "restore --exact": (replaceable, ["restore", "--exact", "--yes"]),
    "clean": (littered, ["clean", "--older-than", "365d", "--yes"]),
}


def tree(root: Path) -> dict[str, tuple[object, ...]]:
    """All that a look from outside tells, but when it was read."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [root, *root.rglob("*")]:
        stat = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        name = str(path.relative_to(root))
        found[name] = (stat.st_ino, stat.st_mode, stat.st_nlink, stat.st_mtime_ns, stat.st_ctime_ns, content)
    return found


def said(root: Path, *words: str) -> tuple[int, Any]:
    """The exit code, and the JSON as far as it does not tell the time."""
    result = CliRunner().invoke(app, [*words, "--json", "--space", str(root)])
    assert result.stdout, result.output
    return result.exit_code, json.loads(VARIES.sub("", result.stdout))


@pytest.mark.parametrize(("make", "command"), DOORS.values(), ids=DOORS)
def test_it_says_what_is_done(tmp_path: Path, make: Callable[[Path], Path], command: list[str]) -> None:
    root = make(tmp_path / "space")
    before = tree(root)
    code, foretold = said(root, *command, "--dry-run")
    assert tree(root) == before
    assert foretold.pop("dry_run") is True
    assert len(foretold["plan"]) > 0
    shutil.copytree(root, tmp_path / "same" / "space", symlinks=True)  # for what it says to people
    lines = CliRunner().invoke(app, [*command, "--dry-run", "--space", str(root)]).stdout.splitlines()
    assert tree(root) == before
    done_code, done = said(root, *command)
    assert done.pop("dry_run") is False
    assert (code, foretold) == (done_code, done)
    same = tmp_path / "same" / "space"
    told = CliRunner().invoke(app, [*command, "--space", str(same)]).stdout.replace(str(same), str(root)).splitlines()
    lines.remove("nothing is changed; without --dry-run this is done:")
    foretold = VARIES.sub("", "\n".join(lines)).replace("to remove", "removed")
    assert foretold == VARIES.sub("", "\n".join(told))
    assert tree(root) != before


@pytest.mark.parametrize(
    ("make", "command"),
    [(overdue, DOORS["check"][1]), (overdue, DOORS["reconstruct QUEUE"][1]), (littered, DOORS["clean"][1])],
    ids=["check", "reconstruct QUEUE", "clean"],
)
def test_what_the_space_does_beside_it_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Path], command: list[str]
) -> None:
    """All that its threads may have done by then is done before it is looked at what is wrong."""
    root = make(tmp_path / "space")
    at_work: list[object] = []

    def work(what: Callable[..., Any], *given: Any, **more: Any) -> Any:
        running = [thread for attached in owning._attached.values() for thread in attached.background]
        at_work.extend(running)
        for thread in running:
            if isinstance(thread, Chores):
                for chore in [one for one in thread._chores if one.left_s() < NEVER]:
                    thread._do(chore)
        return what(*given, **more)

    for module, name in ((checking, "check"), (reconstruct, "whole"), (aside, "look")):
        monkeypatch.setattr(module, name, partial(work, getattr(module, name)))
    _, foretold = said(root, *command, "--dry-run")
    assert at_work == []
    _, done = said(root, *command)
    assert len(foretold["plan"]) > 0
    assert at_work != []
    assert foretold | {"dry_run": False} == done


@pytest.mark.parametrize("command", [command for _, command in DOORS.values() if command[0] != "clean"], ids=" ".join)
def test_it_needs_a_space_that_nobody_has_open(tmp_path: Path, command: list[str]) -> None:
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True) as connection:
        connection.snapshot()
        before = tree(root)
        result = CliRunner().invoke(app, [*command, "--dry-run", "--space", str(root)])
        assert result.exit_code == ExitCode.SPACE
        assert "is in use by process" in result.stderr
        assert tree(root) == before


def replaced(path: Path, kind: str) -> None:
    """What stands there is something else from now on."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    match kind:
        case "directory":
            path.mkdir()
            (path / "inside").write_bytes(b"inside")
        case "link":
            path.symlink_to("nowhere")
        case "pipe":
            os.mkfifo(path)
        case _:
            path.write_bytes(b"" if kind == "empty" else b"\xffgarbage\n" * 20)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A space that was closed well, and has all that it may have."""
    root = littered(tmp_path_factory.mktemp("closed") / "space")
    with xaqueue.connect(root) as connection:
        connection.snapshot()  # before one is due, which nobody else can take meanwhile
    with (root / layout.QUEUES).open("a") as file:
        file.write("\n[snapshots]\npoint_in_time = true\n\n[replication]\n")
    xaqueue.connect(root).close()
    assert {layout.RESERVE, COUNTERS, "snapshots", "removed"} <= {path.name for path in root.iterdir()}
    return root


DIRECTORIES = {*layout.directories(), layout.JOURNAL, layout.ARCHIVE, layout.RESERVE, "snapshots", "removed"}
FILES = {*layout.own_names(), "restored", "foreign"} - DIRECTORIES


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *itertools.product(sorted(DIRECTORIES), ("empty", "link", "pipe")),
        *itertools.product(sorted(FILES), ("garbage", "directory", "link")),
        *itertools.product((layout.OWNER, COUNTERS, layout.QUEUES), ("empty", "pipe")),
    ],
)
@pytest.mark.parametrize("door", ["check", "clean", "restore", "restore --exact"])
def test_whatever_stands_at_the_top_the_run_comes_to_what_was_foretold(
    tmp_path: Path, closed: Path, name: str, kind: str, door: str
) -> None:
    root = tmp_path / "space"
    shutil.copytree(closed, root)
    replaced(root / name, kind)
    _, command = DOORS["reconstruct" if door == "check" and name in (layout.FORMAT, layout.QUEUES) else door]
    foretold, done = (
        CliRunner().invoke(app, [*command, *more, "--json", "--space", str(root)]) for more in (["--dry-run"], [])
    )
    told = VARIES.sub("", foretold.stdout).replace('"dry_run": true', '"dry_run": false')
    assert (foretold.exit_code, told, foretold.stderr) == (done.exit_code, VARIES.sub("", done.stdout), done.stderr)


def no_lock(root: Path) -> None:
    (root / "lock").unlink()
    (root / "lock").mkdir()


def no_group(root: Path) -> None:
    with (root / "queues.toml").open("a") as file:
        file.write('\n[access]\ngroup = "no such group"\n')
    (root / "queues.toml.good").unlink()  # else that holds


@pytest.mark.parametrize("harm", [no_lock, no_group])
def test_what_is_refused_is_refused_by_a_dry_run_too(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    root = harmed(tmp_path / "space")
    harm(root)
    for command in (["check", "--repair"], ["reconstruct"]):
        foretold, done = (
            CliRunner().invoke(app, [*command, *more, "--space", str(root)]) for more in (["--dry-run"], [])
        )
        assert (foretold.exit_code, foretold.stderr) == (done.exit_code, done.stderr) != (0, "")


def test_it_goes_through_links_to_directories(tmp_path: Path) -> None:
    """As the run does: snapshots may stand on another disk."""
    root = replaceable(tmp_path / "space")
    (root / "snapshots").rename(tmp_path / "elsewhere")
    (root / "snapshots").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "old" / "20200101T000000Z").mkdir(parents=True)
    (tmp_path / "old" / "20200101T000000Z" / "file").write_bytes(b"old")
    (root / "removed").symlink_to(tmp_path / "old")
    for command in (["clean", "--older-than", "365d", "--yes"], ["restore", "--yes"]):
        before = tree(root)
        (code, foretold), _ = said(root, *command, "--dry-run"), tree(root) == before or pytest.fail("it is changed")
        done_code, done = said(root, *command)
        del foretold["dry_run"], done["dry_run"]
        assert (code, foretold) == (done_code, done) != (done_code, {})
        assert done["plan"]


@pytest.mark.usefixtures("quiet")  # of such a name pytest-xdist cannot tell the log
@pytest.mark.parametrize("name", [b"caf\xe9", "é".encode() * 125], ids=["no UTF-8", "long"])
def test_a_file_of_any_name_is_set_aside(tmp_path: Path, name: bytes) -> None:
    root = harmed(tmp_path / "space")
    (root / "prepared" / os.fsdecode(name)).write_bytes(b"junk")
    code, foretold = said(root, "check", "--repair", "--dry-run")
    done_code, done = said(root, "check", "--repair")
    assert (code, foretold["plan"]) == (done_code, done["plan"])
    xaqueue.connect(root).close()
