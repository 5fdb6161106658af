"""What the figures of a directory mean for a space in it: whether it is safe, which flags fit, and why. No I/O here.

Unsafe is a directory where two owners could not be kept apart, where a sync fails, or where replacing a file shows
anything but the old or the new one. A sync that is faster than such a device can be is doubted, not condemned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from xaqueue.core.storage.mounts import IN_MEMORY, NETWORK
from xaqueue.tools.environment import Device, DeviceKind, Environment
from xaqueue.tools.peer import Peer

JOURNAL, FILES = "JOURNAL", "FDATASYNC;DSYNC"
APPEND = "append + fdatasync"
OVERWRITE = "overwrite + fdatasync"
CREATE_SYNC = "create + write + fsync"
SYNC_DIRECTORY = "directory fsync"
SYNC_ALL = "syncfs"
CREATE = "create + write"
RENAME = "rename"
PERSISTENCE = "synchronous write persistence"

PLAUSIBLE_PER_S = 20_000
"""More syncs a second than this, one after the other, take a device that needs no flush."""
ROTATING_PER_S = 1_000
"""A disk passes the same place 250 times a second at the most."""
LITTLE_BYTES = 512 * 1024 * 1024
LITTLE_INODES = 10_000
PREFERENCE = 0.9
"""JOURNAL is recommended until it is slower than this part of the other: its syncs are shared better, too."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one kind of call took, in microseconds, and how many there were a second."""

    per_s: float
    p50_us: float
    p90_us: float
    p99_us: float
    p999_us: float
    max_us: float


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found out about a directory."""

    environment: Environment
    device: Device
    free_bytes: int
    free_inodes: int | None
    """None where the file system makes them as they are needed."""
    locks: str = ""
    """Why locks do not exclude another process; empty where they do."""
    replaces_atomically: bool = True
    timings: Mapping[str, Timing] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    """Calls that failed, and how."""
    peer: Peer | None = None
    """What a second machine found; None where none was asked."""


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    UNSAFE = "unsafe"


@dataclass(frozen=True, slots=True)
class Rating:
    level: Level
    about: str
    text: str


@dataclass(frozen=True, slots=True)
class Fitness:
    """``flags``: the recommended ones; empty where no space should be made there."""

    findings: tuple[Rating, ...]
    """The first four on what storage for a failover pair must meet; see STORAGE in xaqueue-operating(7)."""
    flags: str
    why: str

    @property
    def safe(self) -> bool:
        return all(finding.level is not Level.UNSAFE for finding in self.findings)


def judge(facts: Facts) -> Fitness:
    findings = (*_criteria(facts), *_others(facts))
    if any(found.level is Level.UNSAFE for found in findings):
        return Fitness(findings, "", "no flags make a space safe in this directory: use another")
    return Fitness(findings, *_recommended(facts))


def _criteria(facts: Facts) -> Iterator[Rating]:
    """By name. What a space needs of each is less than what a vendor promises: it orders by syncs alone, and fences by
    epochs, so that a late write of a former owner goes into a file that nobody reads."""
    syncs, peer = _of_syncs(facts), facts.peer
    failed = "; ".join(f"{name} fails: {error}" for name, error in facts.failures.items())
    order = failed or (peer.contents or peer.names if peer else "")
    text = "a space needs it between syncs only: it holds as far as these can be believed"
    yield Rating(Level.UNSAFE if order else syncs.level, "write order", order or text)
    yield Rating(Level.UNSAFE, PERSISTENCE, failed) if failed else syncs
    shared = facts.environment.file_system.startswith(NETWORK)
    if peer is None:
        locks = f"{facts.locks}: two processes could own one space" if facts.locks else ""
        locks = locks or ("another process is refused" if not shared else "")
        unknown = "between machines nobody has tried it: run this with --peer on two of them at once"
        level = Level.UNSAFE if facts.locks else Level.WARNING if shared else Level.OK
        yield Rating(level, "distributed file locking", locks or unknown)
        owned = "one machine's processes see at once who has the lock file" if not shared else unknown
        yield Rating(Level.WARNING if shared else Level.OK, "unique write ownership", owned)
        return
    where = f"{peer.host}, another machine," if peer.is_other_machine else f"{peer.host}, which is THIS machine,"
    level = Level.OK if peer.is_other_machine else Level.WARNING
    locks, fence = facts.locks or peer.locks, peer.fence
    yield Rating(
        Level.UNSAFE if locks else level, "distributed file locking", locks or f"{where} was refused until the release"
    )
    seen = f"{where} put a new lock file in place, and that was seen by its path"
    yield Rating(Level.UNSAFE if fence else level, "unique write ownership", fence or seen)


def _recommended(facts: Facts) -> tuple[str, str]:
    """The flags for a directory that is safe, and why these."""
    if facts.device.kind is DeviceKind.MEMORY:
        return "NONE", "nothing here survives the machine, so that syncs would be for nothing"
    # Two-phase, by the syncs alone: a record for prepare and one for commit; or content, and a directory for each.
    journal = _per_s(facts, OVERWRITE, OVERWRITE)
    files = _per_s(facts, CREATE_SYNC, SYNC_DIRECTORY, SYNC_DIRECTORY)
    if not journal:
        return JOURNAL, "survives power loss with the fewest syncs"
    flags, per_s, beside = JOURNAL, journal, f", about {files:,.0f} with {FILES}" if files else ""
    if journal < files * PREFERENCE:
        flags, per_s = FILES, files
        beside = f", about {journal:,.0f} with {JOURNAL}, whose overwrites are slow here"
    return flags, f"survives power loss at about {per_s:,.0f} transactions a second in one thread{beside}"


def doubt(per_s: float, device: Device) -> str:
    """Why so many syncs a second, one after the other, cannot all have reached such a device; empty for no doubt."""
    asked = f"{per_s:,.0f} syncs a second from one thread"
    if device.kind is DeviceKind.ROTATING and per_s > ROTATING_PER_S:
        return (
            f"{asked} on {device.name}, which says that it rotates: a disk can do some {ROTATING_PER_S // 4} at most. "
            "Either it is virtual and its host answers, or its cache does; ask whether that survives a power cut"
        )
    if per_s > PLAUSIBLE_PER_S and device.volatile_cache is not False:
        return (
            f"{asked}: only a device with protection against power loss does that, and {device.name} does not say "
            "that it is one. Perhaps syncs are ignored below (a cache mode of the virtual machine, libeatmydata)"
        )
    return ""


def _others(facts: Facts) -> Iterator[Rating]:
    place = facts.environment
    if facts.replaces_atomically:
        yield Rating(Level.OK, "rename", "over an existing file shows the old or the new one, never neither")
    else:
        yield Rating(Level.UNSAFE, "rename", "over an existing file showed a reader neither the old nor the new one")
    for warning in place.warnings if place.file_system not in IN_MEMORY else ():
        yield Rating(Level.WARNING, "file system", warning)
    if place.journal is False:
        yield Rating(Level.WARNING, "crash", "without a journal nothing makes a rename atomic across a power cut")
    yield from _of_room(facts)


def _of_syncs(facts: Facts) -> Rating:
    if facts.device.kind is DeviceKind.MEMORY:
        where = facts.environment.file_system
        return Rating(Level.WARNING, PERSISTENCE, f"{where} is no storage: a sync has nothing to write to")
    timing = facts.timings.get(OVERWRITE)
    if timing is None or timing.p50_us <= 0:
        return Rating(Level.NOTE, PERSISTENCE, "syncs were not measured")
    per_s = 1e6 / timing.p50_us
    doubted = doubt(per_s, facts.device)
    if doubted:
        return Rating(Level.WARNING, PERSISTENCE, doubted)
    text = f"{per_s:,.0f} syncs a second from one thread: nothing speaks against it"
    if facts.device.kind is DeviceKind.VIRTUAL:
        text += f", but {facts.device.name} is virtual: whether they reach a disk is up to what is below it"
    return Rating(Level.OK, PERSISTENCE, text)


def _of_room(facts: Facts) -> Iterator[Rating]:
    inodes = "" if facts.free_inodes is None else f" and {facts.free_inodes:,} inodes"
    text = f"{facts.free_bytes / 1e6:,.0f} MB{inodes} are free"
    little = facts.free_bytes < LITTLE_BYTES or (facts.free_inodes is not None and facts.free_inodes < LITTLE_INODES)
    yield Rating(Level.WARNING if little else Level.OK, "room", text + (": that is little" if little else ""))


def _per_s(facts: Facts, *names: str) -> float:
    """How often these calls go one after the other in a second, by their medians; 0.0 where one was not measured."""
    total_us = sum(facts.timings[name].p50_us for name in names) if facts.timings.keys() >= {*names} else 0.0
    return 1e6 / total_us if total_us else 0.0
