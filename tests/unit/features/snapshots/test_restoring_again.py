"""A restore that is cut off, done twice, or comes in between others: nothing that was acknowledged is left behind."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

import xaqueue
from support.crash_level import LAGGING, NOON_US, open_space
from support.forgetful import Tree
from xaqueue.cli.main import app
from xaqueue.core.model import layout
from xaqueue.core.model.format import read_format
from xaqueue.core.owner import open as opening
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import InvalidArgument, QueueWaiting, SpaceError
from xaqueue.features.kinds import KINDS
from xaqueue.features.session import Session, attach
from xaqueue.features.snapshots import restore as restoring
from xaqueue.features.snapshots import store
from xaqueue.features.snapshots.restoring import restore
from xaqueue.features.snapshots.take import take
from xaqueue.xa import Flag
from xaqueue.xid import Xid


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """With a message in snapshot 1 and another one in snapshot 2, which was taken since."""
    path = tmp_path / "space"
    with xaqueue.connect(path, create=True) as connection:
        for body in (b"1", b"2"):
            connection.enqueue("orders", body)
            connection.commit()
            connection.snapshot()
        for _ in range(2):
            assert connection.dequeue("orders") is not None
        connection.commit()
    return path


def contents(root: Path, queue: str = "orders") -> list[tuple[bytes, bool]]:
    with xaqueue.connect(root) as connection:
        return [(message.body, message.possible_duplicate) for message in connection.browse(queue)]


class CutOff(BaseException):
    """As a kill at that moment."""


@pytest.fixture(params=["_swap", "remove_tree"])
def cut_off(request: pytest.FixtureRequest, root: Path) -> Iterator[Path]:
    """Where all is built and nothing has moved; or where all is in its place."""

    def die(*_: object) -> None:
        raise CutOff

    owner = restoring if request.param == "_swap" else store
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, request.param, die)
        with pytest.raises(CutOff):
            restore(root, 2)
    yield root
    assert not (root / ".restoring").exists()


def test_what_was_added_behind_one_that_was_cut_off_stays(cut_off: Path) -> None:
    with xaqueue.connect(cut_off) as connection:
        connection.enqueue("orders", b"acknowledged")
        connection.commit()
    assert restore(cut_off, 1).snapshot == 1
    assert (b"acknowledged", False) in contents(cut_off)


def test_one_that_was_cut_off_is_finished_by_the_same_command(cut_off: Path) -> None:
    assert restore(cut_off, 2).snapshot == 2
    assert contents(cut_off) == [(b"1", True), (b"2", True)]


def test_what_a_power_cut_has_left_under_both_names_is_not_of_the_space_any_more(root: Path) -> None:
    """The register of tries would count one of a message that nobody has tried since."""

    def die(fs: DirectoryFileSystem, source: str, target: str) -> None:
        if source != "tries":
            rename(fs, source, target)
            return
        fs.link(source, target)
        raise CutOff

    rename = DirectoryFileSystem.rename
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectoryFileSystem, "rename", die)
        with pytest.raises(CutOff):
            restore(root, 2)
    done = restore(root, 2)
    assert not (root / "tries").exists()
    assert (root / done.removed / "tries").exists()


def test_a_restore_cut_off_while_somebody_opens_it_is_seen(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who opens the space has read FORMAT, and then waited for the processor."""
    early = [read_format(root)]
    (root / "FORMAT").unlink()
    monkeypatch.setattr(opening, "read_format", lambda path: early.pop() if early else read_format(path))
    with pytest.raises(SpaceError, match="its FORMAT is missing"):
        xaqueue.connect(root)


def test_a_power_cut_leaves_no_part_of_what_says_that_it_is_ready(root: Path) -> None:
    """A file that was made and not synced may be empty then."""
    made: list[str] = []

    def noted(fs: DirectoryFileSystem, path: str, chunks: Sequence[bytes], modified_ns: int = 0) -> None:
        made.append(path)
        create(fs, path, chunks, modified_ns)

    create = DirectoryFileSystem.create
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectoryFileSystem, "create", noted)
        restore(root)
    assert f"{restoring.PLACE}/restored" in made
    assert restoring.READY not in made


