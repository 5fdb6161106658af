"""What an index shows as plain facts, and spaces whose crashes the images of their indexes must survive."""

from __future__ import annotations

from unittest import mock

from hypothesis import strategies as st

from support.crash_level import NOON_US, Level
from xaqueue.message import MessageId, Properties
from xaqueue.space.engine import image
from xaqueue.space.engine.session import Session
from xaqueue.space.engine.state import Space
from xaqueue.space.model.definitions import Definitions, QueueDefinition
from xaqueue.space.model.index import Entry, QueueIndex
from xaqueue.space.model.layout import RANGE_SIZE
from xaqueue.storage import journal
from xaqueue.storage.fs import DirectoryFileSystem
from xaqueue.tools.torture.forgetful import ForgetfulFileSystem, Tree
from xaqueue.xa import Flag
from xaqueue.xid import Xid

EPOCH = 7
Facts = tuple[int, bytes, bytes | None, int, int | None, int | None, int, int]


def facts(entry: Entry) -> Facts:
    rest = entry.correlation_id, entry.priority, entry.not_before, entry.expires_at
    return (entry.seq, entry.message_id, *rest, entry.tries, entry.size_bytes)


def all_of(index: QueueIndex) -> list[Facts]:
    return sorted((facts(entry) for entry in index.entries(-1)), key=lambda one: one[0])


def identity(number: int) -> MessageId:
    return MessageId(number.to_bytes(16, "big"))


def plain(seq: int) -> Entry:
    return Entry(seq, identity(seq), Properties("q"), 100 + seq)


def written(fs: DirectoryFileSystem, index: QueueIndex) -> image.Image:
    """The index's image after it was on disk."""
    image.write(fs, "q", index, EPOCH)
    found = image.read(fs, "q")
    assert found is not None
    return found


def opened(fs: ForgetfulFileSystem, epoch: int, level: Level) -> Space:
    definitions = Definitions(default=QueueDefinition(), journal_segment_bytes=level.segment_bytes)
    with mock.patch.object(journal, "SMALLEST_SEGMENT_BYTES", 1024):
        return Space(fs, definitions, hardening=level.hardening, epoch=epoch, now_us=lambda: NOON_US)


def put_in(session: Session, *numbers: int) -> None:
    for number in numbers:
        xid = Xid(1, b"put%d" % number, b"")
        session.start(xid)
        session.enqueue("q", b"%d" % number, message_id=identity(number))
        session.end(xid)
        session.commit(xid, Flag.ONEPHASE)


def take_from(session: Session, *, commit: bool) -> None:
    xid = Xid(1, b"take%d" % commit, b"")
    session.start(xid)
    assert session.dequeue("q") is not None
    session.end(xid)
    if commit:
        session.commit(xid, Flag.ONEPHASE)
    else:
        session.rollback(xid)


def seen(tree: Tree, epoch: int, level: Level) -> tuple[list[Facts], int]:
    """What a space shows that is opened on this, and how many files it set aside."""
    owner = opened(tree.open(), epoch, level)
    queue = owner.queues.get("q")
    return all_of(queue.index) if queue is not None else [], len(owner.report.quarantined)


entries = st.builds(
    lambda seq, size, properties: Entry(seq, identity(seq), properties, size),
    st.integers(1, 3 * RANGE_SIZE) | st.integers(2**62, 2**63 - 1),
    st.integers(52, 2**40),
    st.builds(
        Properties,
        st.just("q"),
        correlation_id=st.none() | st.binary(max_size=20),
        priority=st.just(4) | st.integers(0, 9),
        not_before=st.none() | st.integers(0, 2**63 - 1),
        expires_at=st.none() | st.integers(0, 2**63 - 1),
        tries=st.just(0) | st.integers(0, 1000),
    ),
)
