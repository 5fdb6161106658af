"""All that the world needs of the package beside the verbs that users call: it opens spaces, and does what threads of
an owner would do, one call after the other.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

from support import crash_level, failing_disk
from support.crash_level import CYCLING, FILLING, LAGGING, STRICT, Level, level_of
from support.failing_disk import FailingFileSystem
from support.forgetful import ForgetfulFileSystem, Tree
from xaqueue.core.engine import commit, directory_log, heuristics, journal_log, timeouts
from xaqueue.core.engine.state import Space
from xaqueue.core.model import definitions, layout, message_block
from xaqueue.core.model.branch import State
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.storage.ids import _fresh as fresh
from xaqueue.features.batches import batch_steps
from xaqueue.features.counters import counters
from xaqueue.features.dedup import dedup
from xaqueue.features.defining import queues_file
from xaqueue.features.kinds import KINDS
from xaqueue.features.pair.pair_fs import OWN
from xaqueue.features.retries import moving
from xaqueue.features.retries.register import TRIES
from xaqueue.features.session import Session
from xaqueue.features.snapshots import manifest, store, take
from xaqueue.features.snapshots import restore as restoring
from xaqueue.features.streams import cleanup
from xaqueue.features.topics import adding, hollow
from xaqueue.features.topics import blocks as topics
from xaqueue.message import MessageId
from xaqueue.xid import Xid

BLOCKS = True
"""Whether worlds whose rules are about blocks of many messages have such: else each message has a file."""
LEVELS: tuple[Level, ...] = (STRICT, STRICT, level_of("FSYNC;DSYNC"), LAGGING, FILLING, CYCLING)
FIRST_LIFE = "11111111-1111-1111-1111-111111111111"
EMPTY = Tree(dict.fromkeys(layout.directories()) | {layout.FORMAT: f"xaqueue 1 sim {FIRST_LIFE}\n".encode()})
NOON_US = crash_level.NOON_US
MIDNIGHT_US = NOON_US - 12 * 3600 * 1_000_000
"""Before every time that a clock of the world shows."""


def disk(tree: Tree, *, keeps_times: bool) -> FailingFileSystem:
    """All of it was changed at midnight, where it keeps no time that a step has set: none was synced."""
    fs = FailingFileSystem(tree)
    for node in fs._nodes.values():
        node.modified_ns = (keeps_times and node.modified_ns) or MIDNIGHT_US * 1000
    return fs


def new(level: Level, left: Mapping[str, int]) -> Tree:
    """The disk of an empty space, whose journal has had an earlier life. left: of queues that had messages before, how
    many numbers are left to the edge of a range."""
    marked: dict[str, bytes | None] = {}
    for queue, count in left.items():
        mark = layout.Watermark(layout.RANGE_SIZE - 1 - count, layout.RANGE_SIZE - 1 - count)
        marked |= {layout.queue_path(queue): None, layout.watermark_path(queue): layout.format_watermark(mark)}
    return Tree({**crash_level.ready(EMPTY, level).nodes, **marked})


def open_space(
    fs: FailingFileSystem,
    level: Level,
    defined: Definitions,
    now_us: Callable[[], int],
    on_branches: Callable[[Space], object] = lambda _: None,
    **options: Any,
) -> Space:
    """options: see ``crash_level.open_space``."""
    space_id = life(fs)
    assert space_id, "it is no space"
    store.give_up_restore(fs)
    options |= {"definitions": defined, "now_us": now_us, "space_id": space_id}
    space = crash_level.open_space(fs, level, on_branches, **options)
    assert not space.report.quarantined, space.report
    return space


def defined(text: str) -> Definitions:
    """As queues.toml has it."""
    return definitions.parse(text)


def redefine(space: Space, new: Definitions) -> None:
    space.redefine(new)


def undefine(space: Space, queue: str, new: Definitions) -> None:
    """As an owner does, whose file this is then."""
    space.redefine(new, partial(queues_file.check_empty, space, queue))


def counted(space: Space, queue: str) -> tuple[int, int]:
    """How many messages came into it, and went."""
    found = counters.counters_of(space.queue(queue))
    return found.enqueued, found.dequeued


def write_counters(space: Space) -> None:
    counters.write(space)


def session(space: Space) -> Session:
    return Session(space)


def for_operator(space: Space) -> set[Xid]:
    """What is in doubt, and told to nobody who would decide it by himself."""
    branches = space.branches.values()
    return {one.xid for one in branches if one.is_for_operator and one.base is State.PREPARED and one.decided is None}


def decide(space: Space, xid: Xid, commits: bool) -> None:
    """An operator does."""
    heuristics.decide(space, xid, commits, by="somebody")


def due_us(space: Space, queue: str, message_id: bytes) -> int:
    """Until when it is put off."""
    entry = space.queue(queue).index.find(message_id)
    assert entry is not None
    return entry.not_before or 0


def unhardened(space: Space) -> dict[str, int]:
    """By queue the lowest number that a message has whose commit a crash may undo."""
    return space.log.unhardened()


def files(fs: FailingFileSystem, queue: str, place: str) -> Iterator[MessageId]:
    """The ids of all messages that the queue has there, in files of their own or in blocks."""
    nodes = fs.tree_after_kill().nodes
    for path, data in nodes.items():
        found = layout.parse_path(path.replace(place, layout.COMMITTED, 1)) if path.startswith(f"{place}/") else None
        if found is None or found[0] != queue:
            continue
        named = found[1]
        if not named.is_block:
            yield named.message_id
            continue
        gone = nodes.get(layout.gone_path(queue, named).replace(layout.COMMITTED, place, 1))
        table = message_block.decode_table(data or b"")
        left = table.left(message_block.decode_gone(gone, queue, named) if gone else 0)
        yield from map(table.message_id, left)


def message_of(path: str) -> MessageId | None:
    """Whose file this is."""
    parsed = layout.parse_message(path.rpartition("/")[2])
    return parsed and parsed[1]


def believed(fs: FailingFileSystem) -> dict[str, bytes]:
    """All files that who opens the space believes: no segment of the journal that a former owner has, no tries, and
    nothing of a snapshot that goes. What is archived is as it was in its queue."""
    found = fs.tree_after_kill().nodes.items()
    unread = (f"{layout.JOURNAL}/", f"{layout.ACTIVE}/{OWN}", TRIES, f"{manifest.SNAPSHOTS}/{store.REMOVING}")
    place = f"{layout.ARCHIVE}/"
    return {
        path.replace(place, f"{layout.COMMITTED}/") if path.startswith(place) else path: content
        for path, content in found
        if content is not None and not path.startswith(unread)
    }


def snapshots(fs: FailingFileSystem) -> set[int]:
    """The numbers of those that are there."""
    return {one.number for one in store.listed(fs)}


def snapshot_times(fs: FailingFileSystem) -> list[int]:
    return [one.taken_at for one in store.listed(fs)]


def take_snapshot(space: Space) -> int:
    return take.take(space).number


def damage(fs: FailingFileSystem, snapshot: int) -> list[str]:
    return list(store.damage(fs, f"{manifest.SNAPSHOTS}/{snapshot}"))


def life(fs: ForgetfulFileSystem) -> str:
    """The id of the space; empty where a restore was cut off so that nobody opens it."""
    return fs.read(layout.FORMAT).decode().split()[3] if fs.exists(layout.FORMAT) else ""


def restore(fs: ForgetfulFileSystem, snapshot: int, now_us: int, *, exact: bool) -> None:
    """As it was, or with what came since into a space that was closed well; or on with one that was cut off."""
    restoring.restore(fs, restoring.Wanted(snapshot, exact=exact, is_whole=not exact), now_us, kinds=KINDS)


def is_cut_off(fs: ForgetfulFileSystem) -> bool:
    """Whether a restore has built all that it puts back."""
    return restoring.is_cut_off(fs)


def go_back(fs: ForgetfulFileSystem, at_us: int, now_us: int) -> None:
    """As it was at that moment; or on with one that was cut off."""
    restoring.restore(fs, restoring.Wanted(at_us=at_us), now_us, kinds=KINDS)


def count_keys(fs: FailingFileSystem) -> int:
    """The files of keys that ``work`` has."""
    return len(fs.list(dedup.keys_path("work"))) if fs.is_dir(dedup.keys_path("work")) else 0


def follow(space: Space) -> None:
    """The directories come up with the journal."""
    space.log.settle()


def checkpoint(space: Space) -> None:
    space.checkpoint()


def move_exhausted(space: Space) -> None:
    moving.move_exhausted(space, cleanup.never)


def expire(space: Space) -> None:
    """What has expired goes, or moves."""
    cleanup.expire(space)


def clear(space: Space) -> None:
    """What streams have consumed goes."""
    cleanup.clear(space)


def make_smaller(space: Space) -> None:
    """The blocks of which little is left, unless they are young."""
    for queue, block in hollow.sparse(space):
        hollow.hollow(space, queue, block)


def forget_keys(space: Space) -> None:
    """Those whose window is over."""
    dedup.clear(space, cleanup.never)


def end_leases(space: Space, now_s: float) -> int:
    """Those that are over at this time of the monotonic clock."""
    return timeouts.expire(space, now_s, float("inf"))


def is_past_commit(space: Space, xid: Xid) -> bool:
    """It can only go forward: there was no room for what follows its commit point."""
    branch = space.branches.get(xid)
    return branch is not None and branch.base is State.COMMITTING


def end_idle(space: Space, now_s: float) -> int:
    """Branches in which nothing was done for a while."""
    return timeouts.expire(space, now_s + 2000, 1000)


def large(size_bytes: int | None) -> Any:
    """From this size on a branch is in files before its record is; None: as it is."""
    return nullcontext() if size_bytes is None else mock.patch.object(journal_log, "KEPT_BYTES", size_bytes)


@contextmanager
def full_disk(fs: FailingFileSystem, calls: int, within: str) -> Iterator[None]:
    """Behind so many calls nothing finds room, where it stands already neither; and then there is some. within: only of
    paths with this."""
    with mock.patch.object(failing_disk, "GROWS", failing_disk.GROWS | {"write_at", "write_synced"}):
        fs.fail(calls, errno.ENOSPC, within=within)
        try:
            yield
        finally:
            fs.heal()


def blocks(are_written: bool) -> Any:
    """Queues that do not say have blocks of many messages, where the product can."""
    return mock.patch.object(definitions, "BLOCKS", "many") if BLOCKS and are_written else nullcontext()


@contextmanager
def small_steps(is_so: bool) -> Iterator[None]:
    """A step moves a file or two, and two messages are enough for a block, so that few are many."""
    ones = (commit, "STEP_FILES"), (directory_log, "STEP_FILES"), (batch_steps, "STEP_BLOCKS")
    twos = (commit, "MANY"), (topics, "FEWEST")
    with ExitStack() as stack:
        for number, places in ((1, ones), (2, twos)) if is_so else ():
            for place, name in places:
                stack.enter_context(mock.patch.object(place, name, number))
        yield


def fresh_ids(made: Sequence[MessageId]) -> mock._patch[Any]:
    """The ids of the messages that are added in one call are these."""
    return mock.patch.object(adding, "fresh_ids", return_value=[*made])


def ids(dice: random.Random) -> mock._patch[Callable[[int], bytes]]:
    """Every id that is fresh comes from the dice."""
    return mock.patch("os.urandom", dice.randbytes)


def process() -> mock._patch[Any]:
    """What runs here is another process than who was running."""
    return mock.patch.object(cleanup, "_making", threading.Lock())


def forget_ids() -> None:
    """Those that were fetched ahead. Disks that worlds share take none of the ids of the first one that has them."""
    for level in LEVELS:
        crash_level.ready(EMPTY, level)
    fresh.clear()
