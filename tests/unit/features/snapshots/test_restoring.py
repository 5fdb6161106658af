"""A snapshot is put back in the place of whatever is left of a space, and nobody takes the past for the present."""

from __future__ import annotations

import errno
import itertools
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import xaqueue
from support.patience import eventually
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import app
from xaqueue.core.model.format import read_format
from xaqueue.core.owner.chores import Chores
from xaqueue.core.owner.definitions_file import read_definitions
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import (
    InvalidArgument,
    OperationalError,
    ResourceError,
    ResourceFailed,
    RetryLater,
    SpaceError,
    SpaceInUse,
)
from xaqueue.features.session import attach
from xaqueue.features.snapshots import take as taking
from xaqueue.features.snapshots.chores import RETRY_S, TakeSnapshots
from xaqueue.features.snapshots.restoring import restore
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.xid import Xid

PATIENCE_S = 60.0
DEFINED = '[queues.orders]\norder = "fifo"\n[default]\n'


@pytest.fixture(params=["JOURNAL", "FDATASYNC;DSYNC", "NONE"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """With two messages in a snapshot, of which one was taken since, and one that was added."""
    path = tmp_path / "space"
    with xaqueue.connect(path, create=True, sync=request.param) as connection:
        defined = DEFINED + f'[space]\nsync = "{request.param}"\n'
        (path / "queues.toml").write_text(defined)
        eventually(lambda: (path / "queues.toml.good").read_text() == defined)
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


@pytest.fixture
def doubtful(tmp_path: Path) -> tuple[Path, Xid]:
    """A branch that takes one message and adds another is in doubt in the snapshot."""
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
    return root, xid


def decide(root: Path, xid: Xid, *, consumes: bool = False) -> None:
    with xaqueue.connect(root) as connection:
        connection.tpc_commit(xid)
        if consumes:
            assert connection.dequeue("orders") is not None
            connection.commit()


def test_a_branch_of_the_past_is_an_operators(doubtful: tuple[Path, Xid]) -> None:
    root, xid = doubtful
    decide(root, xid)
    assert restore(root, exact=True).branches == [str(xid)]
    with xaqueue.connect(root) as connection:
        assert connection.tpc_recover() == []
        for verb in (connection.tpc_commit, connection.tpc_rollback):
            with pytest.raises((RetryLater, ResourceError), match="came back with snapshot 1"):
                verb(xid)
    told = CliRunner().invoke(app, ["indoubt", "list", "--space", str(root)])
    assert str(xid) in told.stdout
    decided = CliRunner().invoke(app, ["indoubt", "commit", str(xid), "--space", str(root), "--yes", "--reason", "why"])
    assert decided.exit_code == ExitCode.OK, decided.output
    assert [body for body, _ in contents(root)] == [b"added"]


def test_a_branch_that_was_decided_since_stays_decided(doubtful: tuple[Path, Xid]) -> None:
    root, xid = doubtful
    decide(root, xid)
    done = restore(root)
    assert (done.branches, done.newer) == ([], 1)
    with xaqueue.connect(root) as connection:
        assert connection.tpc_recover() == []
    assert contents(root) == [(b"held", True), (b"added", False)], "what was consumed since comes back, once"


def test_a_branch_that_is_in_doubt_yet_is_its_managers(doubtful: tuple[Path, Xid]) -> None:
    root, xid = doubtful
    assert restore(root).branches == []
    with xaqueue.connect(root) as connection:
        assert connection.tpc_recover() == [xid]
        connection.tpc_commit(xid)
    assert [body for body, _ in contents(root)] == [b"added"]


@pytest.mark.parametrize("consumes", [False, True])
def test_where_the_space_cannot_be_opened_what_is_there_is_the_proof(
    doubtful: tuple[Path, Xid], consumes: bool
) -> None:
    root, xid = doubtful
    decide(root, xid, consumes=consumes)
    (root / "FORMAT").unlink()
    assert restore(root).branches == ([str(xid)] if consumes else [])
    with xaqueue.connect(root) as connection:
        assert connection.tpc_recover() == []
    assert [body for body, _ in contents(root)] == ([b"held"] if consumes else [b"held", b"added"])


def test_nobody_can_tell_of_a_branch_of_the_past_later_either(doubtful: tuple[Path, Xid]) -> None:
    root, xid = doubtful
    decide(root, xid)
    restore(root, exact=True)
    assert restore(root, 1).branches == [str(xid)]


def test_a_branch_that_was_prepared_since_is_in_doubt(root: Path) -> None:
    with xaqueue.connect(root) as connection:
        xid = connection.xid(7, "newer", "b")
        connection.tpc_begin(xid)
        taken = connection.dequeue("orders")
        assert taken is not None
        connection.enqueue("later", b"of a branch")
        connection.tpc_prepare()
    restore(root)
    with xaqueue.connect(root) as connection:
        assert connection.tpc_recover() == [xid]
        connection.tpc_commit(xid)
        assert taken.body not in [message.body for message in connection.browse("orders")]
        assert [message.body for message in connection.browse("later")] == [b"4", b"of a branch"]


@pytest.mark.parametrize("requeued", [False, True])
def test_what_was_moved_since_is_there_once(tmp_path: Path, requeued: bool) -> None:
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True) as connection:
        ids = [connection.enqueue("orders", b"%d" % number) for number in range(3)]
        connection.commit()
        if requeued:
            connection.move("orders", ids[0], "failed")
            connection.commit()
        connection.snapshot()
        if requeued:
            connection.requeue("failed", ids[0])
        else:
            connection.move("orders", ids[0], "failed")
            connection.move("orders", ids[1], "other")
            connection.commit()
            connection.requeue("other", ids[1])  # it has another number now
        connection.commit()
    restore(root)
    assert sorted(body for body, _ in contents(root)) == ([b"0", b"1", b"2"] if requeued else [b"1", b"2"])
    assert [body for body, _ in contents(root, "failed")] == ([] if requeued else [b"0"])
    assert contents(root, "other") == []


def test_a_copy_of_several_that_was_moved_takes_none_of_the_others_along(tmp_path: Path) -> None:
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True) as connection:
        message_id = connection.enqueue_to(["a", "b"], b"news")
        connection.commit()
        connection.snapshot()
        connection.move("a", message_id, "failed")
        assert connection.dequeue("b") is not None
        connection.commit()
    restore(root)
    assert contents(root, "a") == []
    assert contents(root, "failed") == [(b"news", False)]
    assert contents(root, "b") == [(b"news", True)], "it was consumed since"


