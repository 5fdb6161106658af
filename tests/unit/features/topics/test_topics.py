"""One message in several queues: a file with a name in each, and in each a message of its own."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.bare_space import BareSpace, bare_space
from support.journal_of import journal_of
from xaqueue.core.engine import journal_log, messages
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.model.layout import block_path
from xaqueue.errors import InvalidArgument, QueueFull, RolledBack, UnknownQueue
from xaqueue.offline.check import check
from xaqueue.offline.findings import WRONG, Severity
from xaqueue.offline.verify import verify
from xaqueue.xid import Xid

QUEUES = ("a", "b", "c")
WAY = Definitions(
    {
        "a": QueueDefinition(options={"topic": "t", "max_tries": 1, "failure_queue": "dead"}),
        "b": QueueDefinition(options={"topic": "t"}),
        "c": QueueDefinition(options={"topic": "t", "match": {"kind": "p*"}}),
        "paid": QueueDefinition(options={"topic": "t", "match": {"kind": "paid", "from": "*"}}),
        "other": QueueDefinition(),
        "dead": QueueDefinition(),
    },
    tables={"topics": {"t": {}, "empty": {}}},
)


@pytest.fixture(params=["NONE", "FDATASYNC;DSYNC", "JOURNAL"])
def bare(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BareSpace]:
    with bare_space(tmp_path, request.param, definitions=WAY) as made:
        yield made


def settled(bare: BareSpace) -> None:
    bare.space.settle()


def inodes(root: Path, directory: str) -> list[int]:
    """Of the blocks below it."""
    places = {path.parent for path in (root / directory).rglob("*") if path.is_file()}
    found = (path for place in places if not place.name.startswith((".", "queue=")) for path in place.iterdir())
    return [path.stat().st_ino for path in found]


def publish(bare: BareSpace, body: bytes = b"news" * 100, **options: Any) -> None:
    with bare.connect() as connection:
        connection.publish("t", body, **options)


def test_it_is_one_file_and_a_message_of_each_queue(bare: BareSpace) -> None:
    publish(bare, headers={"kind": "post"})
    settled(bare)
    assert len(inodes(bare.root, "committed")) == 3
    assert len(set(inodes(bare.root, "committed"))) == 1
    bare.reopen()
    with bare.connect() as connection:
        found = [connection.dequeue(queue) for queue in QUEUES]
        assert [one and (one.queue, one.properties.queue, one.body) for one in found] == [
            (queue, queue, b"news" * 100) for queue in QUEUES
        ]
        assert len({one.message_id for one in found if one}) == 1
    settled(bare)
    assert inodes(bare.root, "committed") == []


def test_who_subscribes_says_which_headers_it_wants(bare: BareSpace) -> None:
    publish(bare, b"1")
    publish(bare, b"2", headers={"kind": "paid"})
    publish(bare, b"3", headers={"kind": "paid", "from": "eu"})
    publish(bare, b"4", headers={"kind": "opened"})
    assert [bare.take(queue) for queue in ("a", "c", "paid")] == [[b"1", b"2", b"3", b"4"], [b"2", b"3"], [b"3"]]


def test_what_nobody_wants_is_gone_and_checked_all_the_same(bare: BareSpace) -> None:
    with bare.connect() as connection:
        assert len(connection.publish("empty", b"x")) == 16
        with pytest.raises(UnknownQueue, match="did you mean 'empty'"):
            connection.publish("emty", b"x")
        with pytest.raises(InvalidArgument, match="priority"):
            connection.publish("empty", b"x", priority=11)
    settled(bare)
    assert inodes(bare.root, "committed") == []


def test_several_queues_may_be_named(bare: BareSpace) -> None:
    with bare.connect() as connection:
        connection.enqueue_to(["other", "a"], b"x" * 100)
        connection.enqueue_to(["other"], b"y")
        with pytest.raises(InvalidArgument, match="one is named twice"):
            connection.enqueue_to(["a", "a"], b"x")
        with pytest.raises(UnknownQueue):
            connection.enqueue_to(["a", "nowhere"], b"x")
    assert (bare.take("other"), bare.take("a")) == ([b"x" * 100, b"y"], [b"x" * 100])


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_prepared_branch_has_one_file_too_and_is_found_again(bare: BareSpace, end: str) -> None:
    xid = Xid(1, b"g", b"b")
    with bare.connect() as connection:
        connection.tpc_begin(xid)
        connection.publish("t", b"news" * 100)
        assert connection.tpc_prepare()
    settled(bare)
    assert len(inodes(bare.root, "prepared")) == 3
    assert len(set(inodes(bare.root, "prepared"))) == 2, "the branch block is another one"
    bare.reopen()
    with bare.connect() as connection:
        getattr(connection, f"tpc_{end}")(xid)
    assert [bare.take(queue) for queue in ("a", "b")] == [[b"news" * 100] * (end == "commit")] * 2
    settled(bare)
    assert inodes(bare.root, "prepared") == []
    assert len(set(inodes(bare.root, "committed"))) == (end == "commit")
    bare.crash()
    assert [one for one in verify([str(bare.root)], 1)[0].first if one.severity in WRONG] == []
    assert [one for one in check(bare.root) if one.severity is not Severity.LEFTOVER] == []
    bare.reopen()


def test_each_subscriber_retries_by_itself(bare: BareSpace) -> None:
    publish(bare)
    with bare.connect() as connection:
        assert connection.dequeue("a") is not None
        connection.rollback()
        (failed,) = connection.browse("a")
        (other,) = connection.browse("b")
        assert (failed.tries, other.tries) == (1, 0)
        assert connection.move("b", other.message_id, "other")
    with bare.connect() as connection:
        (moved,) = connection.browse("other")
        assert (moved.queue, moved.origin and moved.origin.queue) == ("other", "b")
        assert connection.requeue("other", moved.message_id)
    assert bare.take("b") == [moved.body]


def test_where_one_of_the_queues_is_full_none_gets_it(bare: BareSpace) -> None:
    bare.space.redefine(
        replace(WAY, queues={**WAY.queues, "b": QueueDefinition(options={"topic": "t", "max_messages": 1})})
    )
    with bare.connect() as connection:
        connection.publish("t", b"1")
        with pytest.raises(QueueFull, match="queue b is full"):
            connection.publish("t", b"2")
        connection.enqueue("a", b"3")
    assert (bare.take("a"), bare.take("b")) == ([b"1", b"3"], [b"1"])


def test_where_links_end_it_is_copied(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: str, target: str) -> None:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK), target)

    monkeypatch.setattr(bare.fs, "link", refused)
    publish(bare)
    settled(bare)
    assert len(set(inodes(bare.root, "committed"))) == 2
    assert [bare.take(queue) for queue in ("a", "b")] == [[b"news" * 100]] * 2


def test_one_that_is_interrupted_is_not_committed_in_part(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    add = messages.add

    def interrupted(*arguments: Any, **options: Any) -> object:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return add(*arguments, **options)

    with bare.connect() as connection:
        with monkeypatch.context() as patch:
            patch.setattr(messages, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                connection.publish("t", b"x")
        with pytest.raises(RolledBack, match="1 of 2 messages were added"):
            connection.commit()
        connection.rollback()
    assert bare.take("a") == []
    settled(bare)
    assert os.listdir(bare.root / "active") == []  # noqa: PTH208


def test_with_a_journal_its_record_has_the_body_once(tmp_path: Path) -> None:
    with bare_space(tmp_path, "JOURNAL", definitions=WAY) as made:
        before = journal_of(made.space).journal.position
        publish(made, bytes(10_000))
        assert journal_of(made.space).journal.position - before < 12_000


def test_blocks_that_go_to_active_are_one_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_log, "KEPT_BYTES", 500)
    with bare_space(tmp_path, "JOURNAL", definitions=WAY) as made, made.connect() as connection:
        connection.publish("t", bytes(10_000))
        (inode,) = set(inodes(tmp_path, "active"))
        connection.commit()
        made.space.settle()
        assert inodes(tmp_path, "committed") == [inode, inode]


def test_those_for_which_memory_has_no_place_are_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_log, "KEPT_BYTES", 4000)
    with bare_space(tmp_path, "JOURNAL") as made, made.connect() as connection:
        connection.enqueue_to([f"q{number}" for number in range(9)], bytes(500))
        assert len(set(inodes(tmp_path, "active"))) == 1
        connection.commit()
        made.space.settle()
        assert len(inodes(tmp_path, "committed")) == 9
        assert len(set(inodes(tmp_path, "committed"))) == 1


def test_without_the_list_of_its_branch_nobody_knows_whose_it_was(tmp_path: Path) -> None:
    xid = Xid(1, b"g", b"b")
    with bare_space(tmp_path, "NONE", definitions=WAY) as made:
        with made.connect() as connection:
            connection.tpc_begin(xid)
            connection.publish("t", b"x")
            assert connection.tpc_prepare()
        (tmp_path / block_path("prepared", str(xid), "000")).write_bytes(b"garbled")
        made.reopen()
        assert made.in_doubt() == [xid]
        assert any("names no queue" in line for line in made.space.report.quarantined)
        with made.connect() as connection:
            connection.tpc_rollback(xid)
        assert made.take("a") == []


@pytest.mark.parametrize(
    ("level", "size_bytes"), [("FDATASYNC;DSYNC", 300_000), ("JOURNAL", 300_000), ("JOURNAL", 8_300_000)]
)
def test_a_hundred_subscriptions_cost_one_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, size_bytes: int
) -> None:
    """All bytes that go to files, and to the journal. The larger one has no place in memory with what is of each."""
    written: Counter[str] = Counter()
    definitions = Definitions(
        {f"q{number}": QueueDefinition(options={"topic": "t"}) for number in range(100)}, tables={"topics": {"t": {}}}
    )
    with bare_space(tmp_path, level, definitions=definitions) as made:
        create, write_at = made.fs.create, made.fs.write_at

        def counted_create(path: str, chunks: Sequence[bytes], modified_ns: int = 0) -> None:
            create(path, chunks, modified_ns)  # which fails where the directory is missing yet
            written[path.partition("/")[0]] += sum(map(len, chunks))

        def counted_write(path: str, offset: int, chunks: Sequence[bytes]) -> None:
            write_at(path, offset, chunks)
            written[path.partition("/")[0]] += sum(map(len, chunks))

        monkeypatch.setattr(made.fs, "create", counted_create)
        monkeypatch.setattr(made.fs, "write_at", counted_write)
        publish(made, bytes(size_bytes))
        settled(made)
        found = inodes(made.root, "committed")
    assert (len(found), len(set(found))) == (100, 1)
    journal_bytes = written.pop("journal", 0)
    assert size_bytes < sum(written.values()) < 1.1 * size_bytes
    assert (journal_bytes > size_bytes) is (level == "JOURNAL" and size_bytes < 8_300_000)
    assert journal_bytes < 1.1 * size_bytes
