"""What changes of a message stands beside it: its file stays as it was committed, and its tries go with it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.bare_space import DURABLE, BareSpace, bare_space
from xaqueue.core.model import layout
from xaqueue.core.model.entry import Retry
from xaqueue.core.model.message_name import PLAIN_NAME
from xaqueue.core.model.records import decode_retry
from xaqueue.core.storage.journal import Journal
from xaqueue.errors import DamagedBlock
from xaqueue.features.retries.tries import encode_retry
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.message import MessageId
from xaqueue.offline.check import check
from xaqueue.offline.findings import Finding, Severity
from xaqueue.offline.inspect import browse

pytestmark = pytest.mark.usefixtures("quiet")

IDENTITY = MessageId(bytes(range(16)))
NOON_US = 1_800_000_000_000_000
LEVELS = ["NONE", DURABLE, "JOURNAL"]


TIMES = st.integers(0, 2**63 - 1)


@given(
    st.builds(Retry, TIMES, st.none() | TIMES, TIMES, TIMES, st.sampled_from(["rolled back", "session lost", ""])),
    st.integers(0, 2**64 - 1),
)
def test_a_record_is_read_as_it_was_written(retry: Retry, epoch: int) -> None:
    data = encode_retry("q" * 127, IDENTITY, retry, epoch)
    assert decode_retry(data, "q" * 127, IDENTITY) == retry
    path = layout.retry_path("q" * 127, 2**63 - 1, IDENTITY)
    assert len(data) + len(path) < 512  # a block of most disks


@given(st.data())
def test_no_changed_byte_and_no_part_is_a_record(data: st.DataObject) -> None:
    whole = encode_retry("q", IDENTITY, Retry(3), 1)
    place = data.draw(st.integers(0, len(whole) - 1))
    torn = bytearray(whole)
    torn[place] ^= data.draw(st.integers(1, 255))
    for wrong in (bytes(torn), whole[:place]):
        with pytest.raises(DamagedBlock):
            decode_retry(wrong, "q", IDENTITY)


def test_the_record_of_another_message_is_none() -> None:
    data = encode_retry("q", IDENTITY, Retry(3), 1)
    for queue, message_id in (("r", IDENTITY), ("q", MessageId(bytes(16)))):
        with pytest.raises(DamagedBlock, match="not the record of tries"):
            decode_retry(data, queue, message_id)


@pytest.fixture(params=LEVELS)
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BareSpace]:
    """Messages one and two, each of which was given back once."""
    with bare_space(tmp_path, request.param, now_us=lambda: NOON_US) as made:
        made.put("q", b"one", b"two")
        flushed(made)
        assert made.take("q") == [b"one", b"two"]
        flushed(made)
        yield made


def flushed(bare: BareSpace) -> None:
    bare.space.log.settle()


def records(bare: BareSpace) -> list[Path]:
    return sorted((bare.root / layout.retries_path("q")).iterdir())


def tries_of(bare: BareSpace) -> list[int]:
    return [entry.tries for entry in bare.space.queue("q").index.entries(0)]


def findings(bare: BareSpace) -> list[Finding]:
    return [finding for finding in check(bare.root) if ".retries" in finding.path]


def consume(bare: BareSpace, body: bytes) -> None:
    with bare.connect() as connection:
        message = connection.dequeue("q")
        assert message is not None
        assert message.body == body
        connection.commit()


def test_a_try_leaves_the_file_of_its_message_as_it_was(bare: BareSpace) -> None:
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in bare.messages("q")}
    assert bare.take("q") == [b"one", b"two"]
    flushed(bare)
    after = {path: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in bare.messages("q")}
    assert after == before
    assert [path.name for path in records(bare)] == [path.name[:PLAIN_NAME] for path in before]
    assert tries_of(bare) == [2, 2]


def test_tries_are_known_to_everybody(bare: BareSpace) -> None:
    with bare.connect() as connection:
        assert [message.tries for message in connection.browse("q")] == [1, 1]
        message = connection.dequeue("q")
        assert message is not None
        assert message.tries == 1
        connection.rollback()
    bare.crash()
    assert [message.tries for message in browse(bare.root, "q", lambda seq, why: None)] == [2, 1]
    bare.reopen()
    assert tries_of(bare) == [2, 1]
    assert findings(bare) == []


def test_tries_go_with_their_message(bare: BareSpace) -> None:
    consume(bare, b"one")
    flushed(bare)
    assert [path.name for path in records(bare)] == [path.name for path in bare.messages("q")]
    bare.reopen()
    assert tries_of(bare) == [1]
    assert findings(bare) == []


def test_tries_go_with_a_message_that_expires(bare: BareSpace) -> None:
    with bare.connect() as connection:
        connection.enqueue("q", b"short", expires_at=NOON_US + 1)
        connection.commit()
    assert bare.take("q") == [b"one", b"two", b"short"]
    flushed(bare)
    assert len(records(bare)) == 3
    bare.now_us = lambda: NOON_US + 1
    bare.reopen()
    cleanup.expire(bare.space)
    flushed(bare)
    assert [path.name for path in records(bare)] == [path.name for path in bare.messages("q")]


def test_tries_go_with_what_a_stream_consumes(bare: BareSpace) -> None:
    session = Session(bare.space)
    session.reserve("q", "stream", 0, 1)
    session.consume("q", "stream", 1)
    cleanup.clear(bare.space)
    flushed(bare)
    assert [path.name for path in records(bare)] == [path.name for path in bare.messages("q")]
    assert tries_of(bare) == [1]


def test_tries_go_with_a_message_that_is_set_aside(bare: BareSpace) -> None:
    bare.space.checkpoint()
    bare.reopen()  # so that it is read from its file
    bare.message_file("q", b"one").write_bytes(b"torn")
    assert bare.take("q") == [b"two"]
    flushed(bare)
    assert [path.name for path in records(bare)] == [path.name for path in bare.messages("q")]


def test_what_is_left_of_messages_that_are_gone_goes_with_the_next_open(bare: BareSpace) -> None:
    bare.crash()
    left = bare.root / layout.retry_path("q", 9, IDENTITY)
    left.write_bytes(encode_retry("q", IDENTITY, Retry(3), 1))
    (finding,) = findings(bare)
    assert (finding.severity, finding.path.rpartition("/")[2]) == (Severity.LEFTOVER, left.name)
    bare.reopen()
    assert not left.exists()
    assert tries_of(bare) == [1, 1]


@pytest.mark.parametrize("wrong", [b"", b"torn", encode_retry("q", IDENTITY, Retry(3), 1)])
def test_a_damaged_record_is_set_aside_and_its_message_stays(bare: BareSpace, wrong: bytes) -> None:
    bare.space.checkpoint()  # or the journal would make it anew
    first = records(bare)[0]
    first.write_bytes(wrong)
    (damage,) = findings(bare)
    assert (damage.severity, damage.path.rpartition("/")[2]) == (Severity.DAMAGE, first.name)
    bare.reopen()
    assert tries_of(bare) == [1 if bare.sync == "JOURNAL" else 0, 1], "the register knows of the last try"
    assert [path.name for path in bare.quarantined()] == [f"q..retries.{first.name}"]
    (tries, _) = tries_of(bare)
    assert bare.take("q") == [b"one", b"two"]
    assert tries_of(bare) == [tries + 1, 2]


def test_what_is_foreign_there_is_set_aside(bare: BareSpace) -> None:
    bare.space.checkpoint()
    directory = bare.root / layout.retries_path("q")
    (directory / "notes").write_text("x")
    (directory / ".hidden").write_text("x")
    (directory / f"{records(bare)[-1].name}.p7").write_text("x")
    bare.reopen()
    assert len(bare.quarantined()) == 2
    assert (directory / ".hidden").exists()
    assert tries_of(bare) == [1, 1]


def test_a_file_in_the_place_of_the_directory_costs_tries_and_no_more(bare: BareSpace) -> None:
    bare.space.checkpoint()
    directory = bare.root / layout.retries_path("q")
    for path in records(bare):
        path.unlink()
    directory.rmdir()
    directory.write_text("x")
    bare.reopen()
    assert len(bare.quarantined()) == 1
    before = tries_of(bare)
    assert bare.take("q") == [b"one", b"two"]
    assert tries_of(bare) == [tries + 1 for tries in before]


@pytest.mark.parametrize("call", ["create", "rename", "make_dir"])
def test_without_room_a_try_is_not_counted_and_the_message_is_back(bare: BareSpace, call: str) -> None:
    bare.put("r", b"three")
    flushed(bare)
    place = layout.ACTIVE if call == "create" else layout.retries_path("r")
    bare.fs.faults = {(call, place): errno.ENOSPC}
    assert bare.take("r") == [b"three"]
    bare.fs.faults.clear()
    assert bare.take("r") == [b"three"]
    bare.reopen()
    assert bare.take("r") == [b"three"]


def test_a_journal_without_room_for_tries_stops_no_rollback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bare_space(tmp_path, "JOURNAL") as made:
        made.put("q", b"one")
        with made.connect() as connection:
            assert connection.dequeue("q") is not None
            with monkeypatch.context() as full:
                full.setattr(Journal, "write", _no_room)
                connection.rollback()
        assert tries_of(made) == [1]
        made.reopen()
        assert tries_of(made) == [1]


def _no_room(*_: object) -> int:
    raise OSError(errno.ENOSPC, "no room")
