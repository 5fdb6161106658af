"""How a file can be damaged, and the proof that it was set aside: shared by the tests of each directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from support.bare_space import BareSpace
from xaqueue.offline.check import check

LARGE = b"L" * 200_000
"""A body that is longer than what is read of a file when a space is opened."""

Damage = Callable[[Path], object]


def flip(path: Path, offset: int, bit: int = 3) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def _replace(path: Path, make: Callable[[], None]) -> None:
    path.unlink()
    make()


def _directory(path: Path) -> None:
    _replace(path, path.mkdir)
    (path / "inside").write_bytes(b"kept")


DAMAGES: dict[str, Damage] = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "one byte": lambda path: path.write_bytes(b"X"),
    "flipped at its begin": lambda path: flip(path, 0),
    "flipped at its end": lambda path: flip(path, -1),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "foreign": lambda path: path.write_bytes(b"#!/bin/sh\necho no block\n" * 10),
    "a directory": _directory,
    "a dangling link": lambda path: _replace(path, lambda: path.symlink_to("nowhere")),
    "a looping link": lambda path: _replace(path, lambda: path.symlink_to(path.name)),
}
damaged = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())


def fingerprint(path: Path) -> object:
    """What a file is, so that it can be shown to be the same elsewhere."""
    if path.is_symlink():
        return path.readlink()
    if path.is_dir():
        return sorted(child.name for child in path.iterdir())
    return path.read_bytes()


def harm(bare: BareSpace, path: Path, damage: Damage) -> object:
    """Damages a file of a crashed space; returns what it is now."""
    bare.crash()
    damage(path)
    name = str(path.relative_to(bare.root))
    assert any(name.startswith(finding.path) for finding in check(bare.root)), "the offline check must see it, too"
    return fingerprint(path)


def check_set_aside(bare: BareSpace, path: Path, was: object, *, anew: bool = False) -> None:
    """The file stands in quarantine as it was, its reason beside it, and the report says so. ``anew``: written anew."""
    (target,) = [found for found in bare.quarantined() if fingerprint(found) == was]
    name = str(path.relative_to(bare.root))
    reason = target.with_name(target.name + ".reason").read_text("utf-8")
    assert f"stood at {name}" in reason
    said = [line for line in bare.space.report.quarantined if line.startswith(f"{name}: ")]
    assert len(said) == 1
    assert said[0].removeprefix(f"{name}: ") == reason.splitlines()[0]
    assert os.path.lexists(path) == anew
    assert not path.is_symlink()
