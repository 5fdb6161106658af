"""A space may be opened to a group, so that other users read its files: [access] group in queues.toml.

New directories take the group from the one that they are made in. So the space's directory and the names at its top
are given to the group when it is opened; what is older and lies deeper keeps its rights.
"""

from __future__ import annotations

import grp
import os
import stat
from pathlib import Path

from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.space.model import layout
from xaqueue.storage.modes import PRIVATE, Modes, for_group
from xaqueue.storage.regular import READ

NO_GROUP = 2**32 - 1
"""Of chown(2), and more than any group has."""


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
    for path in (*(root / name for name in sorted(layout.OWN_NAMES)), root):
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
