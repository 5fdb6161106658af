"""A queue of a space with a journal may have a level of its own: who works with such queues only waits for no sync."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from support.bare_space import BareSpace, bare_space
from support.batch_story import xid as batch_xid
from support.journal_of import journal_log
from xaqueue.core.engine.log import HELD_BYTES
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.owner import definitions_file
from xaqueue.core.owner import open as opening
from xaqueue.core.storage.hardening import NOTHING
from xaqueue.errors import InvalidArgument
from xaqueue.features.defining import queues_file
from xaqueue.features.opening import create
from xaqueue.features.session import Session, attach
from xaqueue.offline.reader import QueueReader
from xaqueue.xa import Flag
from xaqueue.xid import Xid

FAST = Definitions({"fast": QueueDefinition(sync=NOTHING), "faster": QueueDefinition(sync=NOTHING)}, QueueDefinition())
SYNCS = {(call, ""): errno.EIO for call in ("sync_file", "sync_data", "sync_dir", "sync_all")}


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path, "JOURNAL", definitions=FAST) as made:
        yield made


def work(bare: BareSpace, ends: str, *queues: str, body: bytes = b"x", xid: Xid | None = None) -> None:
    """A branch that adds to each of these queues."""
    session, xid = Session(bare.space), xid or Xid(1, ends.encode(), b"")
    session.start(xid)
    for queue in queues:
        session.enqueue(queue, body)
    session.end(xid)
    if ends == "one phase":
        session.commit(xid, Flag.ONEPHASE)
        return
    faults, bare.fs.faults = bare.fs.faults, {}
    session.prepare(xid)
    bare.fs.faults = faults
    if ends != "prepare":
        getattr(session, ends)(xid)


@pytest.mark.parametrize("ends", ["one phase", "commit", "rollback"])
def test_a_transaction_of_such_queues_makes_no_sync_and_is_seen_at_once(bare: BareSpace, ends: str) -> None:
    """But for its prepare."""
    bare.fs.faults = dict(SYNCS)
    work(bare, ends, "fast", "faster")
    with bare.connect() as connection:
        found = connection.dequeue("fast")
        assert (found is None) == (ends == "rollback")
        connection.commit()
    assert bare.fs.struck == []
    assert bare.space.failure is None
    bare.fs.faults = {}
    bare.space.log.harden_late()
    bare.reopen()
    assert bare.take("fast") == []
    assert bare.take("faster") == ([] if ends == "rollback" else [b"x"])


def test_a_delivery_that_fails_is_counted_without_a_sync(bare: BareSpace) -> None:
    bare.put("fast", b"poison")
    bare.fs.faults = dict(SYNCS)
    with bare.connect() as connection:
        assert connection.dequeue("fast") is not None
        connection.rollback()
        (message,) = connection.browse("fast")
    assert (message.tries, bare.fs.struck) == (1, [])


@pytest.mark.parametrize("queues", [("fast", "strict"), ("strict",)])
@pytest.mark.parametrize(("ends", "steps"), [("one phase", 1), ("commit", 2), ("rollback", 2)])
def test_a_step_has_the_strictest_of_its_queues(
    bare: BareSpace, queues: tuple[str, ...], ends: str, steps: int
) -> None:
    work(bare, "one phase", "fast")
    journal = journal_log(bare.space)
    assert journal is not None
    before = journal.journal.syncs
    work(bare, ends, *queues)
    assert journal.journal.syncs == before + steps
    assert not journal.deferred, "what came before is hardened with it"


@pytest.mark.parametrize("why", ["large", "batch", "prepare"])
def test_what_is_too_much_and_what_others_rely_on_waits(bare: BareSpace, why: str) -> None:
    journal = journal_log(bare.space)
    assert journal is not None
    before = journal.journal.syncs
    if why == "large":
        work(bare, "one phase", "fast", body=bytes(HELD_BYTES))
    else:
        work(bare, "prepare", "fast", xid=batch_xid(b"1") if why == "batch" else None)
    assert journal.journal.syncs == before + 1


def test_readers_see_it_once_it_is_hardened_and_a_clean_close_keeps_it(bare: BareSpace) -> None:
    bare.put("fast", b"1")
    bare.space.settle()
    reader = QueueReader(bare.root, "fast")
    assert reader.watermark() == 1
    work(bare, "one phase", "fast", body=b"2")
    assert (bare.space.queues["fast"].shown, bare.space.queues["fast"].published) == (2, 1)
    bare.space.close()
    assert reader.watermark() == 2
    bare.space = bare._open()
    assert bare.take("fast") == [b"1", b"2"]


@pytest.mark.parametrize("ends", ["prepare", "commit"])
def test_a_crash_may_take_the_last_ones_and_nothing_that_was_prepared(bare: BareSpace, ends: str) -> None:
    """Of a level that waits for nothing. What need not persist at all is EMS-21's, in test_volatile."""
    bare.put("strict", b"kept")
    work(bare, ends, "fast", body=b"2")
    work(bare, "one phase", "fast", body=b"3")
    bare.reopen()
    (xid,) = bare.in_doubt()
    with bare.connect() as connection:
        connection.tpc_commit(xid)
    assert (bare.take("fast"), bare.take("strict")) == ([b"2"], [b"kept"])


@pytest.mark.parametrize(
    ("level", "sync", "complaint"),
    [
        ("JOURNAL", "FSYNC", r"\[queues.a\] sync = 'FSYNC': in a space with JOURNAL JOURNAL or NONE is wanted"),
        ("FDATASYNC;DSYNC", "NONE", r"\[queues.a\] sync = 'NONE': in a space with FDATASYNC;DSYNC queues have no"),
        ("NONE", "JOURNAL", r"\[queues.a\] sync = 'JOURNAL': in a space with NONE"),
        ("JOURNAL", "JOURNAL", ""),
        ("JOURNAL", "NONE", ""),
        ("FSYNC", "FSYNC", ""),
    ],
)
@pytest.mark.usefixtures("quiet")
def test_what_the_space_does_not_have_is_refused(
    tmp_path: Path, level: str, sync: str, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By ``define``, by an edit of the file, and by the next open, where no copy of what was taken is left."""
    root = tmp_path / "s"
    create(root, sync=level)
    session = attach(root)
    before = (root / "queues.toml").read_text()
    try:
        with refused(complaint):
            session.define("a", {"sync": sync})
        if complaint:
            assert (root / "queues.toml").read_text() == before
            definitions_file.write_definitions(root, f'{before}[queues.a]\nsync = "{sync}"\n')
            watch = opening._attached[root.resolve()].watch
            assert watch is not None
            watch.reload()
            assert "sync = " in watch.complaint
    finally:
        session.close()
    with refused(complaint):
        queues_file.define(root, "b", {"order": "lifo"})
    attach(root).close()
    (root / layout.GOOD_QUEUES).unlink()
    with refused(complaint):
        attach(root).close()


def refused(complaint: str) -> AbstractContextManager[object]:
    return pytest.raises(InvalidArgument, match=complaint) if complaint else nullcontext()