def test_a_newer_message_under_a_low_number_is_kept(tmp_path: Path) -> None:
    """As of a commit that was shown, and hardened only behind the snapshot."""
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True, sync="NONE") as connection:
        for body in (b"1", b"2"):
            connection.enqueue("orders", body)
        connection.commit()
        connection.dequeue("orders")
        connection.commit()
        connection.snapshot()
        connection.enqueue("orders", b"3")
        connection.commit()
    (newer,) = root.glob("committed/queue=orders/range=*/0000000000000003.*")
    newer.rename(newer.with_name(newer.name.replace("3", "1", 1)))
    assert restore(root).newer == 1
    assert [body for body, _ in contents(root)] == [b"3", b"2"]


def test_a_snapshot_without_a_watermark_is_good_as_well(tmp_path: Path) -> None:
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True, sync="NONE") as connection:
        connection.enqueue("orders", b"1")
        connection.commit()
        (root / "committed/queue=orders/.watermark").unlink()
        connection.snapshot()
    restore(root)
    assert contents(root) == [(b"1", True)]
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"2")
        connection.commit()
        assert [message.possible_duplicate for message in connection.browse("orders")] == [True, False]


def test_what_is_remembered_of_a_message_that_fails_is_the_newer(tmp_path: Path) -> None:
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True) as connection:
        connection.define("failed")
        connection.define("orders", max_tries=9, failure_queue="failed")
        connection.enqueue("orders", b"1")
        connection.commit()
        connection.snapshot()
        for _ in range(3):
            connection.dequeue("orders")
            connection.rollback()
    restore(root)
    with xaqueue.connect(root) as connection:
        assert [message.tries for message in connection.browse("orders")] == [3]


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
    with xaqueue.connect(root), pytest.raises(SpaceInUse, match="stop its owner first"):
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
    monkeypatch.setattr(TakeSnapshots, "left_of_interval_s", lambda _: 0.0)
    session = attach(root)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "1" in (there := [path.name for path in (root / "snapshots").glob("[0-9]*")]) or len(there) != 2:
            assert time.monotonic() < deadline
            session.space.check()
            time.sleep(0.01)
    finally:
        session.close()


