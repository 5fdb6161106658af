"""A version that knows no blocks of many messages refuses a space that may have one, as long as it may."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

import xaqueue
from support.bare_space import DURABLE, BareSpace, bare_space
from xaqueue.cli.main import app
from xaqueue.core.model import format, layout
from xaqueue.core.model.definitions import MANY, ONE, Definitions, QueueDefinition
from xaqueue.core.model.message_name import parse_any
from xaqueue.errors import ResourceFailed, SpaceError
from xaqueue.features.opening import create
from xaqueue.features.snapshots.restoring import restore

BODIES = [b"%d" % number for number in range(20)]


@pytest.fixture(params=["NONE", DURABLE, "JOURNAL"])
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path, request.param, definitions=Definitions(default=QueueDefinition(blocks=MANY))) as made:
        yield made


def version(root: Path) -> int:
    return format.read_format(root).version


def put(bare: BareSpace) -> None:
    with bare.connect() as connection:
        connection.enqueue_many("q", BODIES)


def blocks(bare: BareSpace) -> int:
    bare.space.settle()
    named = [parse_any(path.name) for path in bare.messages("q")]
    return sum(one is not None and one.is_block for one in named)


def test_the_first_block_is_written_once_the_space_says_so(bare: BareSpace) -> None:
    with bare.connect() as connection:
        connection.enqueue_many("q", BODIES[:3])
    assert version(bare.root) == 1
    calls: list[tuple[str, str]] = []
    bare.fs.strike = lambda call, path: calls.append((call, path))  # type: ignore[method-assign]
    put(bare)
    assert version(bare.root) == 2
    said = calls.index(("rename", layout.FORMAT))
    assert not [path for _, path in calls[:said] if path.startswith(("active/", "journal/"))]
    if bare.sync != "NONE":
        assert calls[said + 1] == ("sync_dir", "")
    assert blocks(bare) == 1


def test_without_room_to_say_so_each_message_has_a_file(bare: BareSpace) -> None:
    bare.fs.faults = {("create", f".{layout.FORMAT}"): errno.ENOSPC}
    put(bare)
    assert (version(bare.root), blocks(bare), bare.take("q")) == (1, 0, BODIES)
    bare.fs.faults = {}
    put(bare)
    assert (version(bare.root), blocks(bare), bare.take("q")) == (2, 1, BODIES + BODIES)


def test_a_disk_that_fails_meanwhile_fences(bare: BareSpace) -> None:
    bare.fs.faults = {("rename", layout.FORMAT): errno.EIO}
    with pytest.raises(ResourceFailed):
        put(bare)
    assert bare.space.failure is not None


def test_a_block_that_came_with_an_older_line_is_said_at_open(bare: BareSpace) -> None:
    """As of a restore to a moment, or of a promoted replica."""
    put(bare)
    line = (bare.root / layout.FORMAT).read_text()
    (bare.root / layout.FORMAT).write_text(line.replace(" 2 ", " 1 "))
    bare.reopen()
    assert (bare.root / layout.FORMAT).read_text() == line


def drained(root: Path, left: int) -> int:
    """What it says after a close with so many messages left, and with a file for each from here on."""
    with xaqueue.connect(root) as connection:
        connection.define("q", blocks=ONE)
        assert len(connection.dequeue_many("q", len(BODIES) - left)) == len(BODIES) - left
    return version(root)


def test_the_way_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "space"
    create(root)
    (root / layout.QUEUES).write_text('[queues.q]\nblocks = "many"\n')
    with xaqueue.connect(root) as connection:
        connection.enqueue_many("q", BODIES)
        connection.commit()
        connection.snapshot()
    with monkeypatch.context() as older:
        older.setattr(format, "VERSIONS", (1,))
        for opens in (xaqueue.connect, restore, partial(restore, number=1)):
            with pytest.raises(SpaceError, match=r"has format 2; .* use a newer one"):
                opens(root)
    assert not (root / "removed").exists(), "nothing was changed"
    assert drained(root, 1) == 2
    with xaqueue.connect(root) as connection:
        assert connection.dequeue("q").body == BODIES[-1]  # type: ignore[union-attr]
    assert version(root) == 1
    with xaqueue.connect(root) as connection:
        connection.define("q", blocks=MANY)
        connection.enqueue_many("q", BODIES)
    assert drained(root, 0) == 1


def test_the_way_back_takes_no_message(tmp_path: Path) -> None:
    """To another queue and back each is in a file of its own, as man/guide/operating.md says; [default] asks, too."""
    root = tmp_path / "space"
    create(root, any_queue=True)
    with xaqueue.connect(root) as connection:
        connection.enqueue_many("q", BODIES)
    defined = (root / layout.QUEUES).read_text()
    (root / layout.QUEUES).write_text(f'{defined}\n[queues.q]\nblocks = "one"\n')
    moved("q", "aside", root)
    moved("aside", "q", root)
    assert version(root) == 2, "a new queue would have blocks"
    (root / layout.QUEUES).write_text('[default]\nblocks = "one"\n')
    moved("q", "aside", root)
    moved("aside", "q", root)
    assert version(root) == 1
    (root / layout.QUEUES).write_text("[default]\n")
    with xaqueue.connect(root) as connection:
        assert [message.body for message in connection.browse("q")] == BODIES


def test_what_is_in_doubt_goes_no_way_back(tmp_path: Path) -> None:
    """It has to be decided first, be it a block that it adds or that it takes from."""
    root = tmp_path / "space"
    create(root)
    (root / layout.QUEUES).write_text('[queues.q]\n[queues.aside]\nblocks = "one"\n')
    with xaqueue.connect(root) as connection:
        connection.enqueue_many("q", BODIES)
        connection.commit()
        xid = connection.xid(7, b"in doubt", b"")
        connection.tpc_begin(xid)
        assert connection.dequeue("q") is not None
        connection.enqueue_many("q", BODIES)
        connection.tpc_prepare()
    (root / layout.QUEUES).write_text('[queues.q]\nblocks = "one"\n[queues.aside]\nblocks = "one"\n')
    moved("q", "aside", root)
    assert version(root) == 2
    with xaqueue.connect(root) as connection:
        connection.tpc_commit(xid)
    moved("q", "aside", root)
    assert version(root) == 1
    with xaqueue.connect(root) as connection:
        assert [message.body for message in connection.browse("aside")] == BODIES[1:] + BODIES


def moved(queue: str, to: str, root: Path) -> None:
    done = CliRunner().invoke(app, ["move", queue, to, "--space", str(root)])
    assert done.exit_code == 0, done.stderr
