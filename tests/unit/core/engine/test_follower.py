"""The directories follow the journal: in its order, to the same end, and what they lack is read from memory."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xaqueue
from support.bare_space import bare_space
from support.crash_level import NOON_US
from support.forgetful import ForgetfulFileSystem, Tree
from support.journal_log_scene import DIRECTORIES, MARK, RANGE, LoggedDirectories, directories
from support.journal_of import journal_of
from support.woken import Woken
from xaqueue.core.engine import journal_log
from xaqueue.core.engine.behind import Turn
from xaqueue.core.engine.journal_log import LAG_S
from xaqueue.core.engine.log import KEPT_BYTES
from xaqueue.core.model.block import Kind as Block
from xaqueue.core.model.branch import Branch, Written
from xaqueue.core.model.change import DROP, MOVE, PUT, Op
from xaqueue.core.model.layout import Watermark, parse_watermark
from xaqueue.core.owner import threads
from xaqueue.core.owner.threads import Follower
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.journal_format import Entry
from xaqueue.errors import ResourceFailed
from xaqueue.features.session import attach
from xaqueue.message import MessageId
from xaqueue.xid import Xid

PATIENCE_S = 30.0
PATHS = [f"{directory}/{name}" for directory in ("active", "prepared", RANGE) for name in "abc"]

calls = st.one_of(
    st.tuples(st.just(PUT), st.sampled_from(PATHS), st.binary(min_size=1, max_size=40), st.integers(0, 9)),
    st.tuples(st.just(MOVE), st.sampled_from(PATHS), st.sampled_from(PATHS), st.integers(0, 9)),
    st.tuples(st.just(DROP), st.sampled_from(PATHS)),
    st.tuples(st.just(0)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(calls, max_size=40), st.integers(0, 100))
def test_they_come_to_what_the_changes_say(script: Sequence[tuple[object, ...]], cache_bytes: int) -> None:
    """Whenever it follows. A name is read only where it was used once, as that of a message is, which is never put a
    second time. What was put twice may be one file with two names, which has one time: the steps of a block that queues
    share give both the same."""
    fs = directories()
    log = LoggedDirectories(fs, cache_bytes)
    files: dict[str, tuple[bytes, int]] = {}
    used: list[str] = []
    puts, times_us = Counter[bytes](), defaultdict[bytes, set[int]](set)
    for call in script:
        if call[0] == 0:
            log.follow()
        elif call[0] == PUT:
            _, path, body, when_us = call
            assert isinstance(path, str)
            assert isinstance(body, bytes)
            assert isinstance(when_us, int)
            if path.startswith(RANGE) and path in used:
                continue
            head = crc32(body).to_bytes(4, "little")  # as that of a block it tells one content from all others
            log.do((PUT, path, head, body, when_us))
            files[path] = head + body, when_us
            used.append(path)
            puts[head + body] += 1
            times_us[head + body].add(when_us)
        elif call[0] == MOVE:
            _, source, target, when_us = call
            assert isinstance(source, str)
            assert isinstance(target, str)
            assert isinstance(when_us, int)
            if source in files and target not in used:  # as blocks do, which go through names of their own
                log.do((MOVE, source, target, when_us))
                files[target] = files.pop(source)[0], when_us
                used.append(target)
                times_us[files[target][0]].add(when_us)
        else:
            path = str(call[1])
            log.do((DROP, path))
            files.pop(path, None)
        for path in files:
            if used.count(path) == 1:
                assert log.read(path) == files[path][0]
    log.settle()
    assert not log.pending
    assert log.waiting_room == (0, 0)
    assert {path: fs.read(path) for path in PATHS if fs.exists(path)} == {path: files[path][0] for path in files}
    for path, (content, when_us) in files.items():
        if when_us:
            allowed_us = {when_us} if puts[content] == 1 else times_us[content]
            assert fs.modified_ns(path) in {one * 1000 for one in allowed_us}


def test_what_comes_and_goes_never_touches_the_directories() -> None:
    fs = directories()
    log = LoggedDirectories(fs)
    log.do((PUT, "prepared/a", b"head", b"body", 0))
    log.do((MOVE, "prepared/a", f"{RANGE}/a", 5))
    assert log.read(f"{RANGE}/a") == b"headbody"
    log.do((DROP, f"{RANGE}/a"))
    before = fs.tree_after_kill()
    log.follow()
    assert fs.tree_after_kill() == before
    assert log._made == 0


def test_what_was_put_leaves_its_place_before_another_file_takes_that() -> None:
    """However far it goes in the same turn."""
    fs = directories()
    log = LoggedDirectories(fs)
    log.do((PUT, "prepared/a", b"1", b"one", 0))
    log.follow()
    log.do((MOVE, "prepared/a", f"{RANGE}/a", 0))
    log.do((PUT, "prepared/a", b"2", b"two", 0))
    log.do((MOVE, f"{RANGE}/a", f"{RANGE}/b", 0))
    log.follow()
    assert {path: fs.read(path) for path in PATHS if fs.exists(path)} == {
        "prepared/a": b"2two",
        f"{RANGE}/b": b"1one",
    }


def test_what_a_turn_comes_to_is_worked_out_while_others_have_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be many changes. Whoever is interrupted meanwhile has neither followed any nor lost a watermark."""
    fs = directories()
    log = LoggedDirectories(fs)
    held, interrupted = list[bool](), [True]

    def make(changes: Sequence[Sequence[Op]], standing: set[str]) -> Turn:
        held.append(log._lock.locked())
        if interrupted.pop():
            raise KeyboardInterrupt
        return Turn(changes, standing)

    monkeypatch.setattr(journal_log, "Turn", make)
    log.do((PUT, f"{RANGE}/a", b"head", b"body", 5))
    queue = log.changed_queues["q"]
    queue.published, queue.last = 1, 2
    log._marks = {"q": queue}
    with pytest.raises(KeyboardInterrupt):
        log.follow()
    assert log._marks == {"q": queue}
    assert log.read(f"{RANGE}/a") == b"headbody"
    assert not fs.exists(f"{RANGE}/a")
    interrupted.append(False)
    log.follow()
    assert held == [False, False]
    assert fs.read(f"{RANGE}/a") == b"headbody"
    assert parse_watermark(fs.read(MARK)) == Watermark(1, 2)


