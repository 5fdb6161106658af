"""An overlay is, call by call, what a directory would be, and the directory below it stays as it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem
from xaqueue.offline.overlay import Overlay

PLACES = ["", "a", "b", "a/c"]
PATHS = [f"{place}/{name}".lstrip("/") for place in PLACES for name in ("a", "b", "c", "1", "2")]
BIG = 9_000


def fill(root: Path) -> None:
    for place in ("a", "a/c", "b"):
        (root / place).mkdir(parents=True)
        (root / place / "1").write_bytes(place.encode() * 3)
    (root / "2").write_bytes(b"top" * 1000)


def calls(dice: random.Random) -> Iterator[tuple[str, tuple[Any, ...]]]:
    while True:
        one, other = dice.choice(PATHS), dice.choice(PATHS)
        if other.startswith(one + "/") or one.startswith(other + "/"):
            other = one  # nobody moves a directory into itself
        yield dice.choice(
            [
                ("create", (one, [b"new", b"content"])),
                ("write_at", (one, dice.choice([0, 2, BIG]), [b"over", b"!"])),
                ("read", (one,)),
                ("read", (one, 4, 2)),
                ("size", (one,)),
                ("set_modified_ns", (one, dice.randrange(10**18))),
                ("rename", (one, other)),
                ("link", (one, other)),
                ("unlink", (one,)),
                ("make_dir", (one,)),
                ("remove_dir", (one,)),
                ("list", (one,)),
                ("is_dir", (one,)),
                ("exists", (one,)),
                ("sync_dir", (one,)),
            ]
        )


def outcome(call: Callable[..., Any], arguments: tuple[Any, ...]) -> object:
    try:
        result = call(*arguments)
    except OSError as error:
        return error.errno
    return sorted(result) if isinstance(result, list) else result


def all_of(fs: FileSystem, path: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name in fs.list(path):
        below = f"{path}/{name}".lstrip("/")
        found[below] = None if fs.is_dir(below) else fs.read(below)
        found |= all_of(fs, below) if fs.is_dir(below) else {}
    return found


@pytest.mark.parametrize("seed", range(40))
def test_it_is_what_the_directory_would_be(tmp_path: Path, seed: int) -> None:
    for name in ("below", "beside"):
        (tmp_path / name).mkdir()
        fill(tmp_path / name)
    below = DirectoryFileSystem(tmp_path / "below", keep_unsynced=False)
    overlay, real = Overlay(below), DirectoryFileSystem(tmp_path / "beside", keep_unsynced=False)
    before = all_of(below)
    for _, (call, arguments) in zip(range(300), calls(random.Random(seed)), strict=False):
        assert outcome(getattr(overlay, call), arguments) == outcome(getattr(real, call), arguments), (call, arguments)
        real.close()  # descriptors that it keeps would lead to where a directory has gone
    assert all_of(overlay) == all_of(real)
    assert all_of(below) == before
    assert before != all_of(real)
    overlay.close()
    real.close()


def test_a_file_keeps_its_time_under_a_new_name(tmp_path: Path) -> None:
    fill(tmp_path)
    overlay = Overlay(DirectoryFileSystem(tmp_path, keep_unsynced=False))
    was = overlay.modified_ns("2")
    overlay.rename("2", "b/2")
    assert overlay.modified_ns("b/2") == was
    overlay.set_modified_ns("b/2", 5)
    assert overlay.modified_ns("b/2") == 5
    overlay.write_at("b/2", 0, [b"x"])
    assert overlay.modified_ns("b/2") >= was
