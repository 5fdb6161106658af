"""Redo makes the directories what the records say, from any state that a crash leaves, and as often as it is asked."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from support.redo_story import (
    EMPTY,
    QUEUE,
    Made,
    Story,
    active,
    block,
    held,
    message_id,
    path_of,
    prepared,
    record_of,
    whole,
)
from xaqueue.core.engine import quarantine, redo
from xaqueue.core.model import change, layout
from xaqueue.core.model.block import Block, Kind, encode_with_checksum
from xaqueue.core.model.layout import Watermark
from xaqueue.core.storage.journal_format import Record
from xaqueue.errors import JournalDamaged
from xaqueue.features.kinds import KINDS
from xaqueue.features.streams.record import archived_path
from xaqueue.message import Properties

replay = partial(redo.replay, kinds=KINDS)

ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("prepare", "prepare_large", "commit", "commit", "one_phase", "one_phase_large"),
                *("rollback", "take", "count_a_try", "flush", "checkpoint"),
            ]
        ),
        st.integers(0, 5),
    ),
    max_size=14,
)
unhurried = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


def reserved(fs: ForgetfulFileSystem) -> int:
    """The bound of the numbers; 0 where a crash left no watermark, or an empty one."""
    path = layout.watermark_path(QUEUE)
    data = fs.read(path) if fs.exists(path) else b""
    watermark = layout.parse_watermark(data) if data else Watermark(0, 0)
    assert watermark is not None
    return watermark.reserved


def check(tree: Tree, story: Story) -> None:
    """Replayed once, and once more, it is what the model says."""
    fs = tree.open()
    assert replay(fs, story.records) == []
    assert held(fs) == story.wanted
    assert reserved(fs) >= story.given
    assert ".replay" not in fs.list(layout.ACTIVE)
    once = whole(fs)
    assert replay(fs, story.records) == []
    assert whole(fs) == once


@unhurried
@given(acts=ACTS, lag=st.booleans(), cut=st.integers(0, 80), seed=st.integers(0, 2**32))
def test_any_story_cut_anywhere_is_replayed_to_its_model(
    acts: list[tuple[str, int]], lag: bool, cut: int, seed: int
) -> None:
    story = Story(EMPTY.open(cut), lag)
    story.play(acts)
    dice = random.Random(seed)
    check(story.fs.tree_after_kill(), story)
    for _ in range(8):
        check(story.fs.tree_by_chance(dice), story)


@settings(unhurried, max_examples=60)
@given(acts=ACTS, lag=st.booleans(), cut=st.integers(0, 60), seed=st.integers(0, 2**32))
def test_a_replay_may_be_cut_off_at_any_call_and_done_again(
    acts: list[tuple[str, int]], lag: bool, cut: int, seed: int
) -> None:
    story = Story(EMPTY.open(cut), lag)
    story.play(acts)
    dice = random.Random(seed)
    left = story.fs.tree_by_chance(dice)
    for crash_after in count():
        fs = left.open(crash_after)
        with suppress(Crashed):
            replay(fs, story.records)
            fs.sync_all()
        check(fs.tree_after_kill(), story)
        check(fs.tree_by_chance(dice), story)
        if not fs.crashed:
            break


# One thing each


def at(*pairs: tuple[str, tuple[bytes, bytes]]) -> Tree:
    """A space with these blocks, and the directories that lead to messages."""
    leading = dict.fromkeys((layout.queue_path(QUEUE), layout.range_path(QUEUE, 1)))
    return Tree({**EMPTY.nodes, **leading, **{path: b"".join(content) for path, content in pairs}})


def records(*made: Made) -> list[Record]:
    return [record_of(one.entry(), lsn) for lsn, one in enumerate(made)]


def commit(source: str, target: str, when_us: int = 0) -> Made:
    made = Made(change.CoreStep.COMMIT, "x")
    made.move(source, target, when_us)
    return made


@pytest.mark.parametrize("where", [active(1, 1), prepared(1), path_of(1, 1)])
def test_a_block_that_moved_twice_is_found_wherever_a_crash_left_it(where: str) -> None:
    fs = at((where, block(1))).open()
    first, second = commit(active(1, 1), prepared(1)), commit(prepared(1), path_of(1, 1))
    assert replay(fs, records(first, second)) == []
    assert held(fs) == {path_of(1, 1): 1}
    assert fs.list(layout.ACTIVE) == []


@pytest.mark.parametrize(
    "later",
    [Block(Kind.DEQUEUE, message_id(1), Properties(QUEUE)), Block(Kind.ENQUEUE, message_id(1), Properties("q"))],
)
def test_a_later_block_of_the_same_message_id_is_not_taken_for_the_one_that_moved(later: Block) -> None:
    """The xid is used again, and stands in active/: it takes that message, or adds one to another queue."""
    fs = at((prepared(1), block(1)), (active(1, 1), (encode_with_checksum(later)[0], b""))).open()
    first, second = commit(active(1, 1), prepared(1)), commit(prepared(1), path_of(1, 1))
    assert replay(fs, records(first, second)) == []
    assert fs.read(path_of(1, 1)) == b"".join(block(1))


def test_another_message_is_not_taken_for_the_one_that_moved() -> None:
    """The xid is used again: in the place of the old block stands a new one."""
    fs = at((prepared(1), block(2)), (path_of(1, 1), block(1))).open()
    fs.unlink(path_of(1, 1))
    made = records(commit(prepared(1), path_of(1, 1)))
    before = fs.tree_after_kill()
    told = f"{path_of(1, 1)}, which was {prepared(1)} once, is nowhere: the journal has only its name"
    with pytest.raises(JournalDamaged, match="goes on without what is lost") as damage:
        replay(fs, made)
    assert damage.value.lost_files == (told,)
    assert redo.find_lost(fs, made, KINDS) == {path_of(1, 1): told}
    assert fs.tree_after_kill() == before
    assert replay(fs, made, without_lost=True) == [told]


def test_a_moved_block_that_is_damaged_is_damage_until_it_is_in_quarantine() -> None:
    fs = at((path_of(1, 1), (b"no", b" block"))).open()
    made = records(commit(prepared(1), path_of(1, 1)))
    with pytest.raises(JournalDamaged, match="is damaged"):
        replay(fs, made)
    assert fs.read(path_of(1, 1)) == b"no block"
    quarantine.move(fs, path_of(1, 1), "damaged", 0)
    assert redo.find_lost(fs, made, KINDS) == {}
    (note,) = replay(fs, made)
    assert "is nowhere" in note


def test_what_others_took_from_the_archive_is_no_loss() -> None:
    archived = archived_path(path_of(1, 1))
    (note,) = replay(EMPTY.open(), records(commit(path_of(1, 1), archived)))
    assert archived in note


def test_a_torn_file_is_made_anew() -> None:
    made = Made(change.CoreStep.PREPARE, "x")
    made.put(prepared(1), *block(1, size=100))
    fs = at((prepared(1), (block(1)[0], b""))).open()
    replay(fs, records(made))
    assert fs.read(prepared(1)) == b"".join(block(1, size=100))


def test_another_block_gives_way() -> None:
    made = Made(change.CoreStep.PREPARE, "x")
    made.put(prepared(1), *block(1))
    made.put(path_of(2, 1), *block(2))
    fs = at((prepared(1), block(9)), (path_of(2, 1), block(8))).open()
    replay(fs, records(made))
    assert held(fs) == {prepared(1): 1, path_of(2, 1): 2}


def test_times_are_set_wherever_the_file_stood() -> None:
    made = Made(change.CoreStep.ONE_PHASE, "x")
    made.put(path_of(2, 2), *block(2), 7_000_000)
    fs = at((prepared(1), block(1))).open()
    replay(fs, records(commit(prepared(1), path_of(1, 1), 5_000_000), made))
    assert fs.modified_ns(path_of(1, 1)) == 5_000_000_000
    assert fs.modified_ns(path_of(2, 2)) == 7_000_000_000


def test_the_last_record_of_a_path_counts() -> None:
    made = [Made(change.CoreStep.PREPARE, "x") for _ in range(3)]
    made[0].put(prepared(1), *block(1))
    made[1].drop(prepared(1))
    made[2].put(prepared(1), *block(2))
    for length, wanted in ((1, {prepared(1): 1}), (2, {}), (3, {prepared(1): 2})):
        fs = EMPTY.open()
        replay(fs, records(*made[:length]))
        assert held(fs) == wanted


@pytest.mark.parametrize("place", [layout.queue_path(QUEUE), layout.range_path(QUEUE, 1)])
def test_what_stands_for_a_directory_is_kept_aside_whatever_crash_comes(place: str) -> None:
    leading = {path: content for path, content in at().nodes.items() if not path.startswith(f"{place}/")}
    tree, made = Tree({**leading, place: b"no directory"}), records(arrival(1))
    for crash_after in count():
        fs = tree.open(crash_after)
        with suppress(Crashed):
            replay(fs, made)
            fs.sync_all()
        for left in (fs.tree_after_kill(), *fs.trees_after_crash(limit=64, seed=crash_after)):
            again = left.open()
            replay(again, made)
            assert again.read(path_of(1, 1)) == b"".join(block(1))
            assert b"no directory" in again.tree_after_kill().nodes.values()
        if not fs.crashed:
            assert crash_after > 5
            break


# Watermarks


def arrival(seq: int) -> Made:
    made = Made(change.CoreStep.ONE_PHASE, "x")
    made.put(path_of(seq, seq), *block(seq))
    return made


def watermark(tree: Tree, *made: Made) -> bytes:
    fs = tree.open()
    replay(fs, records(*made))
    path = layout.watermark_path(QUEUE)
    return fs.read(path) if fs.exists(path) else b""


def with_watermark(content: bytes) -> Tree:
    nodes = {**EMPTY.nodes, layout.queue_path(QUEUE): None, layout.watermark_path(QUEUE): content}
    return Tree(nodes)


def test_no_number_that_was_given_out_is_given_out_again() -> None:
    line = layout.format_watermark
    assert watermark(with_watermark(line(Watermark(3, 4))), arrival(9)) == line(Watermark(3, 9))
    assert watermark(with_watermark(line(Watermark(3, 4095))), arrival(9)) == line(Watermark(3, 4095))
    for lost in (with_watermark(b""), with_watermark(bytes(43)), EMPTY):
        assert watermark(lost, arrival(9), arrival(8)) == line(Watermark(0, 9))


def test_a_removal_tells_nothing_of_the_numbers_that_were_given_out() -> None:
    taken = Made(change.CoreStep.COMMIT, "x")
    taken.drop(path_of(2, 2))
    for lost in (with_watermark(b""), EMPTY):
        assert watermark(lost, taken) == b""


def test_a_damaged_watermark_is_left_for_those_who_quarantine_it() -> None:
    assert watermark(with_watermark(b"damaged"), arrival(9)) == b"damaged"


# What a record says


def test_a_record_tells_its_branch_and_its_paths() -> None:
    made = Made(change.CoreStep.COMMIT, "1.abc.")
    made.put(prepared(1), *block(1))
    made.move("a", "b")
    made.drop("c")
    (record,) = records(made)
    assert change.name_of(record) == "1.abc."
    assert change.paths_of(record) == [prepared(1), "a", "b", "c"]


def test_bodies_are_checked_each_with_its_own_checksum() -> None:
    made = Made(change.CoreStep.PREPARE, "x")
    for number in (1, 2, 3):
        made.put(prepared(number), *block(number, size=number - 1))
    entry = made.entry()
    assert change.is_valid(record_of(entry))
    assert [bytes(body) for body in entry.bodies] == [b"2", b"3,"]
    for body in (b"2", b"2x", b"x3,", b"23,,", b"3,2"):
        assert not change.is_valid(Record(0, entry.kind, entry.meta, memoryview(body)))


@pytest.mark.parametrize("meta", [b"", b"\xc1", b"\x01", b"\x93\x01\x02\x03", b"\x92\xa1x\x01", b"\x92\xa1x\x90extra"])
def test_a_record_that_says_nothing_is_not_sound(meta: bytes) -> None:
    assert not change.is_valid(Record(0, 1, meta, memoryview(b"")))