def test_a_block_that_comes_and_goes_costs_no_call() -> None:
    fs = directories()
    log = LoggedDirectories(fs)
    log.do((PUT, "prepared/a", b"head", b"body", 0))
    log.do((MOVE, "prepared/a", f"{RANGE}/a", 0))
    log.do((PUT, "prepared/b", b"head", b"body", 0))
    log.do((DROP, "prepared/b"))
    log.follow()
    assert fs.calls == len(["create", "rename"])


def test_a_message_that_comes_and_goes_costs_no_call() -> None:
    fs = directories()
    log = LoggedDirectories(fs)
    log.do((PUT, "prepared/a", b"head", b"body", 0))
    log.do((MOVE, "prepared/a", f"{RANGE}/a", NOON_US))
    log.do((PUT, f"{RANGE}/b", b"head", b"body", NOON_US))
    log.do((DROP, f"{RANGE}/a"))
    log.do((DROP, f"{RANGE}/b"))
    log.follow()
    assert fs.calls == 0
    assert log._made == 0


@pytest.mark.parametrize("path", ["prepared/a", f"{RANGE}/a"])
def test_a_file_is_made_with_its_time_by_two_calls(path: str) -> None:
    fs = directories()
    log = LoggedDirectories(fs)
    log.do((PUT, path, b"head", b"body", NOON_US))
    log.follow()
    assert fs.calls == len(["create", "rename"])
    assert fs.modified_ns(path) == NOON_US * 1000


@pytest.mark.parametrize("path", ["prepared/a", "heuristic/a", "committed/queue=q/.retries/a"])
@pytest.mark.parametrize("leaves", [True, False])
def test_what_was_there_before_it_came_and_went_is_removed(path: str, leaves: bool) -> None:
    fs = directories()
    log = LoggedDirectories(fs)
    log.do((PUT, path, b"head", b"body", 0))
    log.follow()
    if leaves:
        log.do((DROP, path))
    log.do((PUT, path, b"other", b"body", 0))
    log.do((DROP, path))
    log.follow()
    assert not fs.exists(path)


@pytest.mark.parametrize("path", ["prepared/a", f"{RANGE}/a"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "no room")])
def test_what_may_have_come_before_somebody_was_interrupted_is_removed(error: BaseException, path: str) -> None:
    """It has its name, and nobody has noted that."""

    class Interrupted(ForgetfulFileSystem):
        def rename(self, source: str, target: str) -> None:
            super().rename(source, target)
            if target == path:
                raise error

    fs = Interrupted(None, Tree(dict.fromkeys(DIRECTORIES)))
    log = LoggedDirectories(fs)
    log.do((PUT, path, b"head", b"body", 0))
    with pytest.raises(type(error)):
        log.follow()
    assert fs.exists(path)
    log.do((DROP, path))
    log.follow()
    assert not fs.exists(path)


