"""A file system in memory of which one call fails: with no room until there is some again, or with EIO once."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from support.forgetful import ForgetfulFileSystem
from xaqueue.testing.crashing import CHANGES
from xaqueue.testing.forgetful import Tree

GROWS = frozenset({"create", "rename", "link", "make_dir"})
"""What finds no room, once there was none at the chosen call."""


class FailingFileSystem(ForgetfulFileSystem):
    """Nothing of a call that fails is done. ``struck``: the calls that have failed, with their paths."""

    def __init__(self, tree: Tree | None = None) -> None:
        self.fail_at: int | None = None
        """How many more calls succeed."""
        self.fails_with = errno.EIO
        self.fails_in = ""
        """Only calls count whose path has this."""
        self.struck: list[tuple[str, object]] = []
        self.calling = ""
        """The call of now, which changes or syncs something."""
        super().__init__(None, tree)

    def fail(self, at: int, number: int, *, within: str = "") -> None:
        self.fail_at, self.fails_with, self.fails_in = at, number, within

    def heal(self) -> None:
        self.fail_at = None

    def strike(self, name: str, path: object) -> None:
        if self.fail_at is None or self.fails_in not in f"{path}":
            return
        self.fail_at -= 1
        lasts = self.fails_with == errno.ENOSPC and name in GROWS
        if self.fail_at == -1 or (self.fail_at < -1 and lasts):
            self.struck.append((name, path))
            raise OSError(self.fails_with, os.strerror(self.fails_with), path)


def _failing(name: str) -> Callable[..., Any]:
    def call(fs: FailingFileSystem, *arguments: Any, **named: Any) -> Any:
        fs.calling = name
        fs.strike(name, arguments[0] if arguments else "")
        return getattr(ForgetfulFileSystem, name)(fs, *arguments, **named)

    return call


for _name in CHANGES:
    setattr(FailingFileSystem, _name, _failing(_name))
