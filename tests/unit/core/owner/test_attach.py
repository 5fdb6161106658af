"""One process owns a space, a second is told who, and what is no space of a known format is left as it is."""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

import xaqueue
from support.forgetful import Crashed, Tree
from xaqueue.core.model import layout
from xaqueue.core.model.format import read_format, why_behind
from xaqueue.core.owner import open as attach_room
from xaqueue.core.owner.definitions_file import read_definitions
from xaqueue.core.owner.open import announce, is_owned
from xaqueue.core.owner.record import read_owner
from xaqueue.core.storage import owner_file
from xaqueue.core.storage.fs import FileSystem, replace_file
from xaqueue.core.storage.owner_file import OWNER, FileLock
from xaqueue.errors import InvalidArgument, ResourceFailed, SpaceError
from xaqueue.features.opening import attach, create
from xaqueue.tm.log_directory import open_log


def files_of(root: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [root, *root.rglob("*")]
    }


# One owner


def test_connections_of_one_process_share_the_space(tmp_path: Path) -> None:
    first = xaqueue.connect(tmp_path / "s", create=True, sync="NONE")
    (tmp_path / "link").symlink_to(tmp_path / "s")
    second = xaqueue.connect(tmp_path / "link")
    first.enqueue("orders", b"x")
    first.commit()
    first.close()
    assert is_owned(tmp_path / "s")
    assert second.dequeue("orders") is not None
    second.close()
    assert not is_owned(tmp_path / "s")


