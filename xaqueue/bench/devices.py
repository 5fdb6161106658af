"""What a block device says of itself: whether it rotates, and whether it has a cache that loses power. Reads sysfs."""

from __future__ import annotations

import os
from pathlib import Path

from xaqueue.bench.environment import IN_MEMORY, Environment, mount_of
from xaqueue.bench.verdict import Device, DeviceKind

VIRTUAL = ("vd", "xvd", "loop", "nbd", "dm-", "md", "rbd", "drbd")
MEMORY = ("ram", "zram")


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
