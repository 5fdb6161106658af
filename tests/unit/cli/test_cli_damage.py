"""Whatever one file of a space is gone or garbled: it comes up, or names one command that brings it up, and then all
that the files hold is there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import xaqueue
from support import broken_journal
from support.broken_journal import DECIDED, IN_DOUBT, records
from support.doubtful import run
from support.journals import spoil
from xaqueue.core.model import layout
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import Error
from xaqueue.features.opening import create

QUEUE = layout.queue_path("orders")
ALL = {b"first", b"second", b"fourth", b"fifth"}
Damage = Callable[[Path], object]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Killed: orders has four messages, and a branch in doubt has taken the first and adds another."""
    root = tmp_path / "space"
    xaqueue.connect(root, create=True).close()  # which leaves the good copy of queues.toml
    line = (root / layout.FORMAT).read_text().strip()
    shutil.rmtree(root / layout.JOURNAL)
    broken_journal.make(root)
    owner = json.loads((root / layout.OWNER).read_text())
    (root / layout.OWNER).write_text(json.dumps(owner | {"space": line}))
    monkeypatch.setenv("XAQUEUE_SPACE", str(root))
    return root


def gone(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def garbled(path: Path) -> None:
    """A directory has a file in its place."""
    gone(path)
    path.write_bytes(b"\xff[garbled")


def segment(root: Path) -> Path:
    return min((root / layout.JOURNAL).glob("*.log"))


def first_record(root: Path) -> None:
    fs = DirectoryFileSystem(root)
    spoil(fs, records(root)[0].lsn, 60)
    fs.close()


def without_copy(damage: Damage) -> Callable[[Path], None]:
    def both(root: Path) -> None:
        damage(root / layout.QUEUES)
        gone(root / layout.GOOD_QUEUES)

    return both


def at(name: str, damage: Damage) -> Callable[[Path], object]:
    return lambda root: damage(root / name)


NAMES = [layout.FORMAT, layout.OWNER, layout.QUEUES, f"{QUEUE}/.watermark", f"{QUEUE}/range=0000000000000"]
HARMS: dict[str, Callable[[Path], object]] = {
    **{f"{name.rpartition('/')[2]} gone": at(name, gone) for name in NAMES},
    **{f"{name.rpartition('/')[2]} garbled": at(name, garbled) for name in NAMES},
    "segment gone": lambda root: gone(segment(root)),
    "segment garbled": lambda root: garbled(segment(root)),
    "journal gone": at(layout.JOURNAL, gone),
    "journal garbled": at(layout.JOURNAL, garbled),
    "record garbled": first_record,
    "queues.toml and its copy garbled": without_copy(garbled),
}
COMMANDS = {
    layout.FORMAT: "reconstruct -m",
    "segment": "salvage-journal",
    "journal": "salvage-journal",
    "record": "salvage-journal",
    "queues.toml and": "reconstruct -m",
}
"""By what is damaged; all else comes up by itself."""


def refusal(root: Path) -> str:
    """Of somebody who begins to work there; empty where he can."""
    try:
        with xaqueue.connect(root) as connection:
            connection.enqueue("orders", b"new")
            connection.commit()
            taken = connection.dequeue("orders")
            assert taken is not None
            connection.rollback()
    except Error as error:
        return str(error)
    return ""


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_one_command_brings_it_up(root: Path, harm: Callable[[Path], object], request: pytest.FixtureRequest) -> None:
    what = request.node.callspec.id
    harm(root)
    before = refusal(root)
    wanted = next((command for start, command in COMMANDS.items() if what.startswith(start)), "")
    assert bool(before) == bool(wanted), before
    if before:
        (command,) = {found for found in re.findall(r"`xaqueue ([^`]+)`", before) if not found.startswith("check")}
        assert command.startswith(wanted)
        run(*shlex.split(command), *(["--yes"] if wanted == "salvage-journal" else []))
        assert refusal(root) == ""
    with xaqueue.connect(root) as connection:
        found = {message.body for message in connection.browse("orders")}
        assert found - {b"new"} == ALL
        assert set(connection.tpc_recover()) == {IN_DOUBT, DECIDED}
        numbers = [message.seq for message in connection.browse("orders")]
        assert len(set(numbers)) == len(numbers)
    run("reconstruct", "-m")  # of what has come up without it: it changes nothing where all is as it should be
    assert json.loads(run("check", "--json"))["damage"] == 0
    assert json.loads(run("status", "--json"))["format"]["id"]


@pytest.mark.parametrize("damage", [gone, garbled])
def test_a_range_that_no_journal_has_is_lost_alone(tmp_path: Path, damage: Damage) -> None:
    root = tmp_path / "space"
    create(root, sync="NONE", any_queue=True)
    with xaqueue.connect(root) as connection:
        for queue in ("orders", "other"):
            connection.enqueue(queue, b"first")
    damage(root / QUEUE / "range=0000000000000")
    assert refusal(root) == ""
    with xaqueue.connect(root) as connection:
        assert [message.body for message in connection.browse("other")] == [b"first"]
        assert [(message.seq > 1, message.body) for message in connection.browse("orders")] == [(True, b"new")]