def test_looking_at_who_owns_it_changes_nothing(tmp_path: Path) -> None:
    assert not is_owned(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert read_owner(tmp_path) is None


# The owner file


def test_the_owner_file_is_json(tmp_path: Path) -> None:
    session = attach(tmp_path / "s", create_missing=True, sync="FSYNC", watch=False)
    written = json.loads((tmp_path / "s" / "owner").read_bytes())
    session.close()
    assert {"epoch", "host", "pid", "since", "sync", "recovery", "endpoint", "boot"} <= set(written)
    assert (written["host"], written["pid"], written["sync"]) == (socket.gethostname(), os.getpid(), "FSYNC")
    since = datetime.fromisoformat(written["since"])
    assert since.tzinfo == UTC
    assert "0 messages" in written["recovery"]


def test_the_epoch_counts_up_with_every_open(tmp_path: Path) -> None:
    create(tmp_path / "s")
    epochs = []
    for _ in range(3):
        session = attach(tmp_path / "s", watch=False)
        owner = read_owner(tmp_path / "s")
        assert owner is not None
        assert owner.epoch == session.space.epoch
        epochs.append(owner.epoch)
        session.close()
    assert epochs == [1, 2, 3]


def test_what_a_later_version_says_of_an_owner_is_passed_over(tmp_path: Path) -> None:
    attach(tmp_path / "s", create_missing=True, watch=False).close()
    written = json.loads((tmp_path / "s" / "owner").read_bytes())
    (tmp_path / "s" / "owner").write_text(json.dumps({**written, "epoch": 7, "journalled": True, "colour": "blue"}))
    found = read_owner(tmp_path / "s")
    assert found is not None
    assert (found.epoch, found.journalled) == (7, True)
    session = attach(tmp_path / "s", watch=False)
    assert session.space.epoch == 8
    session.close()


@pytest.mark.parametrize("name", ["owner", "lock"])
def test_a_link_in_the_place_of_what_says_who_owns_it_is_refused(tmp_path: Path, name: str) -> None:
    """What it leads to would be overwritten, or locked by others for their own ends."""
    create(tmp_path / "s")
    (tmp_path / "precious").write_text("years of work")
    (tmp_path / "s" / name).symlink_to(tmp_path / "precious")
    with pytest.raises(SpaceError, match=f"/{name} is a symbolic link: put a file in its place"):
        attach(tmp_path / "s", watch=False)
    assert (tmp_path / "precious").read_text() == "years of work"
    (tmp_path / "s" / name).unlink()
    attach(tmp_path / "s", watch=False).close()


@pytest.mark.parametrize("name", ["owner", "lock"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_directory_in_the_place_of_what_says_who_owns_it_blocks_nobody(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    create(tmp_path / "s")
    make(tmp_path / "s" / name)
    assert read_owner(tmp_path / "s") is None
    with pytest.raises(SpaceError, match=rf"/{name} [iI]s (no regular file|a directory). Move what stands there away"):
        attach(tmp_path / "s", watch=False)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00garbage", b"[]", b'{"epoch": 1}', b'{"epoch": "x", "host": "h", "pid": 1, "since": "", "sync": ""}'],
)
def test_a_damaged_owner_file_does_not_keep_the_space_closed(tmp_path: Path, content: bytes) -> None:
    """Its epoch goes on above every one that can have been used."""
    attach(tmp_path / "s", create_missing=True, watch=False).close()
    (tmp_path / "s" / "owner").write_bytes(content)
    session = attach(tmp_path / "s", watch=False)
    assert session.space.epoch > 1_000_000_000
    session.close()


def test_the_lock_is_held_by_one_file_at_a_time(tmp_path: Path) -> None:
    one, two = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert (one.acquire(), two.acquire()) == (True, False)
    one.release()
    one.release()
    assert two.acquire()
    two.release()
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "none", create=False)


def test_a_child_that_was_forked_meanwhile_does_not_keep_a_lock_that_is_released(tmp_path: Path) -> None:
    """It has the file too, and no hook knows of an open or a close that another thread was in."""
    lock = FileLock(tmp_path / "lock")
    assert lock.acquire()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    try:
        lock.release()
        other = FileLock(tmp_path / "lock")
        assert other.acquire()
        other.release()
    finally:
        os.close(write)
        os.waitpid(child, 0)


def test_a_child_that_lets_go_of_its_copy_leaves_the_lock(tmp_path: Path) -> None:
    lock, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert lock.acquire()
    child = os.fork()
    if not child:
        lock.abandon()
        os._exit(0)
    os.waitpid(child, 0)
    assert not other.acquire()
    lock.release()
    other.release()


@pytest.mark.parametrize("sync", ["JOURNAL", "NONE"])
def test_a_close_that_is_interrupted_gives_the_space_back(
    tmp_path: Path, sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits for a thread that is at work; the next open finds what a kill would leave."""
    session = attach(tmp_path / "s", create_missing=True, sync=sync, watch=False)
    with xaqueue.connect(tmp_path / "s") as connection:
        connection.enqueue("q", b"1")
    attached = attach_room._attached[(tmp_path / "s").resolve()]
    stopped = [(thread, thread.stop) for thread in attached.background]

    def interrupted() -> None:
        raise KeyboardInterrupt

    assert stopped
    monkeypatch.setattr(stopped[0][0], "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.close()
    for _, stop in stopped:
        stop()
    with pytest.raises(ResourceFailed):
        session.space.check()
    session.close()
    with xaqueue.connect(tmp_path / "s") as again:
        assert [message.body for message in again.browse("q")] == [b"1"]


def test_a_directory_whose_owner_cannot_be_told_is_not_believed(tmp_path: Path) -> None:
    """Where there is a journal, which may be ahead of it."""
    attach(tmp_path / "s", create_missing=True, watch=False).close()
    (tmp_path / "s" / "owner").write_bytes(b"")
    assert "cannot be read, and the journal may be ahead" in why_behind(tmp_path / "s")
    attach(tmp_path / "s", watch=False).close()
    assert why_behind(tmp_path / "s") == ""


def test_a_crash_leaves_one_owner_or_the_other() -> None:
    """As ``xaqueue.core.storage.owner_file`` writes it, whole, and one that was known is the least that is known."""
    for crash_after in itertools.count():
        fs = Tree({}).open()
        replace_file(fs, OWNER, b"the first")
        fs.crash_after = fs.calls + crash_after
        with suppress(Crashed):
            replace_file(fs, OWNER, b"the second")
        allowed = {b"the second"} if not fs.crashed else {b"the first", b"the second"}
        for tree in (fs.tree_after_kill(), *fs.trees_after_crash()):
            assert tree.nodes["owner"] in allowed
            again = tree.open()
            replace_file(again, OWNER, b"the third")  # whatever the crash has left in its way
            assert again.read("owner") == b"the third"
        if not fs.crashed:
            break


def test_the_owner_file_is_written_through_the_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what holds of one write of it holds of all: nothing else ever writes to it."""
    written: list[bytes] = []

    def write(fs: FileSystem, path: str, content: bytes, *, durable: bool = True) -> None:
        written.append(content)
        replace_file(fs, path, content, durable=durable)

    monkeypatch.setattr(owner_file, "replace_file", write)
    session = attach(tmp_path / "s", create_missing=True, watch=False)
    announce(tmp_path / "s", "xaq+unix:///run/x.sock")
    assert (tmp_path / "s" / "owner").read_bytes() == written[-1]
    session.close()
    assert (tmp_path / "s" / "owner").read_bytes() == written[-1]
    assert [json.loads(content)["state"] for content in written] == ["recovering", "ready", "ready", "ready"]
    assert (tmp_path / "s" / "lock").read_bytes() == b""


def test_two_that_look_at_once_find_no_owner(tmp_path: Path) -> None:
    """At a space and at a decision log."""
    attach(tmp_path / "s", create_missing=True, watch=False).close()
    open_log(tmp_path / "tm").close()
    for root in (tmp_path / "s", tmp_path / "tm"):
        looker = FileLock(root / "lock", create=False)
        assert looker.acquire(shared=True)
        assert not is_owned(root)
        looker.release()


# What is opened


def test_a_wrong_queue_space_is_refused(tmp_path: Path) -> None:
    """XAQ-10."""
    create(tmp_path / "s", name="orders")
    with pytest.raises(SpaceError, match="is queue space 'orders', not 'other'"):
        attach(tmp_path / "s", name="other")
    assert not is_owned(tmp_path / "s")
    assert not (tmp_path / "s" / "owner").exists()
    attach(tmp_path / "s", name="orders", watch=False).close()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("xaqueue 3 orders 00000000-0000-0000-0000-000000000001\n", "has format 3; this xaqueue reads formats up to 2"),
        ("xaqueue 10 orders x\n", "has format 10"),
        ("xaqueue one orders x\n", "is damaged"),
        ("otherqueue 1 orders x\n", "is damaged"),
        ("xaqueue 1 orders\n", "is damaged"),
        ("", "is damaged"),
    ],
)
def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path: Path, text: str, complaint: str) -> None:
    create(tmp_path / "s")
    (tmp_path / "s" / "FORMAT").write_text(text)
    (tmp_path / "s" / "active" / "1.Z3RyaWQ.YnF1YWw.001").write_bytes(b"a later version's")
    before = files_of(tmp_path / "s")
    for create_missing in (False, True):
        with pytest.raises(SpaceError, match=complaint):
            attach(tmp_path / "s", create_missing=create_missing)
    assert files_of(tmp_path / "s") == before