def test_of_what_is_removed_nothing_is_kept_in_mind_whoever_is_interrupted() -> None:
    class Interrupted(ForgetfulFileSystem):
        faults = 1

        def unlink(self, path: str) -> None:
            if path == "prepared/b" and self.faults:
                self.faults -= 1
                raise OSError(errno.EIO, "interrupted", path)
            super().unlink(path)

    fs = Interrupted(None, Tree(dict.fromkeys(DIRECTORIES)))
    log = LoggedDirectories(fs)
    for name in "ab":
        log.do((PUT, f"prepared/{name}", b"head", b"body", 0))
    log.follow()
    for name in "ab":
        log.do((DROP, f"prepared/{name}"))
    with pytest.raises(OSError, match="interrupted"):
        log.follow()
    assert log.behind.standing == {"prepared/b"}
    log.follow()
    assert not fs.exists("prepared/b")
    assert not log.behind.standing


def test_a_watermark_is_written_behind_the_files_that_it_tells_of() -> None:
    order: list[str] = []

    class Watched(ForgetfulFileSystem):
        def rename(self, source: str, target: str) -> None:
            order.append(target)
            super().rename(source, target)

        def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
            order.append(path)
            super().write_at(path, offset, chunks)

        def unlink(self, path: str) -> None:
            order.append(f"no {path}")
            super().unlink(path)

    fs = Watched(None, Tree(dict.fromkeys(DIRECTORIES)))
    log = LoggedDirectories(fs)
    log.do((PUT, "prepared/b", b"b", b"", 0))
    log.follow()
    del order[:]
    log.publish(1, (PUT, f"{RANGE}/1", b"x", b"", 0))
    log.publish(2, (PUT, f"{RANGE}/2", b"y", b"", 0), (DROP, "prepared/b"))
    log.follow()
    assert order == [f"{RANGE}/1", f"{RANGE}/2", MARK, "no prepared/b"]
    watermark = parse_watermark(fs.read(MARK))
    assert watermark is not None
    assert watermark.published == 2


def test_only_what_is_done_counts_as_followed() -> None:
    """What is published while it follows comes with the next turn, and no checkpoint covers it."""

    class Busy(ForgetfulFileSystem):
        def rename(self, source: str, target: str) -> None:
            if target.endswith("/1"):
                log.do((PUT, f"{RANGE}/2", b"2", b"", 0))
            super().rename(source, target)

    fs = Busy(None, Tree(dict.fromkeys(DIRECTORIES)))
    log = LoggedDirectories(fs)
    log.do((PUT, f"{RANGE}/1", b"1", b"", 0))
    first = log.journal.position
    log.follow()
    assert fs.list(RANGE) == ["1"]
    assert (log.followed, log.pending) == (first, True)
    log.follow()
    assert fs.list(RANGE) == ["1", "2"]
    assert (log.followed, log.pending) == (log.journal.position, False)


def test_a_block_that_moves_on_while_it_follows_is_found_by_the_next_turn() -> None:
    class Moving(ForgetfulFileSystem):
        def rename(self, source: str, target: str) -> None:
            if target == "prepared/a":
                log.do((MOVE, "prepared/b", f"{RANGE}/b", 0))
                log.do((DROP, "prepared/c"))
            super().rename(source, target)

    fs = Moving(None, Tree(dict.fromkeys(DIRECTORIES)))
    log = LoggedDirectories(fs)
    for name in "abc":
        log.do((PUT, f"prepared/{name}", name.encode(), b"", 0))
    log.follow()
    assert log.read(f"{RANGE}/b") == b"b"
    log.follow()
    assert (fs.list("prepared"), fs.list(RANGE)) == (["a"], ["b"])


