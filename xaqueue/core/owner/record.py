"""Whose a space is: who has it open, or had it last, and which group may read it besides.

The owner file is one line of JSON. The first write makes it this process's; later ones tell how far it is, and how it
ended; whoever comes next reads there what to believe of the directories.

[access] group in queues.toml opens a space to a group. New directories take the group from the one that they are made
in. So the space's directory and the names at its top are given to the group when it is opened; what is older and lies
deeper keeps its rights.
"""

from __future__ import annotations

import grp
import json
import logging
import os
import socket
import stat
import sys
import time
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from xaqueue.core.model import layout
from xaqueue.core.model.format import Format
from xaqueue.core.storage.fs import NO_ROOM
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.layers import OwnerFileSystem
from xaqueue.core.storage.modes import PRIVATE, Modes, for_group
from xaqueue.core.storage.owner_file import OwnerFile, boot_to_close, read_owner_file
from xaqueue.core.storage.regular import READ
from xaqueue.errors import InvalidArgument, SpaceError, SpaceInUse

RECOVERING, READY, READ_ONLY = "recovering", "ready", "read-only"
"""States of an owner."""
NO_GROUP = 2**32 - 1
"""Of chown(2), and more than any group has."""

log = logging.getLogger("xaqueue")


@dataclass(frozen=True, slots=True)
class Owner:
    """The content of the owner file: who has the space open, or had it last."""

    epoch: int
    host: str
    pid: int
    since: str
    sync: str
    recovery: str = ""
    endpoint: str = ""
    boot: str = ""
    """The boot of the host since which the directories are true, where only a journal makes them so after a crash."""
    state: str = ""
    """How far it is, as long as it holds the lock: "recovering", "ready", or "read-only"."""
    journalled: bool = False
    """Whether there is a journal since the last clean close, without which the directories are not to be trusted."""
    trouble: str = ""
    """Why it is fenced."""
    space: str = ""
    """The line of FORMAT, should that get lost."""
    unclosed: str = ""
    """The boot in which it was opened, until it is closed well; see ``boot_to_close``."""
    beats: bool = False
    """Whether it writes ``heartbeat`` once a second, without which it may be taken over from."""
    awaited: bool = False
    """It serves, and stays: whoever finds it killed waits for it to come back."""
    fenced_at: int = 0
    """When it was fenced, or the last one that was before it; int microseconds UTC."""
    program: str = ""
    """The end of its path; its arguments may be secret."""

    @property
    def who(self) -> str:
        """For a sentence."""
        return f"process {self.pid} on {self.host} since {self.since}" + (f" ({self.program})" if self.program else "")

    @classmethod
    def of(cls, given: Any) -> Owner:
        """From its fields; others, of a later version, are passed over. Raises TypeError, ValueError."""
        owner = cls(**{field.name: given[field.name] for field in fields(cls) if field.name in given})
        if any(type(getattr(owner, name)) is not int for name in ("epoch", "pid")):
            raise ValueError("epoch and pid are numbers")
        return owner


def read_owner(path: str | os.PathLike[str]) -> Owner | None:
    """The space's present or last owner; None where that is not known."""
    try:
        return parse_owner(read_owner_file(path))
    except OSError:
        return None


def next_owner(
    content: bytes | None, found: Format, hardening: Hardening, has_journal: bool, *, beats: bool = False
) -> Owner:
    """Who opens the space, after whoever ``content`` names. ``boot``: why the directories may be behind.

    Where that cannot be read, the epoch is above any that can have been used, and the journal is believed to count.
    """
    before = parse_owner(content or b"")
    if before is not None:
        epoch, boot, journalled = before.epoch + 1, before.boot, before.journalled
    elif content is not None or has_journal:
        epoch, boot, journalled = time.time_ns() // 1_000_000_000, "unknown" if has_journal else "", has_journal
    else:
        epoch, boot, journalled = 1, "", False
    return Owner(
        epoch,
        socket.gethostname(),
        os.getpid(),
        datetime.now(UTC).isoformat(timespec="seconds"),
        str(hardening),
        boot=boot,
        state=RECOVERING,
        journalled=journalled,
        space=found.line,
        unclosed=boot_to_close(),
        beats=beats,
        awaited=before is not None and before.awaited and before.unclosed != "",  # until this one is ready
        fenced_at=before.fenced_at if before is not None else 0,
        program="/".join(Path(*sys.argv[:1]).parts[-2:]),
    )


