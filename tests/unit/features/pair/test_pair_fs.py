"""What an owner of a pair makes is what it would make without; and what it does late finds nothing to rename."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from support.bare_space import FaultyFileSystem
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem, discard, replace_file
from xaqueue.errors import ResourceFailed
from xaqueue.features.pair.pair_fs import OWN, PairFileSystem, retire

ABOVE = "active"


def pair(root: Path, token: str = "1", check: Callable[[], object] = lambda: None) -> PairFileSystem:
    (root / ABOVE).mkdir(exist_ok=True)
    fs = DirectoryFileSystem(root, keep_unsynced=False)
    return PairFileSystem(fs, ABOVE, token, check, lambda path: path.startswith("journal/"))


def own(root: Path) -> list[str]:
    return sorted(os.listdir(root / ABOVE / f"{OWN}1"))  # noqa: PTH208


def tree(root: Path) -> dict[str, bytes]:
    files = [path for path in root.rglob("*") if path.is_file() and OWN not in str(path)]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def work(fs: FileSystem) -> None:
    """All kinds of calls."""
    fs.make_dir("d")
    fs.make_dir("journal")
    fs.create("d/made", [b"a", b"b"])
    fs.link("d/made", "d/linked")
    fs.set_modified_ns("d/made", 5_000)
    fs.write_at("d/mark", 0, [b"0123456789"])
    fs.write_at("d/mark", 3, [b"ab", b"c"])
    fs.write_at("d/hole", 4, [b"x"])
    fs.write_at("journal/1.log", 2, [b"x"])
    fs.create("d/moved", [b"c"])
    fs.rename("d/moved", "d/there")
    fs.create("d/gone", [b"d"])
    fs.unlink("d/gone")
    replace_file(fs, "owner", b"me")
    replace_file(fs, "owner", b"you")
    fs.create("active/.replay", [b"anew"])
    fs.set_modified_ns("active/.replay", 7_000)
    assert fs.exists("active/.replay")
    fs.rename("active/.replay", "d/made")
    fs.link("d/there", "active/.replay")
    fs.rename("active/.replay", "d/there")  # which does nothing
    discard(fs, "active/.replay")
    fs.make_dir("e")
    fs.remove_dir("e")
    fs.sync_data("d/mark")
    fs.sync_all()


def test_the_same_comes_of_the_same_calls(tmp_path: Path) -> None:
    for name in ("plain", "pair"):
        (tmp_path / name / ABOVE).mkdir(parents=True)
    work(DirectoryFileSystem(tmp_path / "plain"))
    work(pair(tmp_path / "pair"))
    assert tree(tmp_path / "pair") == tree(tmp_path / "plain")
    assert (tmp_path / "pair/d/made").stat().st_mtime_ns == 7_000
    assert own(tmp_path / "pair") == []


@pytest.mark.parametrize("make", ["create", "link"])
def test_a_name_that_is_taken_and_a_directory_that_is_missing(tmp_path: Path, make: str) -> None:
    fs = pair(tmp_path)
    fs.create("first", [b"1"])

    def call(path: str) -> None:
        fs.create(path, [b"2"]) if make == "create" else fs.link("first", path)

    with pytest.raises(FileExistsError):
        call("first")
    with pytest.raises(FileNotFoundError):
        call("d/second")
    assert tree(tmp_path) == {"first": b"1"}
    assert own(tmp_path) == []


def test_what_others_left_of_a_temporary_goes(tmp_path: Path) -> None:
    fs = pair(tmp_path)
    (tmp_path / ".owner.new").write_bytes(b"of an owner that was in no pair")
    assert not fs.exists(".owner.new")
    fs.unlink(".owner.new")
    assert tree(tmp_path) == {}


CHANGES: list[tuple[str, tuple[object, ...]]] = [
    *(("create", ("d/new", [b""])), ("create", (".owner.new", [b""])), ("link", ("d/f", "d/new"))),
    *(("write_at", ("d/f", 0, [b"x"])), ("write_at", ("journal/1.log", 0, [b"x"])), ("rename", ("d/f", "d/new"))),
    ("write_synced", ("journal/1.log", 0, [b"x"])),
    *(("unlink", ("d/f",)), ("make_dir", ("e",)), ("remove_dir", ("empty",)), ("set_modified_ns", ("d/f", 1))),
]


@pytest.mark.parametrize(("name", "arguments"), CHANGES)
def test_whoever_is_the_owner_no_more_changes_nothing(tmp_path: Path, name: str, arguments: tuple[object, ...]) -> None:
    fs = pair(tmp_path)
    for directory in ("d", "empty", "journal"):
        fs.make_dir(directory)
    fs.create("d/f", [b"f"])
    before = tree(tmp_path), sorted(path.name for path in tmp_path.iterdir())

    def refuse() -> None:
        raise ResourceFailed("lost")

    fs.check = refuse
    with pytest.raises(ResourceFailed):
        getattr(fs, name)(*arguments)
    assert (tree(tmp_path), sorted(path.name for path in tmp_path.iterdir())) == before
    assert own(tmp_path) == []


def test_what_comes_late_finds_nothing_to_rename(tmp_path: Path) -> None:
    fs = pair(tmp_path)
    fs.write_at("mark", 0, [b"1"])
    fs.create(".owner.new", [b"old"])
    lower = DirectoryFileSystem(tmp_path)
    (made,) = own(tmp_path)
    retire(lower, ABOVE, lambda: None)
    (tmp_path / "mark").write_bytes(b"2")
    with pytest.raises(FileNotFoundError):
        lower.rename(f"{ABOVE}/{OWN}1/{made}", "owner")
    with pytest.raises(FileNotFoundError):
        fs.create("new", [b""])
    with pytest.raises(FileNotFoundError):
        fs.write_at("mark", 0, [b"3"])
    assert tree(tmp_path) == {"mark": b"2"}


def test_what_is_made_while_its_directory_is_removed_goes_as_well(tmp_path: Path) -> None:
    fs = pair(tmp_path)
    fs.create(".owner.new", [b""])
    lower = FaultyFileSystem(tmp_path)
    lower.meanwhile["unlink", ABOVE] = lambda: fs.create(".counters.new", [b""])
    retire(lower, ABOVE, lambda: None)
    assert os.listdir(tmp_path / ABOVE) == []  # noqa: PTH208


def test_who_is_overtaken_retires_nobody(tmp_path: Path) -> None:
    """The names that it has read may be those of the next owner."""
    pair(tmp_path).create(".owner.new", [b""])

    def lost() -> None:
        raise ResourceFailed("lost")

    with pytest.raises(ResourceFailed):
        retire(DirectoryFileSystem(tmp_path), ABOVE, lost)
    assert len(own(tmp_path)) == 1


def test_other_names_stay(tmp_path: Path) -> None:
    fs = pair(tmp_path)
    fs.create(f"{ABOVE}/block.001", [b""])
    retire(DirectoryFileSystem(tmp_path), ABOVE, lambda: None)
    assert os.listdir(tmp_path / ABOVE) == ["block.001"]  # noqa: PTH208
    retire(DirectoryFileSystem(tmp_path), "missing", lambda: None)


@pytest.mark.parametrize("name", ["streams/queue=orders.new", "d/.orders.new", "new", ".new/x"])
def test_what_only_has_the_name_of_a_temporary_stands_where_it_is_to(tmp_path: Path, name: str) -> None:
    """As the record of a stream does that consumes queue orders.new."""
    fs = pair(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    fs.create(name, [b"1"])
    assert fs.exists(name)
    assert fs.read(name) == b"1"
    fs.rename(name, "moved")
    fs.link("moved", name)
    fs.unlink(name)
    assert tree(tmp_path) == {"moved": b"1"}