@pytest.mark.parametrize("late", [False, True])
def test_what_is_recorded_and_not_published_is_not_covered(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a follower that comes just then, nor where an open says just then that it is done."""
    fs = directories()
    log = LoggedDirectories(fs)
    log.do((PUT, f"{RANGE}/1", b"1", b"", 0))
    before, write, covered = log.journal.position, log.journal.write, []

    def written(entries: Sequence[Entry], syncing: Callable[[int], None] | None = None) -> int:
        done = write(entries, syncing)
        if late:
            with log._lock:
                log.mark_published_locked()
        log.follow()
        covered.append(log.followed)
        return done

    monkeypatch.setattr(log.journal, "write", written)
    log.do((PUT, f"{RANGE}/2", b"2", b"", 0))
    assert covered == [before]


def test_a_checkpoint_covers_what_is_followed_and_synced() -> None:
    fs = directories()
    log = LoggedDirectories(fs)
    log.do((PUT, f"{RANGE}/1", b"1", b"", 0))
    end = log.journal.position
    log.settle()
    log.checkpoint()
    assert log.journal.checkpoint == end
    assert [tree.open().list(RANGE) for tree in fs.trees_after_crash()] == [["1"]]


def test_what_was_followed_is_read_from_memory_up_to_a_limit() -> None:
    """SMQ-49: of all queues together."""
    log = LoggedDirectories(directories(), cache_bytes=10)
    for name in "abc":
        log.do((PUT, f"{RANGE}/{name}", b"four", b"", 0))
    log.follow()
    for name in "cba":
        assert log.read(f"{RANGE}/{name}") == b"four"
    assert (log._hits, log._misses) == (2, 1)


def test_what_is_read_again_stays_in_memory_for_longer() -> None:
    """SMQ-13: what nobody has read goes first, the oldest before."""
    log = LoggedDirectories(directories(), cache_bytes=12)

    def add(names: str) -> list[str]:
        for name in names:
            log.do((PUT, f"{RANGE}/{name}", b"four", b"", 0))
        log.follow()
        return [path.rpartition("/")[2] for path in log.behind.cached]

    assert add("abc") == ["a", "b", "c"]
    for _ in range(2):
        assert log.read(f"{RANGE}/a") == b"four"
    assert add("d") == ["c", "d", "a"]
    assert add("ef") == ["a", "e", "f"]
    assert add("gh") == ["f", "g", "h"]
    log.do((DROP, f"{RANGE}/h"))
    assert (log.behind.used, log._misses) == (set(), 0)


def test_names_in_active_are_synced_behind_those_that_left_it() -> None:
    """Else a crash keeps neither the old nor the new name of a file that the journal does not hold."""
    fs = directories()
    log = LoggedDirectories(fs)
    fs.create("active/a", [b"large"])
    fs.sync_data("active/a")
    fs.sync_dir("active")
    log.do((MOVE, "active/a", f"{RANGE}/a", 0))
    log.follow()
    other = branch()
    for path in ("active/b", "active/c"):
        fs.create(path, [b"large"])
        other.blocks.append(Written(len(other.blocks) + 1, Block.ENQUEUE, "q", MessageId(bytes(16)), 0))
        other.blocks[-1].path = path
    log.harden(other)
    for tree in fs.trees_after_crash():
        found = tree.open()
        assert [path for path in ("active/a", f"{RANGE}/a") if found.exists(path)] != []
        assert found.list("active")[-2:] == ["b", "c"]


def branch() -> Branch:
    return Branch(Xid(1, b"x", b""), "x")


def test_a_large_block_is_written_at_once_and_a_small_one_kept() -> None:
    fs = directories()
    log, adding = LoggedDirectories(fs), branch()
    for number, size in ((1, 10), (2, KEPT_BYTES)):
        written = Written(number, Block.ENQUEUE, "q", MessageId(bytes(16)), 0)
        log.add(adding, written, b"head", bytes(size))
        assert (written.content is None, bool(written.path)) == (number == 2, number == 2)
    assert len(fs.list("active")) == 1


@pytest.mark.parametrize("moves", [1, 2])
def test_a_read_that_the_follower_overtakes_finds_the_new_name(moves: int) -> None:
    """It looks for the file before it has moved, and for what is pending when nothing is."""

    class Overtaken(ForgetfulFileSystem):
        def read(self, path: str, size: int | None = None, offset: int = 0) -> bytes:
            try:
                return super().read(path, size, offset)
            except FileNotFoundError:
                log.follow()
                raise

    fs = Overtaken(None, Tree({**dict.fromkeys(DIRECTORIES), "active/large": b"large"}))
    log = LoggedDirectories(fs)
    if moves == 1:
        log.do((MOVE, "active/large", f"{RANGE}/large", 0))
    else:
        log.do((MOVE, "active/large", "prepared/large", 0))
        log.do((MOVE, "prepared/large", f"{RANGE}/large", 0))
    assert log.read(f"{RANGE}/large") == b"large"
    assert not log.pending
    with pytest.raises(FileNotFoundError):
        log.read("active/large")


def test_who_adds_to_too_much_that_is_pending_follows_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_log, "PENDING_FILES", 2)
    fs = directories()
    log = LoggedDirectories(fs)
    for name in "abcd":
        log.add(branch(), Written(1, Block.ENQUEUE, "q", MessageId(bytes(16)), 0), b"head", b"")
        log.do((PUT, f"{RANGE}/{name}", b"x", b"", 0))
    assert fs.list(RANGE) == ["a", "b", "c"]


def test_whoever_is_told_that_something_is_pending_finds_it() -> None:
    """A follower that looks at once, and finds nothing, sleeps on: nobody tells it again."""
    log = LoggedDirectories(directories())
    found: list[bool] = []
    log.owner.wakes.pending = Woken(lambda: found.append(log.pending))
    for name in "ab":
        log.do((PUT, f"{RANGE}/{name}", b"x", b"", 0))
    log.settle()
    log.do((PUT, f"{RANGE}/c", b"x", b"", 0))
    assert found == [True, True]


def test_too_much_that_is_pending_is_counted_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in changes, of which one may put thousands."""
    monkeypatch.setattr(journal_log, "PENDING_FILES", 20)
    log = LoggedDirectories(directories())
    adding = branch()
    for change in range(3):
        log.add(adding, Written(1, Block.ENQUEUE, "q", MessageId(bytes(16)), 0), b"head", b"")
        assert log.pending == (change > 0)
        log.do(*((PUT, f"{RANGE}/{change}.{number}", b"x", b"", 0) for number in range(10)))
    log.add(adding, Written(1, Block.ENQUEUE, "q", MessageId(bytes(16)), 0), b"head", b"")
    assert not log.pending


def test_a_large_branch_of_the_same_name_may_follow_at_once(tmp_path: Path) -> None:
    """Before its files have moved out of the way."""
    with bare_space(tmp_path / "space", "JOURNAL") as bare, closing(bare.connect()) as connection:
        for phases in (1, 2, 2):
            connection.tpc_begin(Xid(1, b"again", b""))
            connection.enqueue("q", bytes([phases]) * KEPT_BYTES)
            if phases == 2:
                connection.tpc_prepare()
            connection.tpc_commit()
        assert [message.body[:1] for message in connection.browse("q")] == [b"\1", b"\2", b"\2"]
        bare.space.log.settle()
        assert [message.body[:1] for message in connection.browse("q")] == [b"\1", b"\2", b"\2"]
        bare.reopen()
        assert [body[:1] for body in bare.take("q")] == [b"\1", b"\2", b"\2"]


def test_whoever_follows_lets_the_journal_grow_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond what has to stay free on the disk: a round that needs it takes of that, and nobody else."""
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        journal = journal_of(bare.space).journal
        before, room = journal.allocated_bytes, bare.fs.room()
        bare.put("q", bytes(600_000))
        with monkeypatch.context() as patch:
            patch.setattr(bare.fs, "room", lambda: room._replace(free_bytes=70 * 1024 * 1024))
            bare.space.log.follow()
            assert journal.allocated_bytes == before
        bare.space.log.follow()
        assert journal.allocated_bytes == before + 8 * 1024 * 1024
        bare.put("q", bytes(600_000))
        bare.space.log.follow()
        assert journal.allocated_bytes == before + 8 * 1024 * 1024
        bare.reopen()
        assert len(bare.take("q")) == 2


def test_a_journal_that_cannot_grow_for_want_of_anything_but_room_fences(tmp_path: Path) -> None:
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        bare.put("q", bytes(600_000))
        bare.space.log.settle()
        bare.fs.faults = {("write_at", "journal/"): errno.EIO}
        with pytest.raises(ResourceFailed):
            bare.space.log.follow()
        assert bare.space.log.fenced


# The thread


def test_a_thread_follows_after_a_moment(tmp_path: Path) -> None:
    followed = threading.Event()

    class Told(LoggedDirectories):
        def follow(self) -> None:
            super().follow()
            followed.set()

    fs = DirectoryFileSystem(tmp_path, keep_unsynced=False)
    fs.make_dir("active")
    log = Told(fs)
    follower = Follower(log, lambda error: pytest.fail(str(error)))
    log.owner.wakes.pending = follower
    try:
        log.do((PUT, "a", b"x", b"", 0))
        assert followed.wait(PATIENCE_S)
        assert (tmp_path / "a").read_bytes() == b"x"
    finally:
        follower.stop()
        fs.close()


def test_a_thread_that_is_stopped_follows_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close follows what is left; a space that is given up is as a killed process leaves it."""
    monkeypatch.setattr(threads, "LAG_S", PATIENCE_S)
    fs = directories()
    log = LoggedDirectories(fs)
    follower = Follower(log, lambda error: pytest.fail(str(error)))
    log.owner.wakes.pending = follower
    log.do((PUT, f"{RANGE}/a", b"x", b"", 0))
    follower.stop()
    assert fs.list(RANGE) == []


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), MemoryError(), KeyError("a fault")])
def test_an_error_of_the_thread_is_told(error: Exception) -> None:
    """Whatever it is: nobody else would ever follow, nor know that nobody does."""
    told: list[BaseException] = []

    class Broken(ForgetfulFileSystem):
        def create(self, path: str, chunks: Sequence[bytes], modified_ns: int = 0) -> None:
            raise error

    log = LoggedDirectories(Broken(None, Tree(dict.fromkeys(DIRECTORIES))))
    follower = Follower(log, told.append)
    log.owner.wakes.pending = follower
    try:
        log.do((PUT, f"{RANGE}/a", b"x", b"", 0))
        follower._thread.join(PATIENCE_S)
        assert told == [error]
        assert log.pending
    finally:
        follower.stop()


