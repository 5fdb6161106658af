"""The file system that forgets forgets what it should, keeps what it must, and is otherwise like a real one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem

START = Tree({"a": None, "b": None, "a/old": b"old!"})


def worlds(fs: ForgetfulFileSystem, limit: int = 1 << 10) -> set[frozenset[tuple[str, bytes | None]]]:
    """The files that a crash may leave, beside the directories of the start."""
    return {tree.key() - {("a", None), ("b", None)} for tree in fs.trees_after_crash(limit)}


def world(**files: bytes | None) -> frozenset[tuple[str, bytes | None]]:
    return frozenset((path.replace("_", "/"), content) for path, content in files.items())


def test_it_is_the_port() -> None:
    fs: FileSystem = ForgetfulFileSystem()
    assert fs.list("") == []


def test_a_new_file_may_be_missing_or_torn_until_both_are_synced() -> None:
    fs = START.open()
    fs.create("b/new", [b"ab", b"cd"])
    torn = [world(a_old=b"old!", b_new=content) for content in (b"abcd", b"", b"ab", bytes(4))]
    assert worlds(fs) == {world(a_old=b"old!"), *torn}
    fs.sync_data("b/new")
    assert worlds(fs) == {world(a_old=b"old!"), world(a_old=b"old!", b_new=b"abcd")}
    fs.sync_dir("b")
    assert worlds(fs) == {world(a_old=b"old!", b_new=b"abcd")}


CHANGES: list[Callable[[ForgetfulFileSystem], object]] = [
    lambda fs: fs.write_at("a/old", 1, [b"LD"]),
    lambda fs: fs.create("b/new", [b"ab"]),
    lambda fs: fs.sync_data("a/old"),
    lambda fs: fs.rename("a/old", "b/moved"),
    lambda fs: fs.sync_dir("b"),
    lambda fs: fs.make_dir("b/c"),
    lambda fs: fs.write_at("b/moved", 0, [b"anew"]),
    lambda fs: fs.sync_all(),
    lambda fs: fs.unlink("b/moved"),
]


@pytest.mark.parametrize("played", range(len(CHANGES) + 1))
def test_a_copy_and_what_it_is_a_copy_of_go_on_alone(played: int) -> None:
    fs, other = START.open(), START.open()
    for change in CHANGES[:played]:
        change(fs)
        change(other)
    copy, left = fs.copy(), worlds(other)
    assert worlds(copy) == left
    assert copy.tree_after_kill() == other.tree_after_kill()
    for change in CHANGES[played:]:
        change(fs)
    assert worlds(copy) == left
    copy.survive_kill()
    whole = worlds(fs)
    for change in CHANGES[played:]:
        change(copy)
        change(other)
    assert worlds(copy) == worlds(other) == worlds(fs) == whole


def test_a_rename_leaves_a_file_in_one_place_or_both() -> None:
    fs = START.open()
    fs.rename("a/old", "b/new")
    before, both, after = world(a_old=b"old!"), world(a_old=b"old!", b_new=b"old!"), world(b_new=b"old!")
    assert worlds(fs) == {before, both, after}
    fs.sync_dir("b")
    assert worlds(fs) == {both, after}


def test_a_file_that_takes_the_old_name_of_another_loses_nothing() -> None:
    fs = START.open()
    fs.rename("a/old", "b/new")
    fs.create("a/old", [b"next"])
    fs.unlink("a/old")
    fs.create("b/third", [b"last"])
    fs.rename("b/third", "a/old")
    assert all(b"old!" in {content for _, content in left} for left in worlds(fs))
    assert world(a_old=b"last", b_new=b"old!") in worlds(fs)


def test_the_sync_of_the_source_alone_may_lose_a_file() -> None:
    fs = START.open()
    fs.rename("a/old", "b/new")
    fs.sync_dir("a")
    assert worlds(fs) == {world(), world(b_new=b"old!")}


def test_a_removed_name_may_be_back() -> None:
    fs = START.open()
    fs.unlink("a/old")
    fs.remove_dir("a")
    assert {tree.key() for tree in fs.trees_after_crash()} == {
        frozenset({("b", None)}),
        frozenset({("a", None), ("b", None)}),
        frozenset({("a", None), ("b", None), ("a/old", b"old!")}),
    }


def test_a_directory_needs_the_sync_of_its_parent() -> None:
    fs = START.open()
    fs.make_dir("b/c")
    fs.create("b/c/new", [b""])
    fs.sync_dir("b/c")
    assert worlds(fs) == {world(a_old=b"old!"), world(a_old=b"old!", b_c=None, b_c_new=b"")}
    fs.sync_dir("b")
    assert worlds(fs) == {world(a_old=b"old!", b_c=None, b_c_new=b"")}


def test_a_rename_into_a_new_directory_loses_nothing() -> None:
    fs = START.open()
    fs.make_dir("b/c")
    fs.rename("a/old", "b/c/new")
    assert all(any(content == b"old!" for _, content in left) for left in worlds(fs))


@pytest.mark.parametrize("synced", ["a", "b", "b/c"])
def test_a_directory_that_is_renamed_is_in_one_place(synced: str) -> None:
    """Here within a new one, and in the place of one that was renamed before."""
    fs = Tree({"a": None, "b": None, "a/d": None, "a/d/old": b"old!", "b/d": None, "b/d/new": b"new!"}).open()
    fs.make_dir("b/c")
    fs.rename("a/d", "b/c/d")
    fs.rename("b/d", "a/d")

    def places() -> set[tuple[str, ...]]:
        found = (dict(tree.key()) for tree in fs.trees_after_crash(1 << 10))
        return {tuple(sorted(path for path, content in one.items() if content)) for one in found}

    old, between, new = ("a/d/old", "b/d/new"), ("b/c/d/old", "b/d/new"), ("a/d/new", "b/c/d/old")
    assert places() == {old, between, new}
    fs.sync_dir(synced)
    assert places() == ({between, new} if synced == "b/c" else {new})


def test_what_is_overwritten_is_old_or_new() -> None:
    fs = START.open()
    fs.write_at("a/old", 0, [b"new"])
    fs.write_at("b/new", 0, [b"x"])
    old, new = {("a/old", b"old!")}, {("a/old", b"new!")}
    added: list[set[tuple[str, bytes | None]]] = [set(), {("b/new", b"")}, {("b/new", b"x")}]
    assert worlds(fs) == {frozenset({*kept, *more}) for kept in (old, new) for more in added}
    fs.sync_data("a/old")
    fs.sync_data("b/new")
    fs.sync_dir("b")
    assert worlds(fs) == {world(a_old=b"new!", b_new=b"x")}


def test_a_sample_holds_the_extremes_and_is_the_same_each_time() -> None:
    fs = START.open()
    for number in range(12):
        fs.create(f"b/{number}", [b"content"])
    sample = [tree.key() for tree in fs.trees_after_crash(500)]
    assert len(sample) == len(set(sample)) >= 500
    assert sample == [tree.key() for tree in fs.trees_after_crash(500)]
    whole = fs.tree_after_kill().key()
    assert {START.key(), whole, whole - {("b/3", b"content")}, START.key() | {("b/3", b"")}} <= set(sample)


def test_nothing_happens_after_the_crash() -> None:
    fs = START.open(crash_after=1)
    fs.unlink("a/old")
    assert fs.list("a") == []
    with pytest.raises(Crashed):
        fs.sync_dir("a")
    with pytest.raises(Crashed):
        fs.list("a")
    assert len(worlds(fs)) == 2


def perform(fs: FileSystem, dice: random.Random) -> object:
    """One call that the engine could make, and what it returned or raised."""
    files = ["a/x", "a/y", "b/x", "b/y", "b/c/x", "missing/x"]
    path, other, directory = dice.choice(files), dice.choice(files), dice.choice(["a", "b", "b/c", "missing"])
    content = dice.randbytes(dice.choice([1, 7, 19, 511, 1500, 9000]))
    calls: list[Callable[[], object]] = [
        lambda: fs.make_dir(directory),
        lambda: fs.remove_dir(directory),
        lambda: fs.sync_dir(directory),
        lambda: (sorted(fs.list(directory)), fs.exists(directory), fs.is_dir(directory)),
        lambda: fs.create(path, [content[:5], content[5:]]),
        lambda: fs.write_at(path, dice.choice([0, 5, 512, 4000]), [content[:5], content[5:]]),
        lambda: fs.sync_file(path),
        lambda: fs.sync_data(path),
        fs.sync_all,
        lambda: fs.rename(path, other),
        lambda: fs.unlink(path),
        lambda: (fs.read(path, dice.choice([None, 3])), fs.size(path), fs.is_dir(path)),
    ]
    try:
        return dice.choice(calls)()
    except OSError as error:
        return type(error), error.errno


@pytest.mark.parametrize("seed", range(20))
def test_without_a_crash_it_is_like_a_real_one(tmp_path: Path, seed: int) -> None:
    real, forgetful = DirectoryFileSystem(tmp_path), ForgetfulFileSystem()
    for fs in (real, forgetful):
        fs.make_dir("a")
        fs.make_dir("b")
    for step in range(200):
        answers = [perform(fs, random.Random(f"{seed} {step}")) for fs in (real, forgetful)]
        assert answers[0] == answers[1], step
    real.close()