def test_what_came_back_before_passes_for_a_duplicate_still(root: Path) -> None:
    """The second message was consumed, came back with its snapshot, and is newer than the other one."""
    restore(root, 2)
    restore(root, 1)
    assert contents(root) == [(b"1", True), (b"2", True)]
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"3")
        connection.commit()
    restore(root, 1)
    assert contents(root) == [(b"1", True), (b"2", True), (b"3", False)]


def test_where_the_marks_are_lost_everything_may_have_come_back(root: Path) -> None:
    restore(root, 2)
    (root / "restored").write_text("garbled")
    restore(root, 1)
    assert contents(root) == [(b"1", True), (b"2", True)]
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"3")
        connection.commit()
    assert contents(root) == [(b"1", True), (b"2", True), (b"3", False)]


@pytest.mark.parametrize("garbled", [False, True])
def test_a_branch_of_the_past_is_an_operators_whatever_comes_back_next(root: Path, garbled: bool) -> None:
    with xaqueue.connect(root) as connection:
        xid = connection.xid(7, "decided", "b")
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"of a branch")
        connection.tpc_prepare()
        connection.snapshot()
        connection.tpc_commit()
    assert restore(root, exact=True).branches == [str(xid)]
    if garbled:
        (root / "restored").write_text("garbled")
    assert restore(root, 1).branches == [str(xid)], "it is not in that snapshot"
    with xaqueue.connect(root) as connection:
        assert connection.tpc_recover() == []


@pytest.fixture
def doubtful(root: Path) -> tuple[Path, Xid]:
    """In snapshot 3 a branch is in doubt that takes one message and adds another."""
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"held")
        connection.commit()
        xid = connection.xid(7, "in doubt", "b")
        connection.tpc_begin(xid)
        assert connection.dequeue("orders") is not None
        connection.enqueue("orders", b"added")
        connection.tpc_prepare()
        connection.snapshot()
    return root, xid


def committed(root: Path, xid: Xid) -> list[bytes]:
    """What is there once its manager has committed this branch, of which it is asked."""
    with xaqueue.connect(root) as connection:
        assert connection.tpc_recover() == [xid]
        connection.tpc_commit(xid)
    return [body for body, _ in contents(root)]


def test_where_all_branches_are_lost_none_passes_for_decided(doubtful: tuple[Path, Xid]) -> None:
    root, xid = doubtful
    shutil.rmtree(root / "prepared")
    assert restore(root).branches == [str(xid)]


def garble(root: Path, suffix: str) -> None:
    """And find that: the block goes to quarantine."""
    (path,) = (root / "prepared").glob(f"*.{suffix}")
    path.unlink()  # the snapshot has the same file
    path.write_bytes(b"garbled")
    with xaqueue.connect(root) as connection:
        assert len(connection.tpc_recover()) == 1


@pytest.mark.parametrize("suffixes", [["000"], ["001"], ["000", "001", "002"]], ids=str)
def test_what_a_branch_in_doubt_has_lost_comes_back(doubtful: tuple[Path, Xid], suffixes: list[str]) -> None:
    root, xid = doubtful
    for suffix in suffixes:
        garble(root, suffix)
    assert restore(root, 3).branches == []
    assert committed(root, xid) == [b"added"]


def test_a_newer_branch_that_has_lost_a_block_is_in_doubt_yet(doubtful: tuple[Path, Xid]) -> None:
    root, xid = doubtful
    garble(root, "001")
    assert restore(root, 1).branches == []
    with closing(attach(root)) as session:
        assert len(session.space.branches[xid].damage) == 1


def test_a_later_branch_of_the_same_name_is_the_one_that_is_in_doubt(doubtful: tuple[Path, Xid]) -> None:
    root, xid = doubtful
    with xaqueue.connect(root) as connection:
        connection.tpc_commit(xid)
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"later")
        connection.tpc_prepare()
    assert restore(root).branches == []
    assert committed(root, xid) == [b"held", b"added", b"later"]


