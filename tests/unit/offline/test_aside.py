"""What was set aside is listed, and goes when it is old enough, unless somebody in doubt needs it."""

from __future__ import annotations

import itertools
import json
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

import xaqueue
from support.bare_space import bare_space
from support.damages import flip
from support.doubtful import fails, run
from support.forgetful import Crashed, Tree
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.core.engine import quarantine
from xaqueue.core.model import layout
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import InvalidArgument
from xaqueue.features.snapshots.restored import REMOVED
from xaqueue.offline import inspect
from xaqueue.offline.aside import clean, find, remove

WEEK_S = 7 * 86400
PLACES = (layout.QUARANTINE, layout.JOURNAL, REMOVED)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two weeks ago: a file and a directory in quarantine, a segment, and what a restore has replaced."""
    root = tmp_path / "space"
    xaqueue.connect(root, create=True).close()
    for path in ("journal/1.0.log.archive", "quarantine/junk/inside", "removed/20200101T000000Z/FORMAT"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"old")
    for name in ("junk", "q.range=0.x"):
        (root / layout.QUARANTINE / f"{name}.reason").write_bytes(b"why")
    (root / layout.QUARANTINE / "q.range=0.x").write_bytes(b"message")
    older(root)
    return root


def older(root: Path, age_s: float = 2 * WEEK_S) -> None:
    when = time.time() - age_s
    for place in PLACES:
        for path in (root / place).rglob("*"):
            if path.is_file():
                os.utime(path, (when, when))


def names(root: Path) -> set[str]:
    found = (path for place in PLACES for path in (root / place).glob("*") if path.suffix != ".log")
    return {str(path.relative_to(root)) for path in found}


def test_it_is_listed_and_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = inspect.status(root).aside
    assert [(one.path, one.count, one.size_bytes) for one in found] == [
        ("quarantine/", 2, 10),
        ("journal/", 1, 3),
        ("removed/", 1, 3),
    ]
    monkeypatch.setenv("XAQUEUE_SPACE", str(root))
    (shown,) = (line for line in run("status").splitlines() if "quarantine/" in line)
    assert " ".join(shown.split()).startswith("set aside 2 entries in quarantine/, 10 B, since ")
    before = names(root)
    assert run("clean", "--older-than", "30d", "--dry-run").endswith("1 entry, 3 B, to remove\n")
    assert "nothing was removed" in fails("clean", "--older-than", "7d", code=ExitCode.NOTHING)
    assert names(root) == before
    document = json.loads(run("clean", "--older-than", "7d", "--yes", "--json"))
    assert (len(document["removed"]), document["kept"]) == (4, [])
    assert names(root) == set()
    assert inspect.status(root).aside == []
    assert run("clean", "--older-than", "7d") == "0 entries, 0 B, removed\n"


def test_what_is_young_or_of_no_known_age_stays(root: Path) -> None:
    older(root, 60)
    (root / layout.QUARANTINE / "junk.reason").unlink()
    (root / REMOVED / "mine").mkdir()
    given_up, kept = clean(root, WEEK_S)
    assert [one.path for one in given_up] == ["removed/20200101T000000Z"]
    assert {one.path for one in kept} == {"quarantine/junk", "removed/mine"}
    assert (root / "quarantine" / "junk").is_dir()


def test_a_space_in_use_is_cleaned_of_what_is_old(root: Path) -> None:
    with xaqueue.connect(root):
        with pytest.raises(InvalidArgument, match="the space is in use: at least 3600 seconds"):
            clean(root, 0)
        assert len(clean(root, WEEK_S)[0]) == 4


def test_what_a_branch_in_doubt_lost_stays(tmp_path: Path) -> None:
    with bare_space(tmp_path / "space") as bare:
        bare.put("q", b"first", b"second")
        xid = bare.prepare("both", add=[("q", b"third"), ("q", b"fourth")])
        one = bare.prepare("one", take=["q"])
        path = bare.message_file("q", b"first")
        bare.crash()
        flip(bare.block(layout.PREPARED, xid, "002"), -1)
        flip(path, -1)
        bare.reopen()
        assert len(bare.quarantined()) == 2
        given_up, kept = find(bare.fs, bare.now_us() + 1)
        assert given_up == []
        assert {found.kept.partition(" ")[0] for found in kept} == {"branch", f"prepared/{one}.000"}
        quarantine.resolve(bare.fs, xid)
        bare.block(layout.PREPARED, one, "000").unlink()
        given_up, kept = find(bare.fs, bare.now_us() + 1)
        assert (len(given_up), kept) == (2, [])


def test_a_prepared_block_that_cannot_be_read_may_name_any(root: Path) -> None:
    (root / layout.PREPARED / "0_AA==_.000").write_bytes(b"X")
    fs = DirectoryFileSystem(root)
    given_up, kept = find(fs, time.time_ns() // 1000)
    fs.close()
    assert [one.path for one in kept] == ["quarantine/q.range=0.x"]
    assert len(given_up) == 3


def test_it_may_be_cut_off_at_any_call(root: Path) -> None:
    """No file is left without its reason, and the next cleaning ends it."""
    paths = [path for place in PLACES for path in (root / place, *(root / place).rglob("*"))]
    nodes = {str(path.relative_to(root)): path for path in paths if path.suffix != ".log"}
    start = Tree({name: None if path.is_dir() else path.read_bytes() for name, path in nodes.items()})
    fs = start.open()
    found = [one.path for one in find(fs, 2**62)[0]]
    assert len(found) == 4
    for crash_after in itertools.count():
        fs = start.open(crash_after)
        with suppress(Crashed):
            remove(fs, found)
        for tree in (*fs.trees_after_crash(), fs.tree_after_kill()):
            there = tree.nodes
            assert ("quarantine/q.range=0.x" not in there) or "quarantine/q.range=0.x.reason" in there
            after = tree.open()
            remove(after, [one.path for one in find(after, 2**62)[0]])
            assert set(after.tree_after_kill().nodes) == set(PLACES)
        if not fs.crashed:
            break
    assert crash_after > 8


@pytest.mark.parametrize("name", ["20200101", "2020-W01", "2020-01-01T00:00:00", "20200101T000000Z~mine"])
def test_what_only_looks_like_a_time_is_somebodys_own(root: Path, name: str) -> None:
    (root / "removed" / name).mkdir()
    assert f"removed/{name}" not in [one.path for one in clean(root, WEEK_S)[0]]
    assert (root / "removed" / name).is_dir()


def test_one_of_several_of_a_second_is_a_restores(root: Path) -> None:
    (root / "removed" / "20200101T000000Z~2").mkdir()
    assert "removed/20200101T000000Z~2" in [one.path for one in clean(root, WEEK_S)[0]]


def test_a_file_that_is_named_like_a_reason_is_as_old_as_its_own(root: Path) -> None:
    fs = DirectoryFileSystem(root)
    (root / "committed" / "notes.reason").write_bytes(b"somebody's")
    os.utime(root / "committed" / "notes.reason", (1e9, 1e9))
    path = quarantine.move(fs, "committed/notes.reason", "a strange name", time.time_ns() // 1000)
    fs.close()
    assert path not in [one.path for one in clean(root, WEEK_S)[0]]
    assert {path, f"{path}.reason"} <= names(root)