def is_suspect(content: bytes | None, has_journal: bool) -> bool:
    """Whether what is read of the space may be in memory only; where nobody tells, it may."""
    before = parse_owner(content or b"")
    if before is None:
        return content is not None or has_journal
    return before.unclosed == boot_to_close()


def in_use(root: Path, owner: Owner | None, *, alone: bool = False) -> SpaceInUse:
    """alone: who asks wants to have it to itself, and no server would do."""
    who = "another process, which does not say what it is" if owner is None else owner.who
    if owner is None:
        way = ": stop it first, or try again"
    elif alone:
        way = ": stop its owner first" + (f", after `xaqueue drain --space {root}`" if owner.endpoint else "")
    elif owner.endpoint:
        way = f", which serves it: connect to {owner.endpoint}; or stop it, after `xaqueue drain --space {root}`"
    elif owner.state == RECOVERING:
        way = ", which is opening it: try again once it has"
    else:
        url = f"xaq+unix://{quote(str(root / layout.SOCKET))}"
        way = (
            f", which opened the directory itself: stop it, start `xaqueue serve --space {root}`, and give that "
            f"program {url}, or all of them `[space] served_only = true` in queues.toml"
        )
    return SpaceInUse(f"{root} is in use by {who}{way}")


def write_owner(files: OwnerFileSystem, lock: OwnerFile, owner: Owner, *, durable: bool = True) -> None:
    """All but the first, which makes it this process's. Without any room it says what it said. Raises OSError."""

    def write() -> None:
        lock.write(files, format_owner(owner), durable=durable)

    try:
        try:
            write()
        except OSError as error:
            if files.reserve is None:
                raise
            files.reserve.again(error, write)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        log.warning("[no-room-yet] no room to write %s: %s", layout.OWNER, error.strerror)


def parse_owner(content: bytes) -> Owner | None:
    try:
        return Owner.of(json.loads(content))
    except (ValueError, TypeError):
        return None


def format_owner(owner: Owner) -> bytes:
    return json.dumps(asdict(owner)).encode() + b"\n"


def find_group(name: str) -> int | None:
    """The number of a group that this process may give files to; None for none. Raises InvalidArgument."""
    if not name:
        return None
    where = f"queues.toml: [access] group = {name!r}"
    try:
        group = int(name) if name.isascii() and name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        group = NO_GROUP
    if group >= NO_GROUP:
        raise InvalidArgument(f"{where}: this host has no such group: make it, or name another")
    if os.geteuid() != 0 and group not in {os.getegid(), *os.getgroups()}:
        raise InvalidArgument(
            f"{where}: this process is no member of it: make user {os.geteuid()} one (usermod -aG) and start it anew"
        )
    return group


def open_to(root: Path, group: int | None) -> Modes:
    """The modes of what is made in the space from now on; with a group its top is opened to that. Raises SpaceError."""
    if group is None:
        return PRIVATE
    modes = for_group()
    for path in (*(root / name for name in sorted(layout.own_names())), root):
        try:
            _share(path, group, modes)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SpaceError(
                f"{path} cannot be given to the group of [access] in queues.toml ({error.strerror}): let the user that "
                "runs this own it, or leave the key out"
            ) from error
    return modes


def _share(path: Path, group: int, modes: Modes) -> None:
    """A link, which leads out of the space, is its maker's concern, and a socket has rights of its own."""
    found = path.lstat()
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        return
    wanted = modes.directory if stat.S_ISDIR(found.st_mode) else modes.file
    if found.st_gid == group and found.st_mode & wanted == wanted:
        return
    fd = os.open(path, READ)
    try:
        os.fchown(fd, -1, group)
        os.fchmod(fd, stat.S_IMODE(found.st_mode) | wanted)
    finally:
        os.close(fd)
