"""What check says of blocks of many messages, and of what is gone of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import xaqueue
from support.block_space import MadeBlock, body_of, id_of, put_block, put_message
from support.harms import blocks
from xaqueue.core.model import layout
from xaqueue.core.model.message_block import decode_gone, decode_table, encode
from xaqueue.features.opening import create
from xaqueue.message import MessageId
from xaqueue.offline.check import check, repair
from xaqueue.offline.findings import Finding, Severity
from xaqueue.offline.inspect import browse
from xaqueue.offline.verify import verify

FIRST, COUNT = 10, 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Numbers 1 and 30, and room for a block between them."""
    root = tmp_path / "space"
    create(root)
    put_message(root, 1)
    put_message(root, 30)
    return root


def block(root: Path, gone: int = 0) -> MadeBlock:
    return put_block(root, FIRST, COUNT, gone=gone)


def wrong(root: Path) -> list[Finding]:
    """The same of a check and of a verification."""
    found = [finding for finding in check(root) if finding.severity is not Severity.NOTE]
    _, verified = verify([str(root)], 1)
    assert sorted(one._replace(space="") for one in verified if one.severity is not Severity.NOTE) == sorted(found)
    return found


def numbers(root: Path) -> list[int]:
    return [message.seq for message in browse(root, "orders", lambda *_: None)]


def own_path(made: MadeBlock, seq: int) -> str:
    """Of a message, had it a file of its own."""
    return layout.message_path(made.queue, seq, id_of(seq))


@pytest.mark.parametrize("gone", [0, 0b1, 0b1010, (1 << COUNT - 1) - 1])
def test_a_whole_one_is_clean(root: Path, gone: int) -> None:
    made = block(root, gone)
    assert wrong(root) == []
    if gone:
        made.hollow(gone)
        assert wrong(root) == []


def test_messages_with_tags_are_clean(root: Path) -> None:
    put_block(root, FIRST, COUNT, options={2: {"priority": 9, "correlation_id": b"c"}, 5: {"expires_at": 1 << 50}})
    assert wrong(root) == []


def test_a_damaged_body_is_that_of_one_message(root: Path) -> None:
    made = block(root)
    made.harm_body(3)
    (finding,) = wrong(root)
    assert (finding.path, finding.block, finding.movable) == (own_path(made, FIRST + 3), made.path, True)
    assert finding.problem == f"checksum does not match: in {made.path}"


def test_of_what_is_gone_the_body_does_not_matter(root: Path) -> None:
    block(root, gone=0b1000).harm_body(3)
    assert wrong(root) == []


@pytest.mark.parametrize("harm", [MadeBlock.harm_table, MadeBlock.harm_copy, lambda made: made.flip(-2)])
def test_one_damaged_table_is_told_and_the_messages_are_whole(root: Path, harm: Callable[[MadeBlock], None]) -> None:
    made = block(root, gone=0b1)
    harm(made)
    (finding,) = wrong(root)
    assert (finding.path, finding.block, finding.movable) == (made.path, made.path, False)
    assert finding.problem == "damaged outside of its bodies: one of its tables holds"


def test_two_damaged_tables_are_a_damaged_file(root: Path) -> None:
    made = block(root)
    made.harm_table()
    made.harm_copy()
    (finding,) = wrong(root)
    assert (finding.path, finding.block, finding.movable) == (made.path, "", True)


def test_a_damaged_bitmap_is_told(root: Path) -> None:
    made = block(root, gone=0b1)
    made.harm_gone()
    (finding,) = wrong(root)
    assert (finding.path, finding.movable) == (made.gone_path, True)
    assert "all of that is back" in finding.problem


def test_a_bitmap_of_another_block_is_damaged(root: Path) -> None:
    made = block(root, gone=0b1)
    other = put_block(root, 40, COUNT, gone=0b10)
    other.gone_file.write_bytes(made.gone_file.read_bytes())
    assert [finding.path for finding in wrong(root)] == [other.gone_path]


def test_a_bitmap_without_its_block_is_left_by_a_crash(root: Path) -> None:
    made = block(root, gone=0b1)
    made.file.unlink()
    (finding,) = wrong(root)
    assert (finding.severity, finding.path) == (Severity.LEFTOVER, made.gone_path)


def test_what_is_no_bitmap_is_told(root: Path) -> None:
    strange = block(root, gone=0b1).gone_file.with_name("strange")
    strange.write_bytes(b"strange")
    (finding,) = wrong(root)
    assert (finding.path, finding.movable) == (str(strange.relative_to(root)), True)


def test_a_file_whose_number_is_in_a_block_is_told(root: Path) -> None:
    block(root)
    second = put_message(root, FIRST + 4)
    (finding,) = wrong(root)
    assert (root / finding.path, finding.movable) == (second, True)


def test_an_id_that_is_there_twice_is_that_of_one_message(root: Path) -> None:
    made = put_block(root, FIRST, COUNT, ids=[MessageId(bytes([9]) * 16), id_of(1), *map(id_of, range(12, 30))])
    (finding,) = wrong(root)
    assert "stands in its queue twice" in finding.problem
    assert finding.path == layout.message_path("orders", FIRST + 1, id_of(1))
    assert finding.block in (made.path, "")  # a verification sees ids alone


