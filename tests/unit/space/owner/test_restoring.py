"""A snapshot is put back in the place of whatever is left of a space, and nobody takes the past for the present."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import xaqueue
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import app
from xaqueue.errors import InvalidArgument, ResourceError, RetryLater, SpaceError, SpaceInUse
from xaqueue.space.model.format import read_format
from xaqueue.space.offline.check import check
from xaqueue.space.offline.findings import Severity
from xaqueue.space.owner.open import attach
from xaqueue.space.owner.restoring import restore
from xaqueue.space.owner.threads import Snapshotter

DEFINED = '[queues.orders]\norder = "fifo"\n[default]\n'


@pytest.fixture(params=["JOURNAL", "FDATASYNC;DSYNC", "NONE"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """With two messages in a snapshot, of which one was taken since, and one that was added."""
    path = tmp_path / "space"
    with xaqueue.connect(path, create=True, sync=request.param) as connection:
        (path / "queues.toml").write_text(DEFINED + f'[space]\nsync = "{request.param}"\n')
        for body in (b"1", b"2"):
            connection.enqueue("orders", body)
        connection.commit()
        connection.snapshot()
        assert connection.dequeue("orders") is not None
        connection.enqueue("orders", b"3")
        connection.enqueue("later", b"4")
        connection.commit()
    return path


def contents(root: Path, queue: str = "orders") -> list[tuple[bytes, bool]]:
    with xaqueue.connect(root) as connection:
        return [(message.body, message.possible_duplicate) for message in connection.browse(queue)]


def test_what_came_since_is_kept_and_what_came_back_is_marked(root: Path) -> None:
    before = read_format(root)
    done = restore(root)
    assert (done.snapshot, done.messages, done.newer, done.lost, done.branches) == (1, 2, 2, 0, [])
    assert contents(root) == [(b"1", True), (b"2", True), (b"3", False)]
    assert contents(root, "later") == [(b"4", False)]
    assert read_format(root).name == before.name
    assert read_format(root).id != before.id
    assert not [finding for finding in check(root) if finding.severity is Severity.DAMAGE]
    with xaqueue.connect(root) as connection:
        taken = connection.dequeue("orders")
        assert taken is not None
        assert taken.possible_duplicate
        connection.enqueue("orders", b"5")
        connection.commit()
        *_, last = connection.browse("orders")
        assert last.seq > 1 << 32
        assert not last.possible_duplicate


def test_exactly_as_it_was(root: Path) -> None:
    assert restore(root, exact=True).newer == 0
    assert contents(root) == [(b"1", True), (b"2", True)]
    assert contents(root, "later") == []
    with xaqueue.connect(root) as connection:
        connection.enqueue("later", b"5")
        connection.commit()
        (message,) = connection.browse("later")
        assert message.seq > 1 << 32, "no number of the life that is over is used again"


def test_what_is_replaced_stays(root: Path) -> None:
    first = restore(root)
    second = restore(root)
    assert first.removed != second.removed
    for done in (first, second):
        assert (root / done.removed / "FORMAT").is_file()
        assert list((root / done.removed / "committed" / "queue=orders").rglob("*.*"))


@pytest.mark.parametrize("lost", ["FORMAT", "queues.toml", "owner", "committed", "prepared", "journal", "all"])
def test_it_comes_back_whatever_is_lost(root: Path, lost: str) -> None:
    for name in [path.name for path in root.iterdir()] if lost == "all" else [lost]:
        path = root / name
        if path.is_dir() and name != "snapshots":
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()
    restore(root)
    newer = [] if lost in ("all", "committed") else [(b"3", False)]
    assert contents(root) == [(b"1", True), (b"2", True), *newer]


def test_a_garbled_queues_toml_is_replaced_and_one_that_can_be_read_stays(root: Path) -> None:
    (root / "queues.toml").write_text("[queues")
    restore(root)
    assert (root / "queues.toml").read_text().startswith(DEFINED)
    (root / "queues.toml").write_text("[default]\n# newer\n")
    restore(root)
    assert "newer" in (root / "queues.toml").read_text()
    restore(root, exact=True)
    assert (root / "queues.toml").read_text().startswith(DEFINED)


def test_a_branch_in_doubt_that_came_back_is_an_operators(tmp_path: Path) -> None:
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True) as connection:
        connection.enqueue("orders", b"held")
        connection.commit()
        xid = connection.xid(7, "in doubt", "b")
        connection.tpc_begin(xid)
        connection.dequeue("orders")
        connection.enqueue("orders", b"added")
        connection.tpc_prepare()
        connection.snapshot()
        connection.tpc_commit()
    restore(root)
    with xaqueue.connect(root) as connection:
        assert connection.tpc_recover() == []
        for verb in (connection.tpc_commit, connection.tpc_rollback):
            with pytest.raises((RetryLater, ResourceError), match="came back with snapshot 1"):
                verb(xid)
    told = CliRunner().invoke(app, ["indoubt", "list", "--space", str(root)])
    assert str(xid) in told.stdout
    decided = CliRunner().invoke(app, ["indoubt", "commit", str(xid), "--space", str(root), "--yes"])
    assert decided.exit_code == ExitCode.OK, decided.output
    assert b"held" not in [body for body, _ in contents(root)]


def test_a_suspect_snapshot_is_never_used(root: Path) -> None:
    with xaqueue.connect(root) as connection:
        connection.snapshot()
    path = next((root / "snapshots/2/committed/queue=orders").glob("range=*/*"))
    path.unlink()
    assert restore(root).snapshot == 1
    with pytest.raises(SpaceError, match="snapshot 2 is suspect and not used"):
        restore(root, 2)
    (root / "snapshots/1/MANIFEST").write_text("{}")
    with pytest.raises(SpaceError, match="no snapshot that is whole: nothing was changed"):
        restore(root)
    with pytest.raises(SpaceError, match="there is no snapshot 9"):
        restore(root, 9)


def test_who_has_it_open_is_in_the_way(root: Path) -> None:
    with xaqueue.connect(root), pytest.raises(SpaceInUse):
        restore(root)


def test_without_snapshots_there_is_nothing_to_restore(tmp_path: Path) -> None:
    xaqueue.connect(tmp_path / "s", create=True).close()
    with pytest.raises(SpaceError, match="`xaqueue snapshot take` makes one"):
        restore(tmp_path / "s")


def test_a_snapshot_is_not_opened_itself(root: Path) -> None:
    with pytest.raises(SpaceError, match="is a snapshot"):
        xaqueue.connect(root / "snapshots" / "1")


def test_one_is_taken_when_the_newest_is_old_and_few_stay(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (root / "queues.toml").read_text()
    (root / "queues.toml").write_text(text + "[snapshots]\ninterval_min = 1\nkeep = 2\n")
    monkeypatch.setattr(Snapshotter, "_left_s", lambda _: 0.01)
    session = attach(root)
    try:
        for _ in range(1000):
            there = sorted(path.name for path in (root / "snapshots").iterdir() if not path.name.startswith("."))
            if "1" not in there and len(there) == 2:
                break
            session.space.check()
            time.sleep(0.01)
        assert "1" not in there
    finally:
        session.close()


def test_how_long_it_is_until_the_next(root: Path) -> None:
    text = (root / "queues.toml").read_text()
    (root / "queues.toml").write_text(text + "[snapshots]\ninterval_min = 1\n")
    session = attach(root)
    try:
        made = Snapshotter.__new__(Snapshotter)
        made._space = session.space
        assert 50 < made._left_s() <= 60
    finally:
        session.close()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("interval_min = 0", "a number from 1 to 46080"),
        ("interval_min = 46081", "a number from 1 to 46080"),
        ("keep = 1", "a number from 2 to 367"),
        ('keep = "3"', "a number from 2 to 367"),
        ("kept = 3", "kept"),
    ],
)
def test_a_table_that_is_wrong_is_refused_whole(root: Path, table: str, said: str) -> None:
    (root / "queues.toml").write_text(f"[default]\n[snapshots]\n{table}\n")
    with pytest.raises(InvalidArgument, match=said):
        xaqueue.connect(root)


# The verbs


def call(*words: str, code: ExitCode = ExitCode.OK) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return done.output


def test_the_verbs(root: Path, tmp_path: Path) -> None:
    space = "--space", str(root)
    assert "snapshot 2: 3 messages in 2 queues" in call("snapshot", "take", *space)
    assert [one["number"] for one in json.loads(call("snapshot", "list", "--json", *space))] == [1, 2]
    assert call("snapshot", "check", *space).count("no damage") == 2
    assert "2 queues" in call("snapshot", "take", "--to", str(tmp_path / "copy"), *space)
    assert (tmp_path / "copy" / "MANIFEST").is_file()
    assert len(json.loads(call("snapshot", "list", "--json", *space))) == 2
    assert "is there already" in call("snapshot", "take", "--to", str(tmp_path / "copy"), *space, code=ExitCode.USAGE)
    call("snapshot", "rm", "2", *space)
    assert "there is no snapshot 2" in call("snapshot", "rm", "1", "2", *space, code=ExitCode.USAGE)
    assert "there is no snapshot 2" in call("snapshot", "check", "2", *space, code=ExitCode.USAGE)
    path = next((root / "snapshots/1/committed/queue=orders").glob("range=*/*"))
    path.unlink()
    path.write_bytes(b"garbled")
    assert "is damaged" in call("snapshot", "check", *space, code=ExitCode.NOTHING)
    path.unlink()
    shutil.copytree(tmp_path / "copy", root / "snapshots" / "7")
    said = call("restore", "--yes", *space)
    assert "3 messages came back, each a possible duplicate" in said
    assert call("snapshot", "rm", "1", "7", *space) == "2 snapshots removed\n"
    assert call("snapshot", "list", *space).startswith("no snapshots yet")


def test_a_restore_asks_before(root: Path) -> None:
    call("restore", "--space", str(root), code=ExitCode.NOTHING)
    assert not (root / "removed").exists()


@pytest.mark.parametrize("sync", ["JOURNAL", "FDATASYNC;DSYNC", "NONE"])
def test_each_has_every_message_once_while_they_move(tmp_path: Path, sync: str) -> None:
    """Transactions that take from one queue and add to the other, one of them prepared now and then."""
    root, count, done = tmp_path / "space", 60, threading.Event()

    def work(number: int) -> None:
        with xaqueue.connect(root) as connection:
            for turn in itertools.count():
                if done.is_set():
                    return
                if turn % 5 == 0:
                    connection.tpc_begin(connection.xid(number, f"{turn}", "b"))
                message = connection.dequeue("ab"[turn % 2])
                if message is not None:
                    connection.enqueue("ba"[turn % 2], message.body)
                if turn % 5 == 0:
                    connection.tpc_prepare()
                    connection.tpc_commit()
                else:
                    connection.commit()

    with xaqueue.connect(root, create=True, sync=sync) as connection:
        connection.enqueue_many("a", [b"%d" % number for number in range(count)])
        connection.commit()
        threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(4):
                connection.snapshot()
        finally:
            done.set()
            for thread in threads:
                thread.join()
    for number in range(1, 5):
        copy = tmp_path / f"{number}"
        shutil.copytree(root / "snapshots" / f"{number}", copy)
        (copy / "MANIFEST").unlink()
        with xaqueue.connect(copy) as connection:
            for xid in connection.tpc_recover():
                connection.tpc_rollback(xid)
            found = sorted(int(message.body) for queue in "ab" for message in connection.browse(queue))
        assert found == list(range(count)), number
