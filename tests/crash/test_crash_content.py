"""Overwrites in place are torn sector by sector: each is old or new, whatever became of the others."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from support.forgetful import ForgetfulFileSystem, Tree
from support.torn import EVERY, TornContent
from xaqueue.testing.content import PAGE_SECTORS, SECTOR_BYTES, fingerprint

SEGMENT_BYTES = 64 * 1024
PAGE_BYTES = PAGE_SECTORS * SECTOR_BYTES
OLD = b"o" * SEGMENT_BYTES
SPACE = Tree({"journal": None, "journal/1": OLD})


def contents(fs: ForgetfulFileSystem, path: str, limit: int = 1 << 10) -> set[bytes | None]:
    return {tree.nodes.get(path) for tree in fs.trees_after_crash(limit)}


def sectors(data: bytes) -> list[bytes]:
    return [data[start : start + SECTOR_BYTES] for start in range(0, len(data), SECTOR_BYTES)]


def mixtures(*versions: bytes) -> set[bytes]:
    """Every choice of a version of each sector."""
    choices = [{*known} for known in zip(*map(sectors, versions), strict=True)]
    return {b"".join(choice) for choice in itertools.product(*choices)}


def overwritten(old: bytes, offset: int, data: bytes) -> bytes:
    return old[:offset] + data + old[offset + len(data) :]


def test_each_sector_of_an_overwrite_is_old_or_new() -> None:
    fs = SPACE.open()
    fs.write_at("journal/1", 500, [b"n" * 600, b"m" * 300])
    new = overwritten(OLD, 500, b"n" * 600 + b"m" * 300)
    assert fs.read("journal/1") == new
    assert contents(fs, "journal/1") == mixtures(OLD, new)
    assert len(mixtures(OLD, new)) == 8
    fs.sync_data("journal/1")
    assert contents(fs, "journal/1") == {new}


def test_several_overwrites_leave_any_mixture_of_them() -> None:
    fs = SPACE.open()
    fs.write_at("journal/1", 0, [b"1" * 700])
    fs.write_at("journal/1", 100, [b"2" * 500])
    once = overwritten(OLD, 0, b"1" * 700)
    twice = overwritten(once, 100, b"2" * 500)
    assert contents(fs, "journal/1") == mixtures(OLD, once, twice)


def test_a_sync_between_them_makes_the_first_one_whole() -> None:
    fs = SPACE.open()
    fs.write_at("journal/1", 0, [b"1" * 700])
    fs.sync_data("journal/1")
    fs.write_at("journal/1", 100, [b"2" * 500])
    once = overwritten(OLD, 0, b"1" * 700)
    assert contents(fs, "journal/1") == mixtures(once, overwritten(once, 100, b"2" * 500))


def test_what_is_written_and_is_the_same_is_no_choice() -> None:
    fs = SPACE.open()
    fs.write_at("journal/1", 0, [OLD])
    assert len(list(fs.trees_after_crash())) == 1


def test_a_long_overwrite_is_torn_in_each_way_that_has_a_name_and_in_others() -> None:
    fs = SPACE.open()
    fs.write_at("journal/1", 512, [b"n" * (SEGMENT_BYTES - 1024)])
    new, end = fs.read("journal/1"), SEGMENT_BYTES - 512
    found = contents(fs, "journal/1")
    assert found >= {OLD, new}

    def cut(first: int, last: int, now: bytes = new, lost: bytes = OLD) -> bytes:
        return now[:first] + lost[first:last] + now[last:]

    one_sector_lost = {new[:at] + OLD[at : at + 512] + new[at + 512 :] for at in range(512, end, 512)}
    assert cut(1024, end) in found, "the first sector alone"
    assert cut(512, end - 512) in found, "the last sector alone"
    assert cut(end - 512, end) in found, "all but the last"
    assert cut(512, 1024) in found, "all but the first"
    assert len(one_sector_lost & found) >= 3, "one in the middle as well"
    assert cut(PAGE_BYTES, end) in found, "up to the first boundary of a page"
    assert cut(PAGE_BYTES * 15, end) in found, "up to the last boundary of a page"
    assert cut(PAGE_BYTES * 8, PAGE_BYTES * 9) in found, "a page in the middle is lost"
    assert len(found) > 500, "the sample has others"
    assert all({*sectors(data)} <= {*sectors(OLD), *sectors(new)} for data in found if data)
    by_pages = [d for d in found if d and all(len({*d[at : at + PAGE_BYTES]}) == 1 for at in range(4096, 61440, 4096))]
    assert len(by_pages) > 50, "some of them by whole pages"


def test_a_file_that_grows_may_be_shorter_or_have_holes() -> None:
    fs = Tree({"file": b"o" * 700}).open()
    fs.write_at("file", 700, [b"n" * 1000])
    new, old = b"o" * 700 + b"n" * 1000, b"o" * 700
    assert contents(fs, "file") == {
        old,
        new[:1024],
        new[:1536],
        new,
        old.ljust(1024, b"\0") + new[1024:1536],
        old.ljust(1024, b"\0") + new[1024:],
        old.ljust(1536, b"\0") + new[1536:],
        new[:1024].ljust(1536, b"\0") + new[1536:],
    }


def test_a_write_behind_the_end_leaves_zeros_between() -> None:
    fs = Tree({"file": b"old"}).open()
    fs.write_at("file", 1024, [b"new"])
    assert fs.read("file") == b"old".ljust(1024, b"\0") + b"new"
    assert contents(fs, "file") >= {b"old", fs.read("file")}


def test_a_file_that_overwriting_made_is_empty_shorter_or_whole() -> None:
    fs = SPACE.open()
    fs.write_at("journal/2", 0, [b"n" * 600])
    new = b"n" * 600
    assert contents(fs, "journal/2") == {None, b"", new[:512], new, bytes(512) + new[512:]}


def test_a_new_file_is_torn_by_sectors_too_and_so_are_its_overwrites() -> None:
    fs = SPACE.open()
    fs.create("journal/2", [b"1" * 512, b"2" * 512])
    one, two = b"1" * 512, b"2" * 512
    zeros = bytes(512)
    left = {b"", zeros, zeros + zeros, one, one + zeros, zeros + two, one + two}
    assert contents(fs, "journal/2") == {None, *left}
    fs.write_at("journal/2", 512, [b"3" * 512])
    three = b"3" * 512
    assert contents(fs, "journal/2") == {None, *left, one + three, zeros + three}
    fs.sync_data("journal/2")
    assert contents(fs, "journal/2") == {None, one + three}, "its name is another matter"


def test_a_new_segment_is_torn_in_each_way_that_has_a_name() -> None:
    fs = SPACE.open()
    fs.create("journal/2", [OLD])
    found = contents(fs, "journal/2", 0)
    assert found >= {OLD, None, b"", bytes(SEGMENT_BYTES), OLD[: SEGMENT_BYTES // 2], OLD[:512], OLD[:-512]}
    assert OLD[:512].ljust(SEGMENT_BYTES, b"\0") in found
    assert bytes(512) + OLD[512:] in found


def test_sync_all_settles_everything() -> None:
    fs = SPACE.open()
    fs.make_dir("a")
    fs.create("a/new", [b"x" * 2000])
    fs.write_at("journal/1", 300, [b"n" * 5000])
    fs.rename("journal/1", "a/2")
    fs.unlink("a/new")
    assert len(list(fs.trees_after_crash())) > 100
    fs.sync_all()
    assert [tree.key() for tree in fs.trees_after_crash()] == [fs.tree_after_kill().key()]


def test_a_recycled_file_keeps_what_it_holds_under_its_new_name() -> None:
    fs = SPACE.open()
    fs.write_at("journal/1", 0, [b"header".ljust(512, b"\0")])
    headed = fs.read("journal/1")
    fs.rename("journal/1", "journal/2")
    assert fs.read("journal/2")[512:] == OLD[512:], "old records stand behind the end"
    places = {(tree.nodes.get("journal/1"), tree.nodes.get("journal/2")) for tree in fs.trees_after_crash()}
    states = (OLD, headed)
    assert places == {one for data in states for one in ((data, None), (data, data), (None, data))}
    fs.sync_data("journal/2")
    fs.sync_dir("journal")
    fs.write_at("journal/2", 512, [b"r" * 100])
    assert contents(fs, "journal/2") == {headed, fs.read("journal/2")}
    assert contents(fs, "journal/1") == {None}


def test_a_file_in_two_places_is_one_file() -> None:
    fs = SPACE.open()
    fs.rename("journal/1", "journal/2")
    (both,) = [tree for tree in fs.trees_after_crash() if len(tree.nodes) == 3]
    fs = both.open()
    fs.rename("journal/1", "journal/2")
    assert fs.list("journal") == ["1", "2"], "as rename(2) says of two names of one file"
    fs.write_at("journal/1", 0, [b"new"])
    assert fs.read("journal/2") == fs.read("journal/1") == overwritten(OLD, 0, b"new")
    assert all(tree.nodes["journal/1"] == tree.nodes["journal/2"] for tree in fs.trees_after_crash())
    fs.unlink("journal/1")
    assert fs.read("journal/2") == overwritten(OLD, 0, b"new")


def test_trees_are_compared_by_all_their_content() -> None:
    one, other = b"x" * SEGMENT_BYTES, b"x" * (SEGMENT_BYTES - 1) + b"y"
    assert Tree({"a": one}).key() == Tree({"a": bytes(bytearray(one))}).key()
    assert Tree({"a": one}).key() != Tree({"a": other}).key()
    assert len(fingerprint(one)) < 32


def perform(content: TornContent, history: list[bytes], dice: random.Random) -> None:
    """One write or sync; the history is what the file was at each moment since its last sync."""
    if dice.random() < 0.2:
        content.sync()
        history[:] = [content.now]
        return
    offset = dice.randrange(len(content.now) + 600)
    content.overwrite(offset, dice.randbytes(dice.choice([1, 40, 600, 5000, 30_000])))
    history.append(content.now)


def legal(left: bytes, history: Sequence[bytes], new: bool) -> bool:
    """Whether each sector is one that the file had, or zeros where it had none at some moment."""
    known = [{data[at : at + SECTOR_BYTES] for data in history} for at in range(0, len(left), SECTOR_BYTES)]
    for versions, sector in zip(known, sectors(left), strict=True):
        missing = new or any(len(version) < SECTOR_BYTES for version in versions)
        ended = {version.ljust(SECTOR_BYTES, b"\0")[: len(sector)] for version in versions if missing}
        if sector not in versions | ended and not (missing and sector.strip(b"\0") == b""):
            return False
    return True


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_left_is_of_sectors_that_were_written(seed: int) -> None:
    dice = random.Random(seed)
    start = dice.randbytes(dice.randrange(3000))
    new = seed % 3 == 0
    content = TornContent.new(start) if new else TornContent.durable(start)
    history = [b"", start] if new else [start]
    for _ in range(12):
        perform(content, history, dice)
        new = new and len(history) > 1
        variants = content.variants
        assert variants[0] == content.now == history[-1]
        assert len({*variants}) == len(variants)
        assert len(variants) <= 400
        chance = {content.by_chance(dice) for _ in range(20)}
        assert all(legal(left, history, new) for left in {*variants, *chance} if left != start[: len(start) // 2])
        assert not content.all_listed or (chance <= {*variants} and len(variants) <= EVERY + 1)