@pytest.mark.parametrize("lost", [False, True])
def test_what_was_defined_since_is_defined_by_the_last_good_copy(root: Path, lost: bool) -> None:
    with xaqueue.connect(root) as connection:
        connection.define("later", order="lifo")
        connection.enqueue("later", b"newer")
        connection.commit()
    defined = (root / "queues.toml").read_text()
    (root / "queues.toml").unlink()
    if not lost:
        (root / "queues.toml").write_text("[queues")
    restore(root)
    assert (root / "queues.toml").read_text() == defined
    restore(root, exact=True)
    assert "later" not in (root / "queues.toml").read_text()


def carried(connection: xaqueue.Connection) -> None:
    """A database has it, and so the space may record it later."""
    xid = connection.xid(7, "carried", "b")
    connection.tpc_begin(xid)
    connection.enqueue("orders", b"carried")
    assert connection.tpc_carry(f"{1:016x}.ledger") is not None
    connection.tpc_commit(late=True)


def test_a_database_that_has_delivered_all_is_not_waited_for(root: Path) -> None:
    """In the snapshot it might have had more, and under its new id the space would wait for ever."""
    with xaqueue.connect(root) as connection:
        carried(connection)
        connection.snapshot()
    restore(root)
    assert contents(root) == [(b"carried", True)]
    with xaqueue.connect(root) as connection:
        assert connection.carriers().carriers == ()
        carried(connection)


def test_a_database_that_may_have_the_last_change_is_waited_for(root: Path, tmp_path: Path) -> None:
    """The space was killed, and its note is newer than the snapshot."""
    with xaqueue.connect(root) as connection:
        carried(connection)
        shutil.copytree(root, tmp_path / "killed")
    (tmp_path / "killed" / "FORMAT").unlink()
    restore(tmp_path / "killed")
    with pytest.raises(QueueWaiting, match="release --carrier"):
        contents(tmp_path / "killed")


@pytest.mark.parametrize("lost", ["FORMAT", "queues.toml"])
def test_what_only_the_journal_has_comes_over_where_the_space_cannot_be_opened(
    root: Path, tmp_path: Path, lost: str
) -> None:
    """The power went: the directories are as they were at the last checkpoint."""
    killed = tmp_path / "killed"
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"acknowledged")
        connection.commit()
        shutil.copytree(root, killed)
    for path in (killed / "committed").glob("queue=orders/range=*/*"):
        path.unlink()
    (killed / lost).write_text("[queues.orders]\ncolour = 3\n")
    (killed / "queues.toml.good").unlink()
    with pytest.raises((SpaceError, InvalidArgument)):
        xaqueue.connect(killed)
    assert restore(killed).newer == 1
    assert contents(killed) == [(b"1", True), (b"2", True), (b"acknowledged", False)]


@pytest.mark.parametrize("lost", ["FORMAT", ""])
def test_what_an_operator_has_decided_since_is_not_done_again(doubtful: tuple[Path, Xid], lost: str) -> None:
    root, xid = doubtful
    decided = CliRunner().invoke(app, ["indoubt", "commit", str(xid), "--space", str(root), "--yes", "--reason", "why"])
    assert decided.exit_code == 0, decided.output
    with xaqueue.connect(root) as connection:
        assert connection.dequeue("orders") is not None
        connection.commit()
    if lost:
        (root / lost).unlink()
    assert restore(root, 3).branches == []
    assert contents(root) == [(b"held", True)]


@pytest.mark.usefixtures("quiet")
def test_a_number_that_only_the_journal_tells_is_not_given_again() -> None:
    """Of a queue that came behind the snapshot, whose owner was killed before its directories followed."""
    fs = Tree(dict.fromkeys(layout.directories()) | {layout.FORMAT: b"xaqueue 1 orders 1111"}).open()
    space = open_space(fs, LAGGING)
    take(space)
    session = Session(space)
    first = added(session)
    restoring.restore(fs, restoring.Wanted(1, exact=True), NOON_US, kinds=KINDS)
    assert added(Session(open_space(fs, LAGGING))) > first


def added(session: Session) -> int:
    """The number of the only message."""
    xid = Xid(1, b"put", b"")
    session.start(xid)
    session.enqueue("orders", b"")
    session.end(xid)
    session.commit(xid, Flag.ONEPHASE)
    (message,) = session.browse("orders")
    return message.seq
