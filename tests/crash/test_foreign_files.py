"""Whatever stands where a file of a space is looked for, nobody waits for it: it is set aside, or named, or left alone.

Every place that is read, times every kind of thing that can stand there. A call that hangs is ended by an alarm.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import xaqueue
from support.crash_cases import FULL
from xaqueue.core.model import layout
from xaqueue.core.model.block import decode
from xaqueue.core.storage.journal_format import name_of
from xaqueue.core.storage.owner_file import is_owned
from xaqueue.errors import DamagedBlock, DecisionLogError, Error
from xaqueue.features import opening
from xaqueue.features.session import attach
from xaqueue.features.snapshots.restored import RESTORED
from xaqueue.offline import check, inspect, inspect_branches, spans
from xaqueue.offline.findings import Severity
from xaqueue.offline.reader import QueueReader
from xaqueue.offline.salvage import find_loss, salvage
from xaqueue.tm.log_directory import open_log

LIMIT_S = 120
"""Of real time, for all that is asked of one place; a hang has no end."""
HUGE_BYTES = 1 << 43
IN_DOUBT = xaqueue.Xid(7, b"in doubt", b"b")
OTHER = xaqueue.Xid(9, b"other", b"b")
BATCH = f"{'ab' * 16}.0000000000000001"
RANGE = "committed/queue=q/range=0000000000000"
SEGMENT = f"journal/{name_of(0xFF, epoch=0xFF)}"
"""Of the newest journal."""

STATE = (
    *("committed/foreign", "committed/queue=x", "committed/queue=q/foreign", "committed/queue=q/.foreign"),
    *("committed/queue=q/.watermark", "committed/queue=q/range=0000000000009"),
    *(f"{RANGE}/foreign", f"{RANGE}/0000000000000009.{'a' * 32}", f"{RANGE}/.foreign"),
    *("active/foreign", f"active/{OTHER}.001", f"active/{IN_DOUBT}.009", "active/.replay"),
    *("prepared/foreign", f"prepared/{OTHER}.000", f"prepared/{OTHER}.001", f"prepared/{OTHER}.commit"),
    *(f"prepared/{IN_DOUBT}.001", "heuristic/foreign", f"heuristic/{OTHER}", "heuristic/.foreign"),
    *("batches/foreign", f"batches/{BATCH}", f"batches/.{BATCH}", "streams/foreign", "streams/queue=x"),
    *("streams/.queue=q", "archive/foreign", "archive/queue=q", "quarantine/foreign", "quarantine/foreign.reason"),
    *("journal/foreign", "journal/00000000000000ff.log", f"{SEGMENT}.new", f"{SEGMENT}.archive"),
    *("reserve/foreign", "reserve/1", "reserve/01", "foreign", "counters", "tries", "operators.log", ".FORMAT.new"),
    *(".queues.toml.new", "snapshots", "snapshots/1", "snapshots/.1", "snapshots/journal", "snapshots/foreign"),
    *("removed", "removed/foreign", ".restoring", "queues.toml.good", "scrubbed", "heartbeat", ".lock.new"),
)
"""Where anything may stand: the space is opened, and everything in it is there."""
SEGMENTS = (SEGMENT,)
"""What is damage: the space is opened for reading only."""
FIXED = (layout.FORMAT, layout.QUEUES)
"""What must be read before anything else: the error names it."""


def fifo(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # its address is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name[:100])
        if len(path.name) > 100:
            Path(path.name[:100]).rename(path.name)
    finally:
        os.chdir(here)


def device(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes devices")
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("no devices are made here")


def directory(path: Path) -> None:
    path.mkdir()


def full_directory(path: Path) -> None:
    path.mkdir()
    (path / "file").write_bytes(b"content")


def dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def looping_link(path: Path) -> None:
    path.symlink_to(path.name)


def endless_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_a_fifo(path: Path) -> None:
    aside = path.with_name(".aside.fifo")
    os.mkfifo(aside)
    path.symlink_to(aside.name)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        try:
            file.truncate(HUGE_BYTES)
        except OSError:
            pytest.skip("no sparse file of this size is made here")


def huge_with_a_head(path: Path) -> None:
    """Begins as a block, or whatever stood there, and does not end."""
    aside = path.parents[1] / "committed/queue=q/range=0000000000000"
    for message in aside.iterdir() if aside.is_dir() else ():
        path.write_bytes(message.read_bytes())
    with path.open("ab") as file:
        try:
            file.truncate(HUGE_BYTES)
        except OSError:
            pytest.skip("no sparse file of this size is made here")


KINDS: list[Callable[[Path], None]] = [
    *(fifo, bound_socket, device, directory, full_directory, dangling_link, looping_link, endless_link),
    *(link_to_a_fifo, huge, huge_with_a_head),
]


@contextmanager
def within_bounds(place: str) -> Iterator[None]:
    def hangs(*_: object) -> None:
        raise AssertionError(f"{place} is waited for")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def templates(memory: Path) -> dict[str, Path]:
    """A space as a close leaves it, and as a kill does: then its journal has records."""
    root, killed = memory / "closed", memory / "killed"
    opening.create(root)
    (root / layout.QUEUES).write_text("[default]\n[space]\njournal_segment_bytes = 65536\n")
    session = attach(root)
    with xaqueue.Connection(session, lambda: os.urandom(16)) as connection:
        for body in (b"1", b"2"):
            connection.enqueue("q", body)
        connection.commit()
        connection.tpc_begin(IN_DOUBT)
        connection.enqueue("q", b"3")
        connection.tpc_prepare()
        session.space.sync_all()
        shutil.copytree(root, killed)
    return {"closed": root, "killed": killed}


@pytest.fixture
def left() -> str:
    return "closed"


@pytest.fixture
def fresh(templates: dict[str, Path], memory: Path, left: str) -> Callable[[], Path]:
    def make() -> Path:
        root = memory / "s"
        if root.exists():
            shutil.rmtree(root)
        shutil.copytree(templates[left], root)
        return root

    return make


def plant(root: Path, place: str, kind: Callable[[Path], None]) -> Path:
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    kind(path)
    return path


def look(root: Path) -> None:
    """Everything that looks without owning: it answers, or says in an error of its own what is wrong."""

    def reader() -> QueueReader:
        return QueueReader(root, "q")

    for call in (
        lambda: list(check.check(root)),
        lambda: inspect.status(root),
        lambda: inspect_branches.in_doubt(root),
        lambda: find_loss(root),
        lambda: list(inspect.browse(root, "q", lambda *_: None)),
        lambda: reader().consumed(),
        lambda: list(reader().read(0, reader().watermark())),
        lambda: list(spans.files(reader(), 0, 1 << 40)),
        lambda: list(spans.sizes(reader(), 0, 1 << 40)),
        lambda: spans.last_before(reader(), 1 << 50, 1 << 40),
        lambda: reader().record(),
    ):
        with suppress(Error):
            call()


def use(root: Path) -> None:
    """Opens it, finds everything, and works in it."""
    with xaqueue.connect(root) as connection:
        assert [message.body for message in connection.browse("q")] == [b"1", b"2"]
        assert IN_DOUBT in connection.tpc_recover()
        connection.enqueue("q", b"4")
        connection.commit()
        connection.tpc_rollback(IN_DOUBT)
    look(root)
    assert IN_DOUBT not in [branch.xid for branch in inspect_branches.in_doubt(root)]
    with xaqueue.connect(root) as connection:
        assert [message.body for message in connection.browse("q")] == [b"1", b"2", b"4"]


@pytest.mark.parametrize("left", ["closed", "killed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_space_opens_whatever_stands_in_its_directories(
    fresh: Callable[[], Path], kind: Callable[[Path], None], left: str
) -> None:
    """In one place of three, by turns, but in full size in every place."""
    failures = {}
    turn = (KINDS.index(kind) + (left == "killed")) % 3
    for place in STATE if FULL else STATE[turn::3]:
        root = fresh()
        plant(root, place, kind)
        try:
            with within_bounds(place):
                look(root)
                use(root)
        except (Exception, MemoryError) as error:
            failures[place] = repr(error)
    assert not failures, "\n".join(f"{place}: {error}" for place, error in failures.items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", SEGMENTS)
def test_what_is_no_segment_of_the_journal_is_damage(
    fresh: Callable[[], Path], place: str, kind: Callable[[Path], None]
) -> None:
    root = fresh()
    plant(root, place, kind)
    with within_bounds(place):
        look(root)
        assert [found.path for found in check.check(root) if found.severity is Severity.DAMAGE]
        with xaqueue.connect(root) as connection:
            assert [message.body for message in connection.browse("q")] == [b"1", b"2"]
            with pytest.raises(xaqueue.ResourceFailed, match="open for reading only"):
                connection.enqueue("q", b"4")
        assert find_loss(root) is not None
        salvage(root)
        use(root)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", FIXED)
def test_an_error_names_what_must_be_read_first(
    fresh: Callable[[], Path], place: str, kind: Callable[[Path], None]
) -> None:
    root = fresh()
    path = plant(root, place, kind)
    (root / layout.GOOD_QUEUES).unlink()
    with within_bounds(place):
        look(root)
        with pytest.raises((xaqueue.SpaceError, xaqueue.InvalidArgument), match=place):
            xaqueue.connect(root)
        assert [found.path for found in check.check(root) if found.severity is Severity.DAMAGE] == [place]
        assert os.path.lexists(path)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_for_queues_toml_gives_way_to_its_good_copy(
    fresh: Callable[[], Path], kind: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    root = fresh()
    path = plant(root, layout.QUEUES, kind)
    with within_bounds(layout.QUEUES):
        use(root)
        assert "its last good copy holds" in caplog.text
        assert inspect.status(root).complaint.startswith("queues.toml cannot be read")
        assert [found.path for found in check.check(root) if found.severity is Severity.DAMAGE] == [layout.QUEUES]
    assert os.path.lexists(path)


@pytest.mark.parametrize("kind", KINDS)
def test_where_nobody_can_tell_what_came_back_no_past_is_taken_for_the_present(
    fresh: Callable[[], Path], kind: Callable[[Path], None]
) -> None:
    root = fresh()
    plant(root, RESTORED, kind)
    with within_bounds(RESTORED):
        look(root)
        with xaqueue.connect(root) as connection:
            assert {message.possible_duplicate for message in connection.browse("q")} == {True}
            assert connection.tpc_recover() == []
            with pytest.raises(Error, match="the file restored is damaged"):
                connection.tpc_rollback(IN_DOUBT)
    kept = (root / RESTORED).rename(root.parent / "kept")
    use(root)
    if kept.is_dir():
        shutil.rmtree(kept)
    else:
        kept.unlink()


@pytest.mark.parametrize("place", FIXED)
def test_a_file_that_people_write_may_be_a_link(fresh: Callable[[], Path], place: str) -> None:
    root = fresh()
    (root / place).rename(root.parent / "linked")
    (root / place).symlink_to("../linked")
    use(root)


@pytest.mark.parametrize("kind", KINDS)
def test_readers_name_what_stands_where_a_message_should_be(
    fresh: Callable[[], Path], kind: Callable[[Path], None]
) -> None:
    root = fresh()
    (message,) = (root / RANGE).glob("*2.*")
    plant(root, str(message.relative_to(root)), kind)
    with within_bounds("a message"):
        found = {seq: data for seq, _, data in QueueReader(root, "q").read(0, 2)}
        assert decode(found[1]).body == b"1"
        with pytest.raises(DamagedBlock):
            decode(found[2])
        (_, _, _, data, _) = next(spans.files(QueueReader(root, "q"), 1, 2))
        with pytest.raises(DamagedBlock):
            decode(data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_that_was_replaced_in_an_open_space_is_set_aside(
    fresh: Callable[[], Path], kind: Callable[[Path], None]
) -> None:
    root = fresh()
    with xaqueue.connect(root) as connection, within_bounds("a message"):
        (message,) = (root / RANGE).glob("*1.*")
        plant(root, str(message.relative_to(root)), kind)
        assert [found.body for found in connection.browse("q")] == [b"2"]
        found = connection.dequeue("q")
        assert found is not None
        assert found.body == b"2"
        connection.commit()
    assert [name for name in os.listdir(root / "quarantine") if not name.endswith(".reason")] != []  # noqa: PTH208


@pytest.mark.parametrize("left", ["killed"])
@pytest.mark.parametrize("lacking", [f"{RANGE}/*1.*", f"prepared/{IN_DOUBT}.*", RANGE, "committed/queue=q"])
@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_journal_has_is_made_where_something_else_stands(
    fresh: Callable[[], Path], kind: Callable[[Path], None], lacking: str, commits: bool
) -> None:
    root = fresh()
    (path,) = root.glob(lacking)
    plant(root, str(path.relative_to(root)), kind)
    with within_bounds(lacking):
        look(root)
        if not commits:
            use(root)
            return
        with xaqueue.connect(root) as connection:
            connection.tpc_commit(IN_DOUBT)
            assert [message.body for message in connection.browse("q")] == [b"1", b"2", b"3"]


def test_a_directory_where_a_message_was_taken_is_set_aside(tmp_path: Path) -> None:
    opening.create(tmp_path / "space")
    (tmp_path / "space" / layout.QUEUES).write_text("[default]\n")
    session = attach(tmp_path / "space")
    with xaqueue.Connection(session, lambda: os.urandom(16)) as connection:
        connection.enqueue("q", b"taken")
        connection.commit()
        session.space.sync_all()
        (message,) = (tmp_path / "space").glob(f"{RANGE}/*1.*")
        assert connection.dequeue("q") is not None
        connection.commit()
        session.space.sync_all()
        shutil.copytree(tmp_path / "space", tmp_path / "killed")
    full_directory(tmp_path / "killed" / message.relative_to(tmp_path / "space"))
    with xaqueue.connect(tmp_path / "killed") as connection:
        assert list(connection.browse("q")) == []
    assert list((tmp_path / "killed").glob("quarantine/foreign.*/file"))


TM_PLACES = ("NODE", "operators.log", ".NODE.new", "foreign", "journal/foreign", SEGMENT)


@pytest.mark.parametrize("kind", KINDS)
def test_a_decision_log_opens_or_says_what_stands_there(memory: Path, kind: Callable[[Path], None]) -> None:
    for place in TM_PLACES:
        root = memory / "log"
        open_log(root).close()
        plant(root, place, kind)
        with within_bounds(place):
            is_owned(root)
            with suppress(DecisionLogError):
                open_log(root).close()
        shutil.rmtree(root)