def test_the_thread_of_a_space_that_failed_does_nothing_more() -> None:
    fs = directories()
    log = LoggedDirectories(fs)
    log.do((PUT, f"{RANGE}/a", b"x", b"", 0))
    log.fail(OSError(errno.EIO, "Input/output error"))
    follower = Follower(log, lambda error: pytest.fail(str(error)))
    log.owner.wakes.pending = follower
    follower._thread.join(PATIENCE_S)
    assert not follower._thread.is_alive()
    with pytest.raises(ResourceFailed):
        log.follow()
    assert fs.list(RANGE) == []


def test_work_goes_on_beside_the_thread(tmp_path: Path) -> None:
    fs = DirectoryFileSystem(tmp_path, keep_unsynced=False)
    for directory in DIRECTORIES:
        fs.make_dir(directory)
    log = LoggedDirectories(fs, cache_bytes=1000)
    stopped = threading.Event()

    def follow() -> None:
        while not stopped.is_set():
            log.follow()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        for number in range(1000):
            name = f"{number}.{number % 7}"
            log.do((PUT, f"prepared/{name}", b"%d" % number, b"", 0))
            log.do((MOVE, f"prepared/{name}", f"{RANGE}/{name}", 10**15 + number))
            assert log.read(f"{RANGE}/{name}") == b"%d" % number
            if number % 3:
                log.do((DROP, f"{RANGE}/{name}"))
    finally:
        stopped.set()
        thread.join()
    log.settle()
    left = list((tmp_path / RANGE).iterdir())
    assert sorted(int(path.name.split(".")[0]) for path in left) == list(range(0, 1000, 3))
    assert all(path.stat().st_mtime_ns == 10**18 + 1000 * int(path.name.split(".")[0]) for path in left)
    assert not list((tmp_path / "prepared").iterdir())
    fs.close()


