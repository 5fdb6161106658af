"""The offline checker: a clean space is clean, each kind of damage is found, and repair sets it aside."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import xaqueue
from xaqueue.core.engine.heuristics import decide
from xaqueue.core.model import layout
from xaqueue.core.model.block import Block, Kind, encode
from xaqueue.core.model.layout import Watermark
from xaqueue.errors import SpaceError
from xaqueue.features.opening import create
from xaqueue.features.session import attach
from xaqueue.message import MessageId, Properties
from xaqueue.offline.check import check, repair
from xaqueue.offline.findings import Finding, Severity
from xaqueue.offline.plan import SET_ASIDE
from xaqueue.xid import Xid

XID = Xid(7, b"gtrid", b"bqual")
LARGE = 200_000


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """Two messages in orders, one in replies, closed cleanly."""
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True, sync="NONE") as connection:
        connection.enqueue("orders", b"first")
        connection.enqueue("orders", b"second")
        connection.enqueue("replies", b"third")
        connection.commit()
    return root


def found(root: Path) -> list[tuple[Severity, str]]:
    return [(finding.severity, finding.path) for finding in check(root)]


def problems(root: Path, severity: Severity = Severity.DAMAGE) -> list[Finding]:
    return [finding for finding in check(root) if finding.severity is severity]


def messages(root: Path, queue: str = "orders") -> list[Path]:
    return sorted(path for path in (root / layout.queue_path(queue)).glob("range=*/*"))


def prepare(root: Path, *bodies: bytes, take: bool = False) -> None:
    """A branch in doubt that adds the bodies and, if asked, holds the first of orders; the space is closed."""
    with xaqueue.connect(root, sync="NONE") as connection:
        connection.tpc_begin(XID)
        for body in bodies:
            connection.enqueue("orders", body)
        if take:
            assert connection.dequeue("orders") is not None
        assert connection.tpc_prepare()


def prepared(root: Path, suffix: str) -> Path:
    return root / layout.block_path(layout.PREPARED, str(XID), suffix)


def flip(path: Path, offset: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_a_clean_space_is_clean(space: Path) -> None:
    assert found(space) == []


def test_an_empty_space_is_clean(tmp_path: Path) -> None:
    create(tmp_path / "space")
    assert found(tmp_path / "space") == []


def test_a_drained_queue_is_clean(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        while connection.dequeue("orders") is not None:
            connection.commit()
    assert messages(space) == []
    assert found(space) == []


def test_branches_in_doubt_are_clean(space: Path) -> None:
    prepare(space, b"one", b"two", take=True)
    assert found(space) == []


def test_looking_changes_nothing(space: Path) -> None:
    prepare(space, b"one", take=True)
    before = sorted((str(path), path.stat().st_mtime_ns) for path in space.rglob("*"))
    list(check(space))
    assert sorted((str(path), path.stat().st_mtime_ns) for path in space.rglob("*")) == before


def test_what_is_no_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="no queue space"):
        list(check(tmp_path))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda path: path.write_bytes(b""), "empty file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-2]), "truncated"),
        (lambda path: flip(path), "checksum does not match"),
        (lambda path: flip(path, 60), "checksum"),
        (
            lambda path: path.write_bytes(b"a foreign file that is long enough for the prefix of a block"),
            "foreign file",
        ),
        (lambda path: path.rename(path.parent / "readme.txt"), "no message of this range"),
        (lambda path: path.rename(path.parent / f"{1 << 20:016x}.{path.name[17:]}"), "no message of this range"),
        (lambda path: path.rename(path.parent / f"{path.name[:17]}{'ab' * 16}"), "not the one it is named after"),
    ],
)
def test_a_damaged_message_is_found_and_repaired(space: Path, harm: Callable[[Path], object], said: str) -> None:
    harm(messages(space)[0])
    (finding,) = problems(space)
    assert said in finding.problem
    assert finding.path.startswith("committed/queue=orders/range=")
    done = repair(space)
    assert len(done.items) == 1
    assert problems(space) == []
    assert len(problems(space, Severity.NOTE)) == 1
    assert len(messages(space)) == 1


def test_a_large_body_is_checked_to_its_last_bit(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        connection.enqueue("orders", bytes(LARGE))
        connection.commit()
    path = messages(space)[-1]
    flip(path)
    (finding,) = problems(space)
    assert finding.problem == "checksum does not match"
    done = repair(space)
    assert done.texts(SET_ASIDE) == [f"{path.relative_to(space)}: checksum does not match"]
    assert problems(space) == []
    (aside,) = [file for file in (space / layout.QUARANTINE).iterdir() if file.suffix == ".reason"]
    assert aside.read_text().startswith("checksum does not match\n")


def test_a_message_of_another_queue_is_found(space: Path) -> None:
    other = messages(space, "replies")[0]
    other.rename(messages(space)[0].parent / f"{9:016x}.{other.name[17:]}")
    assert "belongs to queue 'replies', not 'orders'" in problems(space)[0].problem


def test_a_message_that_stands_twice_is_found(space: Path) -> None:
    first = messages(space)[0]
    os.link(first, first.parent / f"{3:016x}.{first.name[17:]}")
    (finding,) = [f for f in problems(space) if "stands in its queue twice" in f.problem]
    assert finding.path.endswith(f"{3:016x}.{first.name[17:]}")
    repair(space)
    assert problems(space) == []
    assert first.exists()


def test_one_id_in_two_queues_is_noted(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        for queue in ("orders", "replies"):
            connection.enqueue(queue, b"same", message_id=b"0123456789abcdef")
        connection.commit()
    assert problems(space) == []
    (note,) = problems(space, Severity.NOTE)
    assert "queue=replies" in note.path
    assert "queue=orders" in note.problem


@pytest.mark.parametrize(
    ("content", "severity", "said"),
    [
        (b"rubbish", Severity.DAMAGE, "is no watermark"),
        (bytes(40), Severity.DAMAGE, "is no watermark"),
        (layout.format_watermark(Watermark(9, 3)), Severity.DAMAGE, "published 9 is above reserved 3"),
        (layout.format_watermark(Watermark(1, 1)), Severity.LEFTOVER, "message 2 is above reserved 1"),
        (b"", Severity.LEFTOVER, "is missing or empty"),
        (None, Severity.LEFTOVER, "is missing or empty"),
    ],
)
def test_a_bad_watermark_is_found_and_repaired(
    space: Path, content: bytes | None, severity: Severity, said: str
) -> None:
    """Of a power loss in the middle of a commit the next open makes good; of nothing else."""
    path = space / layout.watermark_path("orders")
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    (finding,) = check(space)
    assert finding.severity is severity
    assert said in finding.problem
    repair(space)
    assert [finding for finding in check(space) if finding.severity is not Severity.NOTE] == []


@pytest.mark.parametrize("content", [b"", None])
def test_a_used_queue_without_a_watermark_is_damage(space: Path, content: bytes | None) -> None:
    path = space / layout.watermark_path("orders")
    path.write_bytes(layout.format_watermark(Watermark(4095, 4095)))
    with xaqueue.connect(space) as connection:
        connection.enqueue("orders", b"in the second range")
        connection.commit()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    (finding,) = problems(space)
    assert "is missing or empty, and the queue was used" in finding.problem
    repair(space)
    assert found(space) == []


def test_messages_that_nobody_published_are_leftovers(space: Path) -> None:
    (space / layout.watermark_path("orders")).write_bytes(layout.format_watermark(Watermark(1, 4095)))
    (finding,) = check(space)
    assert (finding.severity, finding.problem[:9]) == (Severity.LEFTOVER, "message 2")


@pytest.mark.parametrize(
    "place",
    ["active/notes.txt", "prepared/7.Z3RyaWQ.YnF1YWw", "heuristic/what", "committed/stray", "committed/queue=.x"],
)
def test_foreign_names_are_found_and_repaired(space: Path, place: str) -> None:
    (space / place).write_bytes(b"x")
    assert found(space) == [(Severity.DAMAGE, place)]
    repair(space)
    assert problems(space) == []


def test_names_with_a_dot_in_front_are_left_alone(space: Path) -> None:
    for place in ("active", "prepared", "heuristic", "committed", "quarantine"):
        (space / place / ".keep").touch()
    assert found(space) == []


def test_a_foreign_file_beside_the_space_is_noted(space: Path) -> None:
    (space / "lost+found").mkdir()
    assert found(space) == [(Severity.NOTE, "lost+found")]


def test_a_bad_format_and_bad_definitions_are_found(space: Path) -> None:
    (space / layout.FORMAT).write_text("xaqueue\n")
    (space / layout.QUEUES).write_text("[queues.orders]\norder = 'random'\n")
    assert found(space) == [(Severity.DAMAGE, "FORMAT"), (Severity.DAMAGE, "queues.toml")]


def test_a_missing_directory_is_a_leftover(space: Path) -> None:
    (space / layout.ACTIVE).rmdir()
    assert found(space) == [(Severity.LEFTOVER, "active")]


def test_an_empty_range_that_takes_no_more_is_a_leftover(space: Path) -> None:
    path = layout.range_path("orders", 1 << 20)
    (space / path).mkdir()
    assert found(space) == [(Severity.LEFTOVER, path)]
    attach(space, watch=False).close()
    assert found(space) == []


def test_blocks_of_an_active_branch_are_leftovers(space: Path) -> None:
    (space / layout.ACTIVE / f"{XID}.001").write_bytes(b"torn")
    assert found(space) == [(Severity.LEFTOVER, f"active/{XID}")]


def test_a_branch_without_its_first_block_is_a_leftover(space: Path) -> None:
    prepare(space, b"one", b"two")
    prepared(space, "000").unlink()
    assert {severity for severity, _ in found(space)} == {Severity.LEFTOVER}
    attach(space, watch=False).close()
    assert found(space) == []


def test_a_branch_that_lacks_a_listed_block_is_a_leftover(space: Path) -> None:
    prepare(space, b"one", b"two")
    prepared(space, "002").unlink()
    (finding,) = check(space)
    assert (finding.severity, finding.path) == (Severity.LEFTOVER, f"prepared/{XID}.000")
    assert "lists block 002" in finding.problem


def test_a_branch_past_its_commit_point_is_a_leftover(space: Path) -> None:
    prepare(space, b"one", b"two")
    prepared(space, "000").rename(prepared(space, "commit"))
    assert found(space) == [(Severity.LEFTOVER, f"prepared/{XID}.commit")]
    attach(space, watch=False).close()
    assert found(space) == []
    assert len(messages(space)) == 4


def test_blocks_of_a_one_phase_commit_are_checked_where_they_stand(space: Path) -> None:
    prepare(space, b"one", b"two")
    prepared(space, "000").rename(prepared(space, "commit"))
    for suffix in ("001", "002"):
        prepared(space, suffix).rename(space / layout.block_path(layout.ACTIVE, str(XID), suffix))
    assert found(space) == [(Severity.LEFTOVER, f"prepared/{XID}.commit")]
    flip(space / layout.block_path(layout.ACTIVE, str(XID), "002"))
    assert [finding.path for finding in problems(space)] == [f"active/{XID}.002"]


def test_a_block_beside_an_only_block_is_a_leftover(space: Path) -> None:
    prepare(space, b"one")
    os.link(prepared(space, "000"), prepared(space, "001"))
    assert found(space) == [(Severity.LEFTOVER, f"prepared/{XID}.001")]


def test_a_block_in_two_places_is_a_leftover(space: Path) -> None:
    prepare(space, b"one")
    os.link(prepared(space, "000"), space / layout.block_path(layout.ACTIVE, str(XID), "000"))
    assert (Severity.LEFTOVER, f"active/{XID}.000") in found(space)


def test_an_only_block_whose_message_is_there_is_a_leftover(space: Path) -> None:
    prepare(space, b"one")
    block = prepared(space, "000")
    os.link(block, messages(space)[0].parent / f"{3:016x}.{block.read_bytes()[28:44].hex()}")
    assert (Severity.LEFTOVER, f"prepared/{XID}.000") in found(space)


def test_a_listed_block_whose_message_is_there_is_damage(space: Path) -> None:
    prepare(space, b"one", b"two")
    block = prepared(space, "001")
    os.link(block, messages(space)[0].parent / f"{2:016x}.{block.read_bytes()[28:44].hex()}")
    assert [finding.path for finding in problems(space)] == [f"prepared/{XID}.001"]
    assert "committed already" in problems(space)[0].problem


def test_a_dequeue_whose_message_is_gone_is_finished_or_damage(space: Path) -> None:
    prepare(space, take=True)
    first = messages(space)[0]
    aside = space / layout.QUARANTINE / f"orders.{first.parent.name}.{first.name}"
    first.rename(aside)
    gone, lost = problems(space)
    assert gone.problem.startswith("1 of 2 messages that were here")
    assert "in quarantine" in lost.problem
    aside.unlink()
    assert found(space) == [(Severity.DAMAGE, gone.path), (Severity.LEFTOVER, f"prepared/{XID}.000")]


def test_a_listed_dequeue_whose_message_is_gone_is_damage(space: Path) -> None:
    prepare(space, b"one", take=True)
    messages(space)[0].unlink()
    gone, finding = problems(space)
    assert gone.path == "committed/queue=orders"
    assert "which prepared/" in finding.problem
    assert not finding.movable


@pytest.mark.parametrize("suffix", ["000", "001", "002"])
def test_a_damaged_block_in_doubt_is_found_and_set_aside(space: Path, suffix: str) -> None:
    prepare(space, b"one", b"two")
    flip(prepared(space, suffix))
    assert [finding.path for finding in problems(space)] == [f"prepared/{XID}.{suffix}"]
    repair(space)
    (finding,) = problems(space)
    assert finding.path == f"quarantine/prepared.{XID}.{suffix}"
    assert "is in doubt and lost a block of it" in finding.problem


def test_a_large_damaged_block_in_doubt_is_set_aside_by_repair_alone(space: Path) -> None:
    prepare(space, bytes(LARGE), b"two")
    flip(prepared(space, "001"))
    assert problems(space)[0].problem == "checksum does not match"
    assert repair(space).texts(SET_ASIDE) == [f"prepared/{XID}.001: checksum does not match"]
    session = attach(space, watch=False)
    assert session.space.report.in_doubt == 1
    assert decide(session.space, XID, True, "test").outcome == "mixed"
    session.close()
    assert problems(space) == []


def test_another_block_than_the_listed_one_is_found(space: Path) -> None:
    prepare(space, b"one", b"two")
    prepared(space, "002").unlink()
    os.link(prepared(space, "001"), prepared(space, "002"))
    assert problems(space)[0].problem == "is not the block that its branch lists"


def test_a_damaged_decision_is_found(space: Path) -> None:
    prepare(space, b"one")
    session = attach(space, watch=False)
    decide(session.space, XID, True, "test")
    session.close()
    assert found(space) == []
    flip(space / layout.HEURISTIC / str(XID))
    assert found(space) == [(Severity.DAMAGE, f"heuristic/{XID}")]


def test_a_decision_not_carried_out_is_a_leftover(space: Path) -> None:
    prepare(space, b"one")
    headers = {"decision": "commit", "by": "me"}
    record = Block(Kind.BRANCH, MessageId(bytes(16)), Properties("", headers=headers), b"\x90")
    (space / layout.HEURISTIC / str(XID)).write_bytes(b"".join(encode(record)))
    (finding,) = check(space)
    assert finding.severity is Severity.LEFTOVER
    assert "commit by me" in finding.problem


def test_a_space_in_use_is_a_moving_target_and_never_damage(space: Path) -> None:
    stop = threading.Event()

    def work(number: int) -> None:
        with xaqueue.connect(space) as connection:
            while not stop.is_set():
                connection.tpc_begin(Xid(number, os.urandom(8), b""))
                connection.enqueue("orders", b"x")
                connection.enqueue("replies", b"y")
                connection.dequeue("orders")
                connection.tpc_prepare()
                connection.tpc_commit()

    workers = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    with xaqueue.connect(space):
        for worker in workers:
            worker.start()
        try:
            for _ in range(5):
                findings = list(check(space))
                assert "moving target" in findings[0].problem
                assert [finding for finding in findings if finding.severity is Severity.DAMAGE] == []
        finally:
            stop.set()
            for worker in workers:
                worker.join()
    assert problems(space) == []


def test_damage_in_a_space_in_use_is_told_all_the_same(space: Path) -> None:
    with xaqueue.connect(space):
        flip(messages(space)[0])
        assert [finding.problem for finding in problems(space)] == ["checksum does not match"]


def test_progress_counts_range_directories(space: Path) -> None:
    seen: list[tuple[int, int]] = []
    list(check(space, lambda done, total: seen.append((done, total))))
    assert seen == [(1, 2), (2, 2)]