def test_ids_of_two_queues_are_a_note(root: Path) -> None:
    block(root)
    put_block(root, FIRST, COUNT, queue="replies")
    notes = [finding for finding in check(root) if finding.severity is Severity.NOTE]
    assert len(notes) == COUNT
    assert all("has the message id of" in finding.problem for finding in notes)


@pytest.mark.parametrize("name", ["000000000000000a+001.{}", "000000000000000a+014.{}x", "0000000000000fff+014.{}"])
def test_what_is_no_name_of_a_block_is_foreign(root: Path, name: str) -> None:
    made = block(root)
    made.file.rename(made.file.with_name(name.format(id_of(FIRST).hex())))
    (finding,) = wrong(root)
    assert finding.problem.startswith("is no message of this range")


@pytest.mark.parametrize("first", [(FIRST, COUNT + 1, id_of(FIRST)), (FIRST, COUNT, id_of(7))])
def test_a_block_under_another_name_is_damaged(root: Path, first: tuple[int, int, MessageId]) -> None:
    made = block(root)
    number, count, message_id = first
    made.file.rename(made.file.with_name(f"{number:016x}+{count:03x}.{message_id.hex()}"))
    assert [finding.movable for finding in wrong(root)] == [True]


def test_tags_that_its_properties_do_not_say_are_told(root: Path) -> None:
    made = block(root)
    table = decode_table(made.file.read_bytes())
    bodies = table.bodies(made.file.read_bytes(), 0, COUNT)
    ids = [table.message_id(index) for index in range(COUNT)]
    head, body, _ = encode(table.packed, ids, bodies, 1, own={3: (".p9", {"priority": 8})})
    made.file.write_bytes(head + body)
    (finding,) = wrong(root)
    assert finding.path == own_path(made, FIRST + 3) + ".p9"
    assert finding.problem.endswith("do not say what its properties say: .p8")


def test_a_message_that_an_earlier_version_has_moved_is_whole(root: Path) -> None:
    """It keeps what it does not know of the head, and gives it no tag."""
    made = block(root)
    table = decode_table(made.file.read_bytes())
    bodies = table.bodies(made.file.read_bytes(), 0, COUNT)
    ids = [table.message_id(index) for index in range(COUNT)]
    head, body, _ = encode(table.packed, ids, bodies, 1, own={3: (".p9", {"priority": 9, "persistent": False})})
    made.file.write_bytes(head + body)
    assert wrong(root) == []


def test_repair_mends_each_by_itself(tmp_path: Path) -> None:
    root = blocks(tmp_path / "space")
    before = {seq for seq in numbers(root) if seq < 0x40 or seq >= 0x50}
    plan = repair(root)
    assert [finding for finding in check(root) if finding.severity is not Severity.NOTE] == []
    back = {0x30, 0x32}  # their bitmap was damaged
    assert set(numbers(root)) == before - {0x15, 0x17} | back
    with xaqueue.connect(root) as connection:
        found = {message.seq: message.body for message in connection.browse("orders")}
    assert found == {seq: body_of(seq) for seq in before - {0x15, 0x17} | back}
    done = {(item.action, item.path.rpartition("/")[2][:20]): item.lost for item in plan.items}
    assert done == {
        ("set aside", f"{0x15:016x}.000"): "a message",
        ("set aside", f"{0x17:016x}.000"): "a message",
        ("set aside", f"{0x30:016x}.000"): "",
        ("set aside", f"{0x40:016x}+010"): "up to 16 messages",
        ("set aside", f"{0x40:016x}.000"): "",  # what is gone of it
        ("made again", f"{0x20:016x}+010"): "",
        ("made again", f"{0x50:016x}+010"): "",
    }


def test_what_is_set_aside_is_as_it_was_found(root: Path) -> None:
    made = block(root)
    made.harm_body(3)
    when_ns = made.file.stat().st_mtime_ns
    repair(root)
    (aside,) = (path for path in (root / "quarantine").iterdir() if not path.name.endswith(".reason"))
    assert aside.name == own_path(made, FIRST + 3).removeprefix("committed/queue=").replace("/", ".")
    assert aside.read_bytes().endswith(b"body 13"[1:])
    assert made.file.stat().st_mtime_ns == when_ns
    assert decode_gone(made.gone_file.read_bytes(), "orders", made.named) == 0b1000


@pytest.mark.parametrize("harm", [MadeBlock.harm_table, MadeBlock.harm_copy, lambda made: made.flip(-2)])
def test_a_table_is_made_again_to_the_byte(root: Path, harm: Callable[[MadeBlock], None]) -> None:
    made = block(root)
    before, when_ns = made.file.read_bytes(), made.file.stat().st_mtime_ns
    harm(made)
    repair(root)
    assert (made.file.read_bytes(), made.file.stat().st_mtime_ns) == (before, when_ns)