def test_a_close_amid_one_is_no_failure(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that is over within a second says nothing of it."""
    (root / "queues.toml").write_text((root / "queues.toml").read_text() + "[snapshots]\ninterval_min = 1\n")
    monkeypatch.setattr(TakeSnapshots, "left_of_interval_s", lambda _: 0.0)
    session = attach(root)
    try:
        session.space.is_closing = True
        assert TakeSnapshots(session.space, root).run(Chores(session.space, [])) == RETRY_S
    finally:
        session.close()
    assert "snapshot-failed" not in caplog.text


def test_how_long_it_is_until_the_next(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (root / "queues.toml").read_text()
    (root / "queues.toml").write_text(text + "[snapshots]\ninterval_min = 1\n")
    session = attach(root)
    try:
        made = TakeSnapshots(session.space, root)
        assert 50 < made.left_of_interval_s() <= 60
        now_us = session.space.now_us()
        monkeypatch.setattr(session.space, "now_us", lambda: now_us - 10**15)  # it was taken while the clock was ahead
        assert made.left_of_interval_s() == 0
    finally:
        session.close()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("interval_min = 0", "a number from 1 to 46,080"),
        ("interval_min = 46081", "a number from 1 to 46,080"),
        ("keep = 1", "a number from 2 to 367"),
        ('keep = "3"', "a number from 2 to 367"),
        ("kept = 3", "kept"),
    ],
)
def test_a_table_that_is_wrong_is_refused_whole(root: Path, table: str, said: str) -> None:
    (root / "queues.toml").write_text(f"[default]\n[snapshots]\n{table}\n")
    with pytest.raises(InvalidArgument, match=said):
        read_definitions(root)


def scheduled(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is due at once, and two stay."""
    text = (root / "queues.toml").read_text()
    (root / "queues.toml").write_text(text + "[snapshots]\ninterval_min = 1\nkeep = 2\npoint_in_time = false\n")
    monkeypatch.setattr(TakeSnapshots, "left_of_interval_s", lambda _: 0.0)


def numbers(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "snapshots").iterdir())


