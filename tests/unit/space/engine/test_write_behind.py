"""Through the lagging port everything looks as it would without it, and after a flush the directories are the same."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xaqueue
from xaqueue.errors import RetryLater
from xaqueue.space.owner.open import attach
from xaqueue.storage import write_behind
from xaqueue.storage.fs import DirectoryFileSystem
from xaqueue.storage.write_behind import Flusher, Waits, WriteBehind
from xaqueue.tools.torture.forgetful import ForgetfulFileSystem, Tree

DIRECTORIES = ("active", "prepared", "committed")
PATHS = [f"{directory}/{name}" for directory in DIRECTORIES for name in "abc"]
MARKS = [f"{directory}/.mark" for directory in DIRECTORIES]

calls = st.one_of(
    st.tuples(st.just("create"), st.sampled_from(PATHS), st.binary(max_size=40)),
    st.tuples(st.just("rename"), st.sampled_from(PATHS), st.sampled_from(PATHS)),
    st.tuples(st.just("unlink"), st.sampled_from(PATHS)),
    st.tuples(st.just("set_modified_ns"), st.sampled_from(PATHS), st.integers(1, 9)),
    st.tuples(st.just("write_at"), st.sampled_from(MARKS), st.binary(min_size=4, max_size=4)),
    st.tuples(st.just("read"), st.sampled_from(PATHS + MARKS)),
    st.tuples(st.just("exists"), st.sampled_from(PATHS + MARKS)),
    st.tuples(st.just("size"), st.sampled_from(PATHS)),
    st.tuples(st.just("list"), st.sampled_from(DIRECTORIES)),
    st.tuples(st.just("sync_data"), st.sampled_from(PATHS)),
    st.tuples(st.just("sync_dir"), st.sampled_from(DIRECTORIES)),
    st.tuples(st.just("flush")),
)


def empty() -> ForgetfulFileSystem:
    return Tree(dict.fromkeys(DIRECTORIES)).open()


def do(fs: ForgetfulFileSystem | WriteBehind, call: Sequence[object]) -> object:
    """What the call gives, or the kind of error that it raises."""
    name, *arguments = call
    if name in ("create", "write_at"):
        path, content = arguments
        arguments = [path, 0, [content]] if name == "write_at" else [path, [content]]
    try:
        found = getattr(fs, str(name))(*arguments)
    except FileNotFoundError:
        return "missing"
    return sorted(found) if isinstance(found, list) else found


def refuses(plain: ForgetfulFileSystem, call: Sequence[object]) -> bool:
    """What the engine never does: make what is there, rename over what is there."""
    name, *arguments = call
    path = str(arguments[-1] if name == "rename" else arguments[0]) if arguments else ""
    return name in ("create", "rename") and plain.exists(path)


@settings(max_examples=300, deadline=None)
@given(st.lists(calls, max_size=40), st.integers(0, 100))
def test_it_looks_like_the_port_behind_it(script: list[tuple[object, ...]], cache_bytes: int) -> None:
    plain, behind = empty(), empty()
    lagging = WriteBehind(behind, cache_bytes)
    for call in script:
        if call[0] == "flush":
            lagging.flush()
        elif not refuses(plain, call):
            assert do(lagging, call) == do(plain, call), call
    lagging.flush()
    assert not lagging.pending
    assert behind.tree_after_kill() == plain.tree_after_kill()
    assert {path: behind.modified_ns(path) for path in PATHS if behind.exists(path)} == {
        path: plain.modified_ns(path) for path in PATHS if plain.exists(path)
    }


def test_what_comes_and_goes_never_touches_the_directories() -> None:
    behind = empty()
    lagging = WriteBehind(behind)
    lagging.create("active/a", [b"head", b"body"])
    lagging.rename("active/a", "prepared/a")
    lagging.rename("prepared/a", "committed/a")
    assert lagging.read("committed/a") == b"headbody"
    lagging.unlink("committed/a")
    assert not lagging.pending
    assert behind.calls == 0


def test_a_mark_is_written_behind_the_files_that_it_tells_of() -> None:
    order: list[str] = []

    class Watched(ForgetfulFileSystem):
        def create(self, path: str, chunks: Sequence[bytes]) -> None:
            order.append(path)
            super().create(path, chunks)

        def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
            order.append(path)
            super().write_at(path, offset, chunks)

    behind = Watched(None, Tree(dict.fromkeys(DIRECTORIES)))
    lagging = WriteBehind(behind)
    lagging.write_at("committed/.mark", 0, [b"1"])
    lagging.create("committed/a", [b"x"])
    lagging.write_at("committed/.mark", 0, [b"2"])
    lagging.flush()
    assert order == ["committed/a", "committed/.mark"]
    assert behind.read("committed/.mark") == b"2"


def test_an_earlier_moment_is_flushed_without_what_came_later() -> None:
    behind = empty()
    lagging = WriteBehind(behind)
    lagging.create("committed/a", [b"a"])
    lagging.write_at("committed/.mark", 0, [b"1"])
    earlier = lagging.snapshot()
    lagging.create("committed/b", [b"b"])
    lagging.write_at("committed/.mark", 0, [b"2"])
    lagging.flush(earlier)
    assert behind.list("committed") == [".mark", "a"]
    assert behind.read("committed/.mark") == b"1"
    lagging.flush()
    assert behind.read("committed/.mark") == b"2"
    lagging.flush(earlier)
    assert behind.read("committed/.mark") == b"2"


def test_what_was_flushed_is_read_from_memory_up_to_a_limit() -> None:
    behind = empty()
    lagging = WriteBehind(behind, cache_bytes=10)
    for name in "abc":
        lagging.create(f"committed/{name}", [b"four"])
    lagging.flush()
    for name in "cba":
        assert lagging.read(f"committed/{name}") == b"four"
    assert (lagging.hits, lagging.misses) == (2, 1)


def test_a_large_file_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "LARGE_BYTES", 10)
    behind = empty()
    lagging = WriteBehind(behind)
    lagging.create("active/a", [b"more than ten"])
    assert behind.read("active/a") == b"more than ten"
    assert not lagging.pending


def test_too_much_that_is_pending_is_flushed_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "PENDING_FILES", 2)
    behind = empty()
    lagging = WriteBehind(behind)
    for name in "abcd":
        lagging.create(f"active/{name}", [b"x"])
    assert behind.list("active") == ["a", "b", "c"]


def test_without_room_it_stays_pending_and_readable() -> None:
    behind = empty()
    lagging = WriteBehind(behind)
    lagging.create("active/a", [b"x"])

    def full(path: str, chunks: Sequence[bytes]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    create, behind.create = behind.create, full  # type: ignore[method-assign]
    with pytest.raises(OSError, match="No space left"):
        lagging.flush()
    assert lagging.pending
    assert lagging.read("active/a") == b"x"
    behind.create = create  # type: ignore[method-assign]
    lagging.flush()
    assert behind.read("active/a") == b"x"


def test_what_may_wait_for_room_is_in_nobodys_way() -> None:
    behind = empty()
    lagging = WriteBehind(behind)
    for path in ("active/a", "committed/b"):
        lagging.create(path, [b"x"])
    create = behind.create

    def nearly_full(path: str, chunks: Sequence[bytes]) -> None:
        if path == "active/a":
            raise OSError(errno.ENOSPC, "No space left on device", path)
        create(path, chunks)

    def waits(error: OSError, call: Callable[[str], None], path: str) -> None:
        raise Waits(error.errno, error.strerror, path)

    behind.create = nearly_full  # type: ignore[method-assign]
    lagging.again = waits
    with pytest.raises(Waits):
        lagging.flush()
    assert behind.read("committed/b") == b"x"
    lagging.sync_all()
    lagging.sync_data("committed/b")
    with pytest.raises(RetryLater):
        lagging.sync_data("active/a")
    assert lagging.read("active/a") == b"x"


def test_a_thread_flushes_after_a_moment(tmp_path: Path) -> None:
    flushed = threading.Event()

    class Told(WriteBehind):
        def flush(self, snapshot: write_behind.Snapshot | None = None) -> None:
            super().flush(snapshot)
            if not self.pending:
                flushed.set()

    fs = DirectoryFileSystem(tmp_path, keep_unsynced=False)
    lagging = Told(fs)
    flusher = Flusher(lagging, lambda error: pytest.fail(str(error)))
    try:
        lagging.create("a", [b"x"])
        assert flushed.wait(30)
        assert (tmp_path / "a").read_bytes() == b"x"
    finally:
        flusher.stop()
        fs.close()


def test_an_error_of_the_thread_is_told(tmp_path: Path) -> None:
    told: list[OSError] = []
    heard = threading.Event()

    def failed(error: OSError) -> None:
        told.append(error)
        heard.set()

    fs = DirectoryFileSystem(tmp_path, keep_unsynced=False)
    lagging = WriteBehind(fs)
    flusher = Flusher(lagging, failed)
    try:
        lagging.create("nowhere/a", [b"x"])
        assert heard.wait(30)
        assert isinstance(told[0], FileNotFoundError)
    finally:
        flusher.stop()
        fs.close()


def test_work_goes_on_beside_the_thread(tmp_path: Path) -> None:
    fs = DirectoryFileSystem(tmp_path, keep_unsynced=False)
    for directory in DIRECTORIES:
        fs.make_dir(directory)
    lagging = WriteBehind(fs, cache_bytes=1000)
    stopped = threading.Event()

    def flush() -> None:
        while not stopped.is_set():
            lagging.flush()

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        for number in range(3000):
            name = f"{number}.{number % 7}"
            lagging.create(f"active/{name}", [b"%d" % number])
            lagging.rename(f"active/{name}", f"prepared/{name}")
            lagging.set_modified_ns(f"prepared/{name}", 10**18 + number)
            lagging.rename(f"prepared/{name}", f"committed/{name}")
            assert lagging.read(f"committed/{name}") == b"%d" % number
            if number % 3:
                lagging.unlink(f"committed/{name}")
                with suppress(FileNotFoundError):
                    lagging.unlink(f"committed/{name}")
                    pytest.fail("it was there twice")
    finally:
        stopped.set()
        thread.join()
    lagging.flush()
    left = sorted(int(path.name.split(".")[0]) for path in (tmp_path / "committed").iterdir())
    assert left == list(range(0, 3000, 3))
    assert all(
        path.stat().st_mtime_ns == 10**18 + int(path.name.split(".")[0]) for path in (tmp_path / "committed").iterdir()
    )
    assert not list((tmp_path / "active").iterdir())
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
        time.sleep(0 if then == "checkpoint" else 3 * write_behind.LAG_S)
        session.space.checkpoint()
        connection.enqueue("orders", b"and on")
        connection.commit()
    session.close()
    with xaqueue.connect(tmp_path / "s") as connection:
        assert [message.body for message in connection.browse("orders")][-1] == b"and on"


def test_a_flush_follows_a_file_that_is_renamed_meanwhile() -> None:
    class Renaming(ForgetfulFileSystem):
        def create(self, path: str, chunks: Sequence[bytes]) -> None:
            if path == "prepared/a":
                lagging.rename("prepared/b", "committed/b")
                lagging.unlink("prepared/c")
            super().create(path, chunks)

    behind = Renaming(None, Tree(dict.fromkeys(DIRECTORIES)))
    lagging = WriteBehind(behind)
    for name in "abc":
        lagging.create(f"prepared/{name}", [name.encode()])
    lagging.sync_all()
    assert not lagging.pending
    assert [behind.list(directory) for directory in DIRECTORIES] == [[], ["a"], ["b"]]
