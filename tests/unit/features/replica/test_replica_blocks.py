"""A replica has blocks of many messages as its source has them, and what was not shipped of them is told by message."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from support.block_space import MadeBlock, put_block, put_message
from xaqueue.core.model import layout
from xaqueue.core.model.block import split_block
from xaqueue.core.model.change import DROP, PUT, Change, CoreStep, Op, entry_of, is_valid
from xaqueue.core.model.message_block import decode_gone, encode_gone
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.journal_format import Record
from xaqueue.features.opening import create
from xaqueue.features.replica.journal_copy import JournalCopy
from xaqueue.features.replica.replicas import _Told
from xaqueue.features.streams.record import StreamRecord, stream_path
from xaqueue.features.streams.streams import encode_stream
from xaqueue.offline.inspect import browse

FIRST, COUNT = 10, 20


def record(lsn: int, ops: Sequence[Op], kind: CoreStep = CoreStep.COMMIT) -> Record:
    entry = entry_of(Change(kind, "1.6e.6f", ops))
    made = Record(lsn, entry.kind, entry.meta, memoryview(b"".join(entry.bodies)))
    assert is_valid(made)
    return made


def put(made: MadeBlock) -> Op:
    return (PUT, made.path, *split_block(made.file.read_bytes()), 1)


def take(made: MadeBlock, gone: int) -> Op:
    return (PUT, made.gone_path, *encode_gone(made.queue, made.named, gone, 1), 0)


def test_the_directories_follow(tmp_path: Path) -> None:
    source, replica = tmp_path / "source", tmp_path / "replica"
    for root in (source, replica):
        create(root)
    made = put_block(source, FIRST, COUNT)
    with closing(DirectoryFileSystem(replica, keep_unsynced=False)) as fs:
        copy = JournalCopy(fs, 0, 0)
        copy._follow([record(1, [put(made)]), record(2, [take(made, 0b1)]), record(3, [take(made, 0b101)])])
        numbers = [FIRST + 1, *range(FIRST + 3, FIRST + COUNT)]
        assert [message.seq for message in browse(replica, "orders", lambda *_: None)] == numbers
        mark = layout.parse_watermark(fs.read(layout.watermark_path("orders")))
        assert mark is not None
        assert mark.published == FIRST + COUNT - 1
        copy._follow([record(4, [(DROP, made.path), (DROP, made.gone_path)])])
    assert not (replica / made.path).exists()
    assert not (replica / made.gone_path).exists()


def test_what_a_stream_has_consumed_goes_whole(tmp_path: Path) -> None:
    replica = tmp_path / "replica"
    create(replica)
    put_message(replica, 1)
    consumed, cut = (put_block(replica, first, COUNT, gone=0b1) for first in (FIRST, FIRST + COUNT))
    with closing(DirectoryFileSystem(replica, keep_unsynced=False)) as fs:
        stream = encode_stream(StreamRecord("orders", "s", FIRST + COUNT + 3, since=1, archived_after=5), 1)
        JournalCopy(fs, 0, 0)._follow([record(1, [(PUT, stream_path("orders"), *stream, 0)])])
    left = replica / "archive" / consumed.path.removeprefix("committed/")
    assert left.exists()
    gone = replica / "archive" / consumed.gone_path.removeprefix("committed/")
    assert decode_gone(gone.read_bytes(), "orders", consumed.named) == 0b1
    assert not consumed.file.exists()
    assert not consumed.gone_file.exists()
    assert cut.file.exists()
    assert cut.gone_file.exists()
    found = browse(replica, "orders", lambda *_: None)
    assert [message.seq for message in found] == list(range(FIRST + COUNT + 4, FIRST + 2 * COUNT))


def test_what_was_not_shipped_is_told_by_message(tmp_path: Path) -> None:
    create(tmp_path / "space")
    new, old = (put_block(tmp_path / "space", first, 4) for first in (FIRST, FIRST + 4))
    records = [
        record(1, [put(new)]),
        record(2, [take(new, 0b10), take(old, 0b11)]),
        record(3, [take(new, 0b110), take(old, 0b111)]),
        record(4, [put(new)], CoreStep.HOLLOW),
        record(5, [(DROP, new.path), (DROP, new.gone_path)]),
    ]
    told = _Told()
    lines = [told.line(one) for one in records]
    of_queue = [
        ([seq for _, seq in line["added"]], sorted(seq for _, seq in line["taken"]))  # type: ignore[attr-defined]
        for line in lines
    ]
    assert of_queue == [
        ([10, 11, 12, 13], []),
        ([], [11, 14, 15]),
        ([], [12, 16]),
        ([], []),
        ([], [10, 13]),
    ]
    assert {line["queues"][0] for line in lines} == {"orders"}  # type: ignore[index]