@pytest.mark.parametrize("text", ["", "xaqueue 1 orders\n"])
def test_an_error_of_a_damaged_format_says_what_stood_there(tmp_path: Path, text: str) -> None:
    root = tmp_path / "s"
    xaqueue.connect(root, create=True).close()
    line = (root / "FORMAT").read_text()
    (root / "FORMAT").write_text(text)
    with pytest.raises(SpaceError, match=r"is damaged.*nothing was changed") as told:
        attach(root)
    assert line.strip() in str(told.value)


def test_a_format_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    create(tmp_path / "s")
    (tmp_path / "s" / "FORMAT").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpaceError, match="cannot be read"):
        attach(tmp_path / "s")


def test_a_directory_that_is_no_space_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="xaqueue init"):
        attach(tmp_path)
    with pytest.raises(SpaceError, match="xaqueue init"):
        attach(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_other_files_is_not_made_a_space(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    before = files_of(tmp_path)
    for makes in (lambda: create(tmp_path), lambda: xaqueue.connect(tmp_path, create=True)):
        with pytest.raises(SpaceError, match="holds other files"):
            makes()
    assert files_of(tmp_path) == before


def test_a_file_is_not_made_a_space(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpaceError, match="cannot be made a queue space"):
        create(tmp_path / "file")


def test_what_create_makes(tmp_path: Path) -> None:
    """XAQ-14, and a format that says what the directory is."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    made = create(tmp_path / "deep" / "orders space", name=None)
    assert len(list(Path("/proc/self/fd").iterdir())) == before, "a descriptor is left open"
    root = tmp_path / "deep" / "orders space"
    assert read_format(root) == made
    assert (made.version, made.name) == (1, "orders-space")
    assert UUID(made.id).version == 4
    assert (root / "FORMAT").read_text() == f"xaqueue 1 orders-space {made.id}\n"
    made_files = ["FORMAT", "counters", "queues.toml"]
    assert sorted(path.name for path in root.iterdir()) == sorted([*layout.directories(), *made_files])


def test_create_leaves_a_space_as_it_is(tmp_path: Path) -> None:
    made = create(tmp_path / "s", name="first")
    before = files_of(tmp_path / "s")
    assert create(tmp_path / "s", name="second", any_queue=True) == made
    assert files_of(tmp_path / "s") == before


def test_create_goes_on_where_a_crash_cut_it_off(tmp_path: Path) -> None:
    (tmp_path / "s" / "active").mkdir(parents=True)
    (tmp_path / "s" / ".FORMAT.new").write_text("xaq")
    create(tmp_path / "s")
    attach(tmp_path / "s", watch=False).close()


@pytest.mark.parametrize("left", ["all", "owner", "journal", "committed", "queues.toml and owner"])
def test_a_space_without_its_format_is_not_made_anew(tmp_path: Path, left: str) -> None:
    """Whatever is left of it: a new one would take the definitions and give what there is another id."""
    root = tmp_path / "s"
    with xaqueue.connect(root, create=True) as connection:
        connection.enqueue("orders", b"x")
        connection.commit()
    line = (root / "FORMAT").read_text()
    (root / "queues.toml").write_text("[queues.orders]\norder = 'lifo'\n")
    (root / "FORMAT").unlink()
    if left != "all":
        for path in list(root.iterdir()):
            if path.name not in left:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = files_of(root)
    for makes in (lambda: create(root), lambda: attach(root, create_missing=True), lambda: attach(root)):
        with pytest.raises(SpaceError, match=r"was a queue space .*FORMAT is missing; nothing was changed") as told:
            makes()
        assert (line.strip() in str(told.value)) == (left == "all" or "owner" in left)
    assert files_of(root) == before
    if left == "all":
        (root / "FORMAT").write_text(line)  # as the error says
        with xaqueue.connect(root) as connection:
            assert [message.body for message in connection.browse("orders")] == [b"x"]


def test_create_leaves_definitions_that_are_there_as_they_are(tmp_path: Path) -> None:
    """One may write them first; those that a crash of it left are as good."""
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "queues.toml").write_text("[queues.orders]\norder = 'lifo'\n")
    with pytest.raises(SpaceError, match=r"queues.toml.* is there already and says nothing of sync = \"NONE\""):
        create(tmp_path / "s", sync="NONE")
    create(tmp_path / "s")
    assert list(read_definitions(tmp_path / "s").queues) == ["orders"]


def test_only_a_space_made_by_connect_takes_any_queue(tmp_path: Path) -> None:
    create(tmp_path / "made")
    with xaqueue.connect(tmp_path / "made") as connection, pytest.raises(xaqueue.UnknownQueue):
        connection.enqueue("orders", b"")
    with xaqueue.connect(tmp_path / "connected", create=True) as connection:
        connection.enqueue("orders", b"")


@pytest.mark.parametrize("name", ["", "/", "a b", "../x"])
def test_names_of_spaces_are_one_word(tmp_path: Path, name: str) -> None:
    made = create(tmp_path / "s", name=name)
    assert len(made.name.split()) == 1
    assert "/" not in made.name
    assert read_format(tmp_path / "s") == made


def test_bad_definitions_keep_the_space_closed_and_say_why(tmp_path: Path) -> None:
    create(tmp_path / "s")
    (tmp_path / "s" / "queues.toml").write_text("[queues.orders]\norder = 'random'\n")
    with pytest.raises(InvalidArgument, match="fifo, lifo or priority"):
        attach(tmp_path / "s")
    assert not is_owned(tmp_path / "s")
    (tmp_path / "s" / "queues.toml").unlink()
    attach(tmp_path / "s", watch=False).close()


def test_missing_directories_are_made_at_open(tmp_path: Path) -> None:
    """XAQ-14."""
    create(tmp_path / "s")
    for name in layout.directories():
        (tmp_path / "s" / name).rmdir()
    attach(tmp_path / "s", watch=False).close()
    assert all((tmp_path / "s" / name).is_dir() for name in layout.directories())


def test_a_fenced_space_is_opened_anew_once_its_sessions_are_closed(tmp_path: Path) -> None:
    """Crash rule 8: only a reopen clears it."""
    session = attach(tmp_path / "s", create_missing=True, watch=False)
    session.space.log.fail(OSError(5, "Input/output error"))
    other = attach(tmp_path / "s", watch=False)
    with pytest.raises(xaqueue.ResourceFailed):
        other.start(xaqueue.Xid(1, b"x", b""))
    session.close()
    other.close()
    assert attach_room._attached == {}
    again = attach(tmp_path / "s", watch=False)
    again.start(xaqueue.Xid(1, b"x", b""))
    again.close()


@pytest.mark.parametrize("held", ["open", "close"])
def test_spaces_of_one_process_do_not_wait_for_each_other(
    tmp_path: Path, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes long of one space, its recovery or its last checkpoint, is nothing to those who use another."""
    slow, quick, new = tmp_path / "slow", tmp_path / "quick", tmp_path / "new"
    attach(quick, create_missing=True, watch=False).close()
    served = attach(tmp_path / "served", create_missing=True, watch=False)
    at_it, go_on = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        at_it.set()
        assert go_on.wait(60)

    def use_slow() -> None:
        session = attach(slow, create_missing=True, watch=False, on_branches=wait if held == "open" else lambda _: None)
        if held == "close":
            monkeypatch.setattr(session.space, "checkpoint", lambda: wait(None))
        session.close()

    with ThreadPoolExecutor(2) as threads:
        used = threads.submit(use_slow)
        assert at_it.wait(60)
        try:
            for path, create_missing in ((quick, False), (new, True)):
                call = functools.partial(attach, path, create_missing=create_missing, watch=False)
                threads.submit(call).result(30).close()
            threads.submit(attach_room.announce, tmp_path / "served", "unix:///x").result(30)
            threads.submit(served.close).result(30)
            assert not used.done()
        finally:
            go_on.set()
        used.result(60)


def test_those_who_open_one_space_at_once_share_it(tmp_path: Path) -> None:
    def use(_: int) -> int:
        session = attach(tmp_path / "s", create_missing=True, watch=False, sync="NONE")
        epoch = session.space.epoch
        session.close()
        return epoch

    with ThreadPoolExecutor(4) as threads:
        epochs = list(threads.map(use, range(40)))
    assert attach_room._attached == {}
    assert max(epochs) <= 40
