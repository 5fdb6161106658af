"""What a directory stands on: the mount that holds it, as mountinfo(5) has it. Reads, never writes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MOUNTINFO = "/proc/self/mountinfo"
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
"""Their files are gone when the machine is."""
NETWORK = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "gluster", "lustre", "afs")
"""How the names of those begin that other machines may use, too."""

_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo(5), as far as it matters here."""

    device: str
    """Major and minor number, ``254:0``."""
    point: str
    file_system: str
    source: str


def mount_of(place: str, mountinfo: str) -> Mount:
    """The mount that an absolute path is on: the deepest point above it, and of several there the last one."""
    found = Mount("0:0", "/", "unknown", "unknown")
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not separator or len(fields) < 5 or len(rest) < 2:
            continue
        mount = Mount(fields[2], _unescaped(fields[4]), rest[0], _unescaped(rest[1]))
        under = place == mount.point or place.startswith(mount.point.rstrip("/") + "/")
        if under and len(mount.point) >= len(found.point):
            found = mount
    return found


def file_system_of(place: str, mountinfo: str = MOUNTINFO) -> str:
    """Its kind; empty where nobody says."""
    try:
        return mount_of(place, Path(mountinfo).read_text("utf-8", "surrogateescape")).file_system
    except OSError:
        return ""


def _unescaped(field: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), field)


def trouble_of(root: str, *, is_durable: bool, mountinfo: str = MOUNTINFO) -> str:
    """Why whoever opens a space there should look twice; empty for nothing known.

    is_durable: whether its commits are to outlive a power loss.
    """
    file_system = file_system_of(root, mountinfo)
    if file_system in IN_MEMORY and is_durable:
        return (
            f"{root} is on {file_system}, which is memory: a commit there outlives processes and no power loss. "
            "Move the space to a disk, or open it with sync NONE"
        )
    if file_system.startswith(NETWORK):
        return (
            f"{root} is on {file_system}, a network file system: what it must guarantee is said in "
            f"xaqueue-operating(7) STORAGE, and `xaqueue iotest {root} --peer`, run on two machines at once, tries it"
        )
    return ""
