"""What was set aside is listed with its size and age, and goes when somebody says so and never by itself.

That is what stands in quarantine/, segments of the journal that end in .archive, and removed/, where a restore puts
what it has replaced; and, where that is asked for, what left queues and is Parquet, day by day. Some of it is evidence
yet, and stays whatever its age: a block that a branch in doubt has lost, and a message that such a branch names.

A file goes, durably, before the reason beside it, so that a crash leaves a reason without a file and never the other
way round. A tree that was removed in part is as old as it was, by its reason or its name: the next cleaning goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from xaqueue.core.engine import quarantine
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.layout import JOURNAL, PREPARED, QUARANTINE
from xaqueue.core.owner.definitions_file import usable_definitions
from xaqueue.core.owner.open import is_owned
from xaqueue.core.recovery.load import read_head
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal_files import ARCHIVE
from xaqueue.errors import DamagedBlock, InvalidArgument
from xaqueue.features.snapshots.restored import REMOVED
from xaqueue.features.snapshots.store import remove_tree
from xaqueue.features.streams.keeping import PARQUET
from xaqueue.offline import plan
from xaqueue.offline.plan import Item, Plan, Site, site_of

REASON = ".reason"
LEAST_S = 3600
"""In a space that is open."""


@dataclass(frozen=True, slots=True)
class Aside:
    """One thing that was set aside, or all of a directory, since its oldest: int microseconds UTC; None where nobody
    knows. ``kept``: why it stays, however old it is."""

    path: str
    size_bytes: int
    since: int | None
    count: int = 1
    kept: str = ""


def totals(fs: FileSystem) -> list[Aside]:
    """Of each directory that has something set aside."""
    found: dict[str, Aside] = {}
    for one in _found(fs):
        place = one.path.partition("/")[0]
        total = found.get(place, Aside(f"{place}/", 0, None, 0))
        since = min(filter(None, (total.since, one.since)), default=None)
        found[place] = Aside(total.path, total.size_bytes + one.size_bytes, since, total.count + 1)
    return list(found.values())


def find(fs: FileSystem, before_us: int, *, archived: bool = False) -> tuple[list[Aside], list[Aside]]:
    """What was set aside before this moment: what may go, and what has to stay. archived: instead the days of what is
    kept in Parquet that had ended by then. Raises OSError."""
    evidence, found = ({}, _days(fs)) if archived else (_evidence(fs), _found(fs))
    old = [replace(one, kept=_why_kept(one, evidence)) for one in found if (one.since or 0) < before_us]
    return [one for one in old if not one.kept], [one for one in old if one.kept]


def look(
    place: Site | str | os.PathLike[str], age_s: float, *, archived: bool = False
) -> tuple[list[Aside], list[Aside]]:
    """As ``find``, of what was set aside so long ago."""
    with closing(site_of(place).files()) as fs:
        return find(fs, time.time_ns() // 1000 - int(age_s * 1_000_000), archived=archived)


def clean(
    place: Site | str | os.PathLike[str], age_s: float, *, archived: bool = False
) -> tuple[list[Aside], list[Aside]]:
    """Removes for good what was set aside so long ago; returns it, and what has to stay.

    A space that nobody has open is opened before: a crash may have left steps to do again, which look for what was
    set aside. For the same reason that of an owner at work is to be older than its last checkpoint.
    Raises SpaceError, InvalidArgument, ResourceFailed, OSError.
    """
    site = site_of(place)
    if archived:
        return _clean(site, age_s, archived=True)
    if is_owned(site):
        least_s = max(LEAST_S, 2 * usable_definitions(site)[0].checkpoint_s)
        if age_s < least_s:
            raise InvalidArgument(f"the space is in use: at least {least_s} seconds are wanted, not {age_s:g}")
        return _clean(site, age_s)
    with site.opened() as session:
        session.space.check()
        return _clean(site, age_s)


def _clean(site: Site, age_s: float, *, archived: bool = False) -> tuple[list[Aside], list[Aside]]:
    given_up, kept = look(site, age_s, archived=archived)
    with closing(site.files()) as fs:
        remove(fs, [one.path for one in given_up])
    return given_up, kept


def plan_of(given_up: Iterable[Aside], kept: Iterable[Aside]) -> Plan:
    words = {True: "committed before", False: "set aside"}
    said = [(one, words[one.path.startswith(f"{PARQUET}/")]) for one in given_up]
    gone = [(one, f"{word} {plan.when(one.since)}", f"{one.size_bytes:,} bytes") for one, word in said]
    items = [Item(one.path, wrong, plan.REMOVED, lost=lost) for one, wrong, lost in gone]
    return Plan(items + [Item(one.path, one.kept, plan.KEPT) for one in kept])


def remove(fs: FileSystem, given_up: Iterable[str]) -> None:
    """For good, and durably. What is gone already is passed over. Raises OSError."""
    given_up = list(given_up)
    for paths in (given_up, [path + REASON for path in given_up if fs.exists(path + REASON)]):
        for path in paths:
            remove_tree(fs, path)
        for place in {path.rpartition("/")[0] for path in paths}:
            fs.sync_dir(place)


def _found(fs: FileSystem) -> Iterator[Aside]:
    names = set(listed(fs, QUARANTINE))
    for name in sorted(names):
        path = f"{QUARANTINE}/{name}"
        if not name.endswith(REASON) or name + REASON in names:
            yield Aside(path, _size(fs, path), _modified_us(fs, path + REASON))
        elif name.removesuffix(REASON) not in names:
            yield Aside(path, _size(fs, path), _modified_us(fs, path))  # of a cleaning that was cut off
    for name in listed(fs, JOURNAL):
        if ARCHIVE in name:
            yield Aside(f"{JOURNAL}/{name}", _size(fs, f"{JOURNAL}/{name}"), _modified_us(fs, f"{JOURNAL}/{name}"))
    for name in listed(fs, REMOVED):
        yield Aside(f"{REMOVED}/{name}", _size(fs, f"{REMOVED}/{name}"), _when(name))


def _days(fs: FileSystem) -> Iterator[Aside]:
    """Since each has ended."""
    for queue in listed(fs, PARQUET):
        for day in listed(fs, f"{PARQUET}/{queue}"):
            path = f"{PARQUET}/{queue}/{day}"
            with suppress(ValueError):
                ended = datetime.strptime(day, "day=%Y-%m-%d").replace(tzinfo=UTC) + timedelta(days=1)
                yield Aside(path, _size(fs, path), int(ended.timestamp() * 1_000_000))


def _evidence(fs: FileSystem) -> dict[str, str]:
    """Of branches that are not finished: by the name in quarantine of a block that each lost, or the id of a message
    that it names, whose it is. What cannot be read may name any: its key is empty."""
    found = {name: f"branch {xid} is in doubt" for xid, names in quarantine.lost_blocks(fs).items() for name in names}
    for name in listed(fs, PREPARED):
        key = ""
        with suppress(DamagedBlock, FileNotFoundError):
            key = read_head(fs, f"{PREPARED}/{name}").message_id.hex()
        found[key] = f"{PREPARED}/{name} may name it"
    return found


def _why_kept(one: Aside, evidence: dict[str, str]) -> str:
    if one.since is None:
        return "nobody knows since when it stands there: remove it by hand"
    place, _, name = one.path.partition("/")
    if place != QUARANTINE:
        return ""
    is_message = ".range=" in name
    return evidence.get(name, next((who for key, who in evidence.items() if is_message and key in name), ""))


def _size(fs: FileSystem, path: str) -> int:
    """Of a file, or of all files of a tree; 0 for what is neither."""
    try:
        return sum(_size(fs, f"{path}/{name}") for name in fs.list(path)) if fs.is_dir(path) else fs.size(path)
    except OSError:
        return 0


def _modified_us(fs: FileSystem, path: str) -> int | None:
    try:
        return fs.modified_ns(path) // 1000
    except OSError:
        return None


def _when(name: str) -> int | None:
    """By the name that a restore gives: the time, and a number where there are several."""
    stamp, several, number = name.partition("~")
    try:
        when = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(when.timestamp() * 1_000_000) if number.isdigit() or not several else None
