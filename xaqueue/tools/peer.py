"""Whether a directory that two machines share keeps them apart, and shows each at once what the other did.

The same command runs on both. They meet in the directory itself: whoever makes the meeting place is the first, and each
says what it did or saw in a file that is synced and then renamed into its place. So nothing but the storage is used,
and what it holds back makes the other wait, or fails the trial. The first judges and removes the place.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import replace_file
from xaqueue.core.storage.owner_file import FileLock, boot_id
from xaqueue.errors import InvalidArgument
from xaqueue.features.snapshots.store import remove_tree

PLACE = ".xaqueue-iotest-peer"
WAIT_S = 120.0
"""For the other machine, and for each of its answers: a network file system may show names late."""
POLL_S = 0.02
SIZE_BYTES = 64 * 1024

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Peer:
    """What a trial by two machines found; each text says what is wrong, and is empty where nothing is."""

    host: str
    """Of the other one."""
    is_other_machine: bool
    locks: str = ""
    """A lock of one kept the other out until it was released."""
    contents: str = ""
    """What one wrote and synced, the other read, also through a file that it had open."""
    names: str = ""
    """A rename by one showed the other the new name alone."""
    fence: str = ""
    """Whose lock file was replaced by the other saw it by the path."""


def meet(directory: Path, report: Report = lambda _: None, wait_s: float = WAIT_S) -> Peer:
    """Runs this machine's half of the trial. Raises InvalidArgument where nobody comes, or answers; OSError."""
    with closing(DirectoryFileSystem(directory, keep_unsynced=False)) as fs:
        try:
            fs.make_dir(PLACE)
        except FileExistsError:
            with suppress(FileExistsError):
                fs.make_dir(f"{PLACE}/second")
                return _second(_Half(directory / PLACE, "second", "first", wait_s))
            raise InvalidArgument(
                f"two others try {directory} just now; if they do not, an earlier trial was killed: remove "
                f"{directory / PLACE}"
            ) from None
        report(f"waiting for `xaqueue iotest {directory} --peer` on another machine")
        try:
            return _first(_Half(directory / PLACE, "first", "second", wait_s))
        finally:
            remove_tree(fs, PLACE)


class _Half:
    """One side's words, and its waiting for those of the other."""

    def __init__(self, place: Path, me: str, other: str, wait_s: float) -> None:
        self.place = place
        self._me = me
        self._other = other
        self._wait_s = wait_s
        self.fs = DirectoryFileSystem(place, keep_unsynced=False)

    def write(self, name: str, content: bytes) -> None:
        """As a space writes: content, then name, both synced; over whatever has the name."""
        replace_file(self.fs, name, content)

    def say(self, word: str, **facts: Any) -> None:
        self.write(f"{word}.{self._me}", json.dumps(facts).encode())

    def hear(self, word: str) -> dict[str, Any]:
        """What the other says with this word. Raises InvalidArgument once it has not for too long."""
        name, until = f"{word}.{self._other}", time.monotonic() + self._wait_s
        while name not in self.fs.list(""):
            if time.monotonic() > until:
                raise InvalidArgument(
                    f"the other machine did not say {word!r} within {self._wait_s:.0f} s: start the same command on "
                    "both at once, in the same shared directory"
                )
            time.sleep(POLL_S)
        heard: dict[str, Any] = json.loads((self.place / name).read_bytes())
        return heard


def _me() -> dict[str, str]:
    return {"host": socket.gethostname(), "boot": boot_id()}


def _first(half: _Half) -> Peer:
    lock = FileLock(half.place / "lock")
    try:
        lock.acquire()
        half.say("held", **_me())
        tried = half.hear("tried")
        lock.release()
        half.say("released")
        taken = half.hear("taken")["acquired"]
        lock = FileLock(half.place / "lock")
        retried = lock.acquire()
        half.say("retried")
        half.hear("let go")
        found = {
            "locks": _of_locks(tried["acquired"], taken, retried),
            "contents": _contents(half),
            "names": _names(half),
            "fence": _fence(half, lock),
        }
        half.say("result", **found)
        half.hear("seen")
        return Peer(tried["host"], tried["boot"] != boot_id(), **found)
    finally:
        lock.release()
        half.fs.close()


def _of_locks(tried: bool, taken: bool, retried: bool) -> str:
    if tried or retried:
        return "both machines had the lock at once: two processes could own one space"
    return "" if taken else "the lock was refused after its owner had released it"


def _contents(half: _Half) -> str:
    content = os.urandom(SIZE_BYTES)
    half.write("content", content)
    with (half.place / "content").open("rb") as file:
        file.read()  # so that it is in this machine's memory
        half.say("written")
        read = half.hear("read")["content"]
        half.say("go on")
        wanted = half.hear("overwritten")["content"]
        file.seek(0)
        seen = file.read().hex(), (half.place / "content").read_bytes().hex()
    if read != content.hex():
        return "the other machine did not read what this one had written and synced"
    if seen != (wanted, wanted):
        return "this machine did not read what the other had overwritten and synced: it showed a stale copy"
    return ""


def _names(half: _Half) -> str:
    half.write("before", b"")
    half.fs.rename("before", "after")
    half.fs.sync_dir("")
    half.say("renamed")
    seen = half.hear("names")["names"]
    return "" if "after" in seen and "before" not in seen else "the other machine did not see a rename as one step"


def _fence(half: _Half, lock: FileLock) -> str:
    half.say("replace")
    number = half.hear("replaced")["inode"]
    found = (half.place / "lock").stat().st_ino
    if found == number and lock.stat().st_ino != number:
        return ""
    return "this machine did not see that the other had put a new lock file in the place of its own"


def _second(half: _Half) -> Peer:
    try:
        heard = half.hear("held")
        lock = FileLock(half.place / "lock")
        try:
            half.say("tried", acquired=lock.acquire(), **_me())
            half.hear("released")
            half.say("taken", acquired=lock.acquire())
            half.hear("retried")
        finally:
            lock.release()
        half.say("let go")
        half.hear("written")
        half.say("read", content=(half.place / "content").read_bytes().hex())
        half.hear("go on")
        content = os.urandom(SIZE_BYTES)
        half.fs.write_at("content", 0, [content])
        half.fs.sync_file("content")
        half.say("overwritten", content=content.hex())
        half.hear("renamed")
        half.say("names", names=half.fs.list(""))
        half.hear("replace")
        half.write("lock", b"")
        half.say("replaced", inode=(half.place / "lock").stat().st_ino)
        result = Peer(heard["host"], heard["boot"] != boot_id(), **half.hear("result"))
        half.say("seen")
        return result
    finally:
        half.fs.close()
