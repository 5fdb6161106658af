"""A damaged file is set aside with its reason, is never deleted for it, and the rest of the space serves (rule 9).

Here messages, watermarks and foreign files; ``test_damage_branches`` has the blocks of branches.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.bare_space import BareSpace, bare_space, identity, lay
from support.damages import DAMAGES, LARGE, Damage, check_set_aside, damaged, fingerprint, flip, harm
from support.space_scan import scan
from xaqueue.core.engine import heuristics, quarantine
from xaqueue.core.model import layout
from xaqueue.core.model.block import Kind, head_of


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space") as opened:
        yield opened


# committed/


@damaged
def test_a_damaged_message_is_set_aside_and_the_others_are_served(bare: BareSpace, damage: Damage) -> None:
    bare.put("orders", b"first", b"second", b"third")
    path = bare.message_file("orders", b"second")
    was = harm(bare, path, damage)
    bare.reopen()
    assert bare.space.report.quarantined == [], "an open reads no message"
    assert bare.take("orders") == [b"first", b"third"]
    check_set_aside(bare, path, was)
    bare.reopen()
    assert bare.space.report.quarantined == []
    assert bare.take("orders") == [b"first", b"third"]


@damaged
def test_a_message_damaged_while_the_space_is_open_is_set_aside_at_its_dequeue(bare: BareSpace, damage: Damage) -> None:
    bare.put("orders", b"first", b"second", b"third")
    path = bare.message_file("orders", b"first")
    damage(path)
    was = fingerprint(path)
    assert bare.take("orders") == [b"second", b"third"]
    check_set_aside(bare, path, was)
    bare.reopen()
    assert bare.take("orders") == [b"second", b"third"]


def test_an_unreadable_message_is_set_aside(bare: BareSpace) -> None:
    bare.put("orders", b"first", b"second", b"third")
    path = bare.message_file("orders", b"second")
    was = fingerprint(path)
    bare.fs.faults["read", str(path.relative_to(bare.root))] = errno.EIO
    bare.reopen()
    assert bare.take("orders") == [b"first", b"third"]
    assert "Input/output error" in bare.space.report.quarantined[0]
    check_set_aside(bare, path, was)


def test_a_message_that_becomes_unreadable_is_set_aside_at_its_dequeue(bare: BareSpace) -> None:
    bare.put("orders", b"first", b"second", b"third")
    path = bare.message_file("orders", b"first")
    was = fingerprint(path)
    bare.fs.faults["read", str(path.relative_to(bare.root))] = errno.EIO
    with closing(bare.connect()) as connection:
        assert [message.body for message in connection.browse("orders")] == [b"second", b"third"]
    assert bare.take("orders") == [b"second", b"third"]
    check_set_aside(bare, path, was)


def test_aflipped_bit_at_the_end_of_a_large_body_is_found_at_its_dequeue(bare: BareSpace) -> None:
    bare.put("orders", LARGE, b"next")
    path = bare.message_file("orders", LARGE)
    was = harm(bare, path, lambda large: flip(large, -1))
    bare.reopen()
    assert bare.space.report.quarantined == []
    with closing(bare.connect()) as connection:
        message = connection.dequeue("orders")
        assert message is not None
        assert message.body == b"next"
        connection.commit()
    check_set_aside(bare, path, was)


def test_a_large_body_damaged_while_it_was_in_doubt_is_found_at_its_dequeue(bare: BareSpace) -> None:
    xid = bare.prepare("large", add=[("orders", LARGE)])
    harm(bare, bare.block("prepared", xid, "000"), lambda large: flip(large, -1))
    bare.reopen()
    with closing(bare.connect()) as connection:
        connection.tpc_commit(xid)
    bare.put("orders", b"next")
    assert bare.take("orders") == [b"next"]
    assert "checksum does not match" in bare.space.report.quarantined[0]


FOREIGN_NAMES = [
    "active/notes.txt",
    "active/7.only-two-parts",
    "prepared/notes.txt",
    "prepared/1.YQ.Yg.abc",
    "prepared/1.YQ==.Yg.000",
    "heuristic/notes.txt",
    "committed/notes.txt",
    "committed/orders",
    "committed/queue=..",
    "committed/queue=orders/notes.txt",
    "committed/queue=orders/range=000000000000",
    "committed/queue=orders/range=0000000000000/notes.txt",
    "committed/queue=orders/range=0000000000000/0000000000000002.SHORT",
]


@pytest.mark.parametrize("name", FOREIGN_NAMES)
@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_a_foreign_name_is_set_aside_wherever_it_stands(bare: BareSpace, name: str, kind: str) -> None:
    bare.put("orders", b"first")
    path = bare.root / name
    if kind == "file":
        path.write_bytes(b"somebody's notes")
    elif kind == "directory":
        path.mkdir()
        (path / "inside").write_bytes(b"kept")
    else:
        path.symlink_to(bare.root / "queues.toml")
    was = fingerprint(path)
    bare.reopen()
    check_set_aside(bare, path, was)
    assert bare.take("orders") == [b"first"]
    assert (bare.root / "queues.toml").is_file()


@pytest.mark.parametrize("name", ["active/.hidden", "prepared/.nfs01", "committed/.trash", "heuristic/.x"])
def test_a_name_with_a_dot_is_left_alone(bare: BareSpace, name: str) -> None:
    (bare.root / name).write_bytes(b"not ours")
    bare.reopen()
    assert bare.space.report.quarantined == []
    assert (bare.root / name).read_bytes() == b"not ours"


def test_a_message_in_the_wrong_place_is_set_aside(bare: BareSpace) -> None:
    bare.put("orders", b"first", b"second", b"third")
    bare.put("bills", b"bill")
    bare.crash()
    range_of = bare.message_file("orders", b"first").parent
    other = range_of.with_name("range=0000000000005")
    other.mkdir()
    wrong = {
        other / bare.message_file("orders", b"first").name: (b"first", "no message of this range"),
        range_of / f"{8:016x}.{'cd' * 16}": (b"bill", "holds message"),
        range_of / f"{9:016x}.{bare.message_file('bills', b'bill').name.split('.')[1]}": (b"bill", "belongs to queue"),
        range_of / f"{10:016x}.{bare.message_file('orders', b'third').name.split('.')[1]}": (b"third", "queue twice"),
    }
    files = {body: bare.message_file("bills" if body == b"bill" else "orders", body) for body, _ in wrong.values()}
    for path, (body, _) in wrong.items():
        shutil.copy(files[body], path)
    bare.reopen()
    assert len(bare.quarantined()) == 2, "what names tell is seen by the open"
    assert bare.take("orders") == [b"first", b"second", b"third"]
    for path, (_, reason) in wrong.items():
        name = str(path.relative_to(bare.root))
        assert any(line.startswith(f"{name}: ") and reason in line for line in bare.space.report.quarantined), reason
    assert len(bare.quarantined()) == len(wrong)
    assert bare.take("orders") == [b"first", b"second", b"third"]
    assert bare.take("bills") == [b"bill"]


UNREADABLE = {"no map": b"\x90", "no queue": b"\x80", "no MessagePack": b"\xc1", "cut off": b"\x81\xa5queue"}


@pytest.mark.parametrize("packed", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("takes", ["one", "many"])
def test_properties_that_are_none_are_told_by_the_read(bare: BareSpace, packed: bytes, takes: str) -> None:
    """Their checksums are right: nobody is handed a message whose properties cannot be made later."""
    path = lay(bare, 1, identity(1))
    lay(bare, 2, identity(2), body=b"sound")
    path.write_bytes(b"".join((head_of(Kind.ENQUEUE, identity(1), packed, b"damaged", 1)[0], b"damaged")))
    bare.reopen()
    with bare.connect() as connection:
        assert [message.body for message in connection.browse("q")] == [b"sound"]
        found = connection.dequeue_many("q", 2) if takes == "many" else [connection.dequeue("q")]
        assert [message and message.body for message in found] == [b"sound"]
    (told,) = bare.space.report.quarantined
    assert str(path.relative_to(bare.root)) in told


def test_a_block_that_is_no_message_is_set_aside(bare: BareSpace) -> None:
    bare.put("orders", b"first", b"second")
    xid = bare.prepare("taker", take=["orders"])
    bare.crash()
    message = bare.message_file("orders", b"second")
    shutil.copy(bare.block("prepared", xid, "000"), message)
    bare.reopen()
    assert bare.take("orders") == []
    assert "a block of kind dequeue is no message" in bare.space.report.quarantined[0]
    assert bare.in_doubt() == [xid]


def test_a_file_in_place_of_a_queue_is_set_aside(bare: BareSpace) -> None:
    bare.put("orders", b"first")
    bare.crash()
    (bare.root / "committed/queue=bills").write_bytes(b"no directory")
    bare.reopen()
    assert "a file where a queue's directory should be" in bare.space.report.quarantined[0]
    assert bare.take("orders") == [b"first"]
    bare.put("bills", b"bill")
    assert bare.take("bills") == [b"bill"]


# The watermark


@damaged
def test_a_damaged_watermark_is_set_aside_and_no_number_comes_twice(bare: BareSpace, damage: Damage) -> None:
    bare.put("orders", b"first", b"second")
    path = bare.root / layout.watermark_path("orders")
    was = harm(bare, path, damage)
    bare.reopen()
    if was == b"":
        assert bare.space.report.quarantined == []
        check_numbers_go_on(bare, "is missing or empty")
    else:
        check_set_aside(bare, path, was, anew=True)
        check_numbers_go_on(bare, "was damaged")


def test_a_missing_watermark_is_said_and_no_number_comes_twice(bare: BareSpace) -> None:
    bare.put("orders", b"first", b"second")
    bare.crash()
    (bare.root / layout.watermark_path("orders")).unlink()
    bare.reopen()
    assert bare.space.report.quarantined == []
    check_numbers_go_on(bare, "is missing or empty")


def test_an_unreadable_watermark_is_set_aside(bare: BareSpace) -> None:
    bare.put("orders", b"first", b"second")
    path = bare.root / layout.watermark_path("orders")
    was = fingerprint(path)
    bare.fs.faults["read", layout.watermark_path("orders")] = errno.EIO
    bare.reopen()
    check_set_aside(bare, path, was, anew=True)
    bare.fs.faults.clear()
    check_numbers_go_on(bare, "was damaged")


def check_numbers_go_on(bare: BareSpace, why: str) -> None:
    (note,) = bare.space.report.notes
    assert why in note
    bare.put("orders", b"third")
    with closing(bare.connect()) as connection:
        taken = [message.seq for message in connection.browse("orders")]
    assert len(taken) == 3
    assert taken[2] > 1_000_000_000_000_000, "above every number that a clock or a counter can have given"
    bare.reopen()
    assert bare.space.report.notes == []
    assert bare.take("orders") == [b"first", b"second", b"third"]


# Quarantine itself


def test_quarantine_keeps_files_of_one_name_apart(bare: BareSpace) -> None:
    for content in (b"one", b"two", b"three"):
        (bare.root / "prepared/notes.txt").write_bytes(content)
        bare.reopen()
    assert [path.read_bytes() for path in bare.quarantined()] == [b"one", b"two", b"three"]
    assert len(list((bare.root / layout.QUARANTINE).glob("*.reason"))) == 3


def test_a_foreign_file_in_quarantine_is_left_alone(bare: BareSpace) -> None:
    orphans = ["notes.txt", "prepared.notes", "prepared.1.YQ.Yg.000.reason"]
    for name in orphans:
        (bare.root / layout.QUARANTINE / name).write_bytes(b"")
    (bare.root / layout.QUARANTINE / "folder").mkdir()
    bare.reopen()
    assert bare.in_doubt() == []
    assert bare.space.report.quarantined == []


@pytest.mark.parametrize("place", ["message", "block", "queue", "range", "watermark", "decision"])
def test_a_link_out_of_the_space_is_moved_and_never_followed(bare: BareSpace, tmp_path: Path, place: str) -> None:
    bare.put("orders", b"first")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "letter").write_bytes(b"private")
    os.utime(outside / "letter", ns=(10**18, 10**18))
    before = (outside / "letter").stat()
    places = {
        "message": (f"committed/queue=orders/range={0:013x}/{9:016x}.{'ab' * 16}", "letter"),
        "block": ("prepared/1.YQ.Yg.000", "letter"),
        "queue": ("committed/queue=bills", "."),
        "range": (f"committed/queue=orders/range={5:013x}", "."),
        "watermark": ("committed/queue=orders/.watermark", "letter"),
        "decision": ("heuristic/1.YQ.Yg", "letter"),
    }
    name, target = places[place]
    bare.crash()
    path = bare.root / name
    path.unlink(missing_ok=True)
    path.symlink_to(outside / target)
    was = fingerprint(path)
    bare.reopen()
    bare.put("orders", b"second")
    assert bare.take("orders") == [b"first", b"second"]
    check_set_aside(bare, path, was, anew=place == "watermark")
    after = (outside / "letter").stat()
    assert (outside / "letter").read_bytes() == b"private"
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert [child.name for child in outside.iterdir()] == ["letter"]


def test_everything_damaged_at_once_still_starts_and_serves(bare: BareSpace) -> None:
    bare.put("orders", *(b"%d" % number for number in range(len(DAMAGES) + 1)))
    lost = bare.messages("orders")[1:]
    xids = [bare.prepare(f"branch {n}", add=[("bills", b"a"), ("bills", b"b")]) for n in range(len(DAMAGES))]
    bare.crash()
    for path, xid, damage in zip(lost, xids, DAMAGES.values(), strict=True):
        damage(path)
        damage(bare.block("prepared", xid, "001"))
    bare.reopen()
    assert bare.take("orders") == [b"0"]
    assert len(bare.space.report.quarantined) == 2 * len(DAMAGES)
    assert sorted(bare.in_doubt(), key=str) == sorted(xids, key=str)
    for xid in xids:
        heuristics.decide(bare.space, xid, False, "operator")
        with closing(bare.connect()) as connection:
            connection.tpc_forget(xid)
    bare.reopen()
    assert bare.in_doubt() == []
    assert [finding for finding in scan(bare.root) if not finding.startswith("quarantine")] == []


def test_the_reason_of_a_quarantined_file_is_synced_and_let_go(
    strict: BareSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = strict.fs.sync_data

    def sync_data(path: str) -> None:
        synced.append(path)
        real(path)

    monkeypatch.setattr(strict.fs, "sync_data", sync_data)
    (strict.root / layout.PREPARED / "junk").touch()
    target = quarantine.move(strict.fs, f"{layout.PREPARED}/junk", "no block", 0)
    assert synced == [target + ".reason"]
    assert list(strict.fs._unsynced) == []
