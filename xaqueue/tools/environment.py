"""A figure means nothing without the machine it is from: file system, journal, device, processors, versions.

Finds the mount that a directory stands on in ``mountinfo``, and whether an ext4 has a journal, which decides whether
a file-per-message figure can be trusted at all. Reads, never writes; what is not known is None, not guessed.
"""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from xaqueue.core.storage.mounts import IN_MEMORY, Mount, mount_of

NO_JOURNAL = (
    "this ext4 has NO JOURNAL. It skips inodes deleted within the last half minute one by one, so that creating files "
    "becomes many times slower after many were removed: no figure of a queue on it can be trusted. Measure on a "
    "journalled file system, for example in an image: truncate -s 4G image; mkfs.ext4 -q -F image; "
    "mount -o loop image DIR"
)
NO_DISK = "{} keeps files in memory: a sync costs nothing here, and the figures say nothing about a disk"
UNKNOWN_JOURNAL = "whether this ext4 has a journal is not known: see `dumpe2fs -h {}`, has_journal is wanted"
EXT = frozenset({"ext2", "ext3", "ext4"})
VIRTUAL = ("vd", "xvd", "loop", "nbd", "dm-", "md", "rbd", "drbd")
MEMORY = ("ram", "zram")


@dataclass(frozen=True, slots=True)
class Environment:
    """What a report of figures opens with. ``journal`` is None where there is no such question, or no answer."""

    directory: str
    mount_point: str
    file_system: str
    device: str
    journal: bool | None
    processors: int
    python: str
    kernel: str

    @property
    def warnings(self) -> list[str]:
        """What makes the figures of this place misleading, and what to do."""
        if self.file_system in IN_MEMORY:
            return [NO_DISK.format(self.file_system)]
        if self.file_system in EXT and self.journal is None:
            return [UNKNOWN_JOURNAL.format(self.device)]
        return [NO_JOURNAL] if self.journal is False else []

    def lines(self) -> list[str]:
        """For people: where and on what, and then the warnings."""
        journal = {True: ", with a journal", False: ", WITHOUT a journal", None: ""}[self.journal]
        return [
            f"{self.directory} on {self.file_system}{journal} ({self.device} at {self.mount_point})",
            f"{self.processors} processors, Python {self.python}, Linux {self.kernel}",
            *(f"WARNING: {warning}" for warning in self.warnings),
        ]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "warnings": self.warnings}


class DeviceKind(StrEnum):
    MEMORY = "memory"
    VIRTUAL = "virtual"
    """Of a virtual machine, or of other devices: what it says of itself is nobody's word."""
    ROTATING = "rotating"
    FLASH = "flash"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Device:
    """``volatile_cache``: whether it has one, as it says; None where it does not say."""

    name: str
    kind: DeviceKind
    volatile_cache: bool | None = None


def look(directory: str | os.PathLike[str], root: str | os.PathLike[str] = "/") -> Environment:
    """The environment of a directory. ``root``: where ``proc`` and ``sys`` are, for tests."""
    place = os.path.realpath(directory)
    mount = mount_of(place, (Path(root) / "proc/self/mountinfo").read_text("utf-8", "surrogateescape"))
    return Environment(
        directory=place,
        mount_point=mount.point,
        file_system=mount.file_system,
        device=mount.source,
        journal=has_journal(mount, Path(root)),
        processors=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        kernel=platform.release(),
    )


def has_journal(mount: Mount, root: Path) -> bool | None:
    """Whether an ext file system has a journal: as sysfs has it since Linux 5.2; None for any other."""
    if mount.file_system not in EXT:
        return None
    if mount.file_system != "ext4":
        return mount.file_system == "ext3"
    device = (root / "sys/dev/block" / mount.device).resolve().name
    if device == mount.device:
        device = Path(mount.source).name
    task = _word(root / "sys/fs/ext4" / device / "journal_task")
    return task != "<none>" if task else None  # None: it is mounted elsewhere


def device_of(place: Environment, root: str | os.PathLike[str] = "/") -> Device:
    """The device below a directory. ``root``: where ``proc`` and ``sys`` are, for tests."""
    if place.file_system in IN_MEMORY:
        return Device(place.file_system, DeviceKind.MEMORY)
    queue = _queue(place, Path(root))
    name = Path(place.device).name if queue is None else queue.parent.name
    if name.startswith(MEMORY):
        return Device(name, DeviceKind.MEMORY)
    if queue is None:
        return Device(name, DeviceKind.UNKNOWN)
    cache = _word(queue / "write_cache")
    volatile = None if not cache else cache == "write back"
    if name.startswith(VIRTUAL):
        return Device(name, DeviceKind.VIRTUAL, volatile)
    rotating = _word(queue / "rotational") == "1"
    return Device(name, DeviceKind.ROTATING if rotating else DeviceKind.FLASH, volatile)


def _queue(place: Environment, root: Path) -> Path | None:
    """The directory of the device's queue, which of a partition is the whole device's."""
    mount = mount_of(place.directory, (root / "proc/self/mountinfo").read_text("utf-8", "surrogateescape"))
    named = (root / "sys/class/block" / Path(place.device).name).resolve()
    for device in ((root / "sys/dev/block" / mount.device).resolve(), named):
        for whole in (device, device.parent):
            if (whole / "queue").is_dir():
                return whole / "queue"
    return None


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