def test_who_has_it_open_for_a_moment_takes_none(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call("snapshot", "take", "--space", str(root))
    scheduled(root, monkeypatch)
    call("put", "orders", "x", "--space", str(root))
    assert restore(root, 1).snapshot == 1
    assert numbers(root) == ["1", "2"]


@pytest.mark.parametrize("root", ["JOURNAL"], indirect=True)
def test_who_closes_does_not_wait_for_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a journal: without one, whoever does anything waits until the names are linked."""
    scheduled(root, monkeypatch)
    begun = threading.Event()

    def linger(links: object) -> None:
        begun.set()
        for _ in range(6000):
            links.check()  # type: ignore[attr-defined]
            time.sleep(0.01)

    monkeypatch.setattr(taking._Links, "changing", linger)
    session = attach(root)
    assert begun.wait(30)
    session.close()
    assert numbers(root) == ["1"]


def test_a_suspect_one_of_the_highest_number_is_in_nobodys_way(root: Path) -> None:
    with xaqueue.connect(root) as connection:
        connection.snapshot()
        (root / "snapshots/2/MANIFEST").write_text("garbled")
        assert connection.snapshot().number == 3
    assert numbers(root) == ["1", "2", "3"]


def test_a_place_that_is_no_directory_is_named(root: Path) -> None:
    shutil.rmtree(root / "snapshots")
    (root / "snapshots").write_text("")
    with (
        xaqueue.connect(root) as connection,
        pytest.raises(OperationalError, match=r"no snapshot was taken: .*snapshots"),
    ):
        connection.snapshot()


def test_a_copy_costs_none_of_those_that_are_kept(root: Path, tmp_path: Path) -> None:
    for _ in range(2):
        call("snapshot", "take", "--space", str(root))
    text = (root / "queues.toml").read_text()
    (root / "queues.toml").write_text(text + "[snapshots]\nkeep = 3\npoint_in_time = false\n")
    call("snapshot", "take", "--to", str(tmp_path / "copy"), "--space", str(root))
    assert numbers(root) == ["1", "2", "3"]


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


def put(root: Path, body: bytes) -> None:
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", body)


def format_gone(root: Path) -> None:
    (root / "FORMAT").unlink()


def format_garbled(root: Path) -> None:
    (root / "FORMAT").write_text("what is this")


def messages_gone(root: Path) -> None:
    shutil.rmtree(root / "committed")


def messages_no_directory(root: Path) -> None:
    shutil.rmtree(root / "committed")
    (root / "committed").write_text("x")


def journal_garbled(root: Path) -> None:
    for path in (root / "journal").glob("*.log"):
        path.write_bytes(b"z" * 512 + path.read_bytes()[512:])


def journal_no_directory(root: Path) -> None:
    shutil.rmtree(root / "journal")
    (root / "journal").write_text("x")


DAMAGES = [format_gone, format_garbled, messages_gone, messages_no_directory, journal_garbled, journal_no_directory]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("root", ["JOURNAL"], indirect=True)
def test_what_cannot_be_used_is_an_error_that_names_a_command(root: Path, damage: Callable[[Path], None]) -> None:
    damage(root)
    with pytest.raises((SpaceError, ResourceFailed), match=r"xaqueue (restore|salvage-journal)"):
        put(root, b"new")
    restore(root)
    assert (b"1", True) in contents(root)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("root", ["JOURNAL"], indirect=True)
def test_what_cannot_be_used_is_restored_by_itself_where_the_definitions_say_so(
    root: Path, damage: Callable[[Path], None]
) -> None:
    """STD-33."""
    with (root / "queues.toml").open("a") as definitions:
        definitions.write('[snapshots]\nrestore = "auto"\n')
    damage(root)
    assert (b"1", True) in contents(root)
    assert (b"1", True) in contents(root), "once"
    assert len(list((root / "removed").iterdir())) == 1


@pytest.mark.parametrize("root", ["JOURNAL"], indirect=True)
def test_nothing_is_restored_by_itself_without_a_clean_snapshot(root: Path) -> None:
    with (root / "queues.toml").open("a") as definitions:
        definitions.write('[snapshots]\nrestore = "auto"\n')
    (root / "snapshots" / "1" / "FORMAT").unlink()
    messages_gone(root)
    with pytest.raises(SpaceError, match=r"is gone.*No snapshot has taken its place: there is no snapshot"):
        xaqueue.connect(root)


@pytest.mark.parametrize("root", ["JOURNAL"], indirect=True)
def test_a_space_whose_messages_are_gone_goes_on_without_them_where_somebody_says_so(root: Path) -> None:
    messages_gone(root)
    assert CliRunner().invoke(app, ["reconstruct", "-m", "--space", str(root)]).exit_code == 0
    assert contents(root) == []


def test_a_snapshot_on_another_file_system_is_synced_file_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync of the space's own leaves it out."""
    synced: set[str] = set()
    link, sync_file, sync_dir = DirectoryFileSystem.link, DirectoryFileSystem.sync_file, DirectoryFileSystem.sync_dir

    def no_link(fs: DirectoryFileSystem, source: str, target: str) -> None:
        if target.startswith("snapshots/"):
            raise OSError(errno.EXDEV, "another device", target)
        link(fs, source, target)

    def note_file(fs: DirectoryFileSystem, path: str) -> None:
        synced.add(path)
        sync_file(fs, path)

    def note_dir(fs: DirectoryFileSystem, path: str) -> None:
        synced.add(path)
        sync_dir(fs, path)

    monkeypatch.setattr(DirectoryFileSystem, "link", no_link)
    monkeypatch.setattr(DirectoryFileSystem, "sync_file", note_file)
    monkeypatch.setattr(DirectoryFileSystem, "sync_dir", note_dir)
    with xaqueue.connect(tmp_path / "space", create=True, sync="JOURNAL") as connection:
        connection.enqueue("orders", b"1")
        connection.commit()
        connection.snapshot()
    made = tmp_path / "space" / "snapshots" / "1"
    names = {f"snapshots/.1.1/{path.relative_to(made)}" for path in made.rglob("*")}
    assert len(names) > 10
    assert names - synced == set()