# What somebody removed by hand


@pytest.mark.parametrize("then", ["wait", "checkpoint", "drain", "lose the range", "lose the queue"])
def test_a_message_file_that_was_removed_by_hand_is_gone_and_all_goes_on(tmp_path: Path, then: str) -> None:
    """Its content is known here, so it is delivered; its file is gone already, which is what was wanted."""
    session = attach(tmp_path / "s", create_missing=True, watch=False)
    queue = tmp_path / "s" / "committed" / "queue=orders"
    with xaqueue.connect(tmp_path / "s") as connection:
        for number in range(3):
            connection.enqueue("orders", b"%d" % number)
        connection.commit()
        session.space.checkpoint()
        lost = sorted(queue.glob("range=*/*"))
        for path in lost[:1] if then in ("wait", "checkpoint") else lost:
            path.unlink()
        if then.startswith("lose"):
            shutil.rmtree(queue if then == "lose the queue" else lost[0].parent)
        for _ in range(1 if then in ("wait", "checkpoint") else 3):
            assert connection.dequeue("orders") is not None
        connection.commit()
        time.sleep(0 if then == "checkpoint" else 3 * LAG_S)
        session.space.checkpoint()
        connection.enqueue("orders", b"and on")
        connection.commit()
    session.close()
    with xaqueue.connect(tmp_path / "s") as connection:
        assert [message.body for message in connection.browse("orders")][-1] == b"and on"
