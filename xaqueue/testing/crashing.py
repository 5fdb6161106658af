"""A file system in memory whose power goes at one of its calls.

Calls that change or sync something are counted; at the chosen one the power goes, before anything of it is done. From
then on every call raises ``Crashed``. What a crash may have left is in ``forgetful``. Safe for threads: one call at a
time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from xaqueue.testing.forgetful import ForgetfulFileSystem, Tree

CHANGES = (
    *("create", "write_at", "set_modified_ns", "rename", "link", "unlink", "make_dir", "remove_dir"),
    *("sync_file", "sync_data", "sync_dir", "sync_all"),
)
LOOKS = ("read", "size", "modified_ns", "list", "is_dir", "exists", "hold_dir", "room")


class Crashed(BaseException):
    """The power is gone. No ``except Exception`` absorbs it."""


class CrashingFileSystem(ForgetfulFileSystem):
    """``crash_after``: how many calls that change or sync something are still done."""

    error: Callable[[str], BaseException] = Crashed

    def __init__(self, crash_after: int | None = None, tree: Tree | None = None) -> None:
        self.lock = threading.RLock()
        self.crash_after = crash_after
        self.calls = 0
        self.crashed = False
        self.before_call: Callable[[], object] = lambda: None
        """Called before each call that changes or syncs something, without the lock: it may look, or take a copy."""
        super().__init__(tree)

    def _call(self) -> None:
        self._look()
        if self.crash_after is not None and self.calls >= self.crash_after:
            self.crashed = True
            raise self.error(f"before call {self.calls + 1}")
        self.calls += 1

    def _look(self) -> None:
        if self.crashed:
            raise self.error("nobody is there any more")


def _watched(method: Callable[..., Any], watch: str) -> Callable[..., Any]:
    @wraps(method)
    def call(fs: CrashingFileSystem, *arguments: Any, **named: Any) -> Any:
        if watch == "_call":
            fs.before_call()
        with fs.lock:
            getattr(fs, watch)()
            return method(fs, *arguments, **named)

    return call


for _names, _watch in ((CHANGES, "_call"), (LOOKS, "_look")):
    for _name in _names:
        setattr(CrashingFileSystem, _name, _watched(getattr(ForgetfulFileSystem, _name), _watch))
