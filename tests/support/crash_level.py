"""The level that a crash test plays at: what is synced, how large the journal's segments are, where checkpoints fall.

A journal of a crash test begins as old ones are: its segments were recycled, and behind the end stand records of an
earlier life which are whole. Each of them would put a message that nobody sent, if it was replayed. The directories
follow the journal when a level says so: no thread follows here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from unittest import mock

from support.forgetful import ForgetfulFileSystem, LastingFileSystem, Tree
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.block import Block, Kind, encode
from xaqueue.core.model.change import PUT, Change, CoreStep, entry_of, is_valid
from xaqueue.core.model.definitions import ONE, Definitions, QueueDefinition
from xaqueue.core.storage import journal as journal_of
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.journal import Journal, checkpoint_entry
from xaqueue.core.storage.journal_format import SECTOR_BYTES, Entry
from xaqueue.core.storage.scheduling import THREADS, Threads
from xaqueue.errors import ResourceFailed
from xaqueue.features.counters import counters as counter_files
from xaqueue.features.opening import open_space as open_bare
from xaqueue.features.pair import pair, pair_fs
from xaqueue.features.pair.pair_fs import PairFileSystem
from xaqueue.features.snapshots.store import retire_unfinished
from xaqueue.message import MessageId, Properties

NOON_US = 1_700_000_000_000_000
ANY_QUEUE = Definitions(default=QueueDefinition())
NEVER: frozenset[str] = frozenset()
ALWAYS = frozenset(
    {"start", "prepare", "commit", "one-phase", "rollback", "expire", "decide commit", "decide rollback", "forget"}
)


@dataclass(frozen=True)
class Level:
    """``left_bytes``: of the journal's segment, when a story begins; None for a new one, with nothing behind its end.

    ``flush_after``, ``checkpoint_after``: these verbs, "start" for a branch that has done its work.
    """

    name: str
    flags: str
    segment_bytes: int = 20 * 1024
    left_bytes: int | None = None
    flush_after: frozenset[str] = NEVER
    checkpoint_after: frozenset[str] = NEVER
    paired: bool = False
    """Its owner is one of a pair."""
    blocks: str = ONE
    """Whether messages of one call come in a block of many (MANY), or each in a file."""
    keeps: bool = False
    """Its queues have an archive."""

    def __str__(self) -> str:
        return self.name

    @cached_property
    def hardening(self) -> Hardening:
        return Hardening.parse(self.flags)


def level_of(flags: str) -> Level:
    return Level(flags, flags)


STRICT = level_of("FDATASYNC;DSYNC")
NONE = level_of("NONE")
LAGGING = Level("JOURNAL, directories that lag", "JOURNAL", left_bytes=14 * 1024)
JOURNAL = replace(LAGGING, name="JOURNAL", flush_after=ALWAYS)
SWITCHING = replace(JOURNAL, name="JOURNAL, full segment", left_bytes=700)
"""The first record fits, a second one does not."""
MOVING = replace(JOURNAL, name="JOURNAL, large branches", segment_bytes=4096, left_bytes=2048)
"""Every branch is too large for a record, which only says what has moved."""
FILLING = replace(MOVING, name="JOURNAL, small segments", segment_bytes=1536, left_bytes=250)
"""A few records fill a segment, and the next one is made in the middle of a story."""
CYCLING = replace(FILLING, name="JOURNAL, recycled segments", checkpoint_after=ALWAYS)
CHECKPOINTS = replace(LAGGING, name="JOURNAL, checkpoints", checkpoint_after=ALWAYS)
FLUSHED_BEFORE = replace(LAGGING, name="JOURNAL, flushed before", flush_after=frozenset({"start", "prepare"}))
PREPARED_BEFORE = replace(FLUSHED_BEFORE, name="JOURNAL, prepared before", checkpoint_after=frozenset({"prepare"}))
"""The record of a commit moves blocks that stood there at the checkpoint before it."""
PAIRED = replace(CYCLING, name="JOURNAL, one of a pair", paired=True)


def follow(space: Space, level: Level, verb: str) -> None:
    """What happens behind a verb at this level."""
    if verb in level.flush_after:
        space.log.settle()
    if verb in level.checkpoint_after:
        space.checkpoint()


def open_space(
    fs: ForgetfulFileSystem | LastingFileSystem,
    level: Level,
    on_branches: Callable[[Space], object] = lambda _: None,
    *,
    goes_on: bool = False,
    closed_well: bool = False,
    definitions: Definitions = ANY_QUEUE,
    now_us: Callable[[], int] = lambda: NOON_US,
    epoch: int = 1,
    lost: Callable[[], str] = lambda: "",
    space_id: str = "",
    waiting: Threads = THREADS,
) -> Space:
    """goes_on: in the journal that ``ready`` has filled, as if its owner was this one. closed_well: the owner before
    was not killed. lost: why somebody else is the owner, once that is so.
    """
    definitions = replace(definitions, journal_segment_bytes=level.segment_bytes)
    if level.blocks != ONE and definitions.default is not None:
        definitions = replace(definitions, default=replace(definitions.default, blocks=level.blocks))
    if level.keeps and definitions.default is not None:
        definitions = replace(definitions, default=replace(definitions.default, options={"archive": "parquet"}))
    port = _paired(fs, f"{epoch}-{fs.calls}", lost) if level.paired else fs
    with (
        mock.patch.object(journal_of, "SMALLEST_SEGMENT_BYTES", 1024),
        mock.patch.object(Journal, "start", _go_on) if goes_on else nullcontext(),
    ):
        space = open_bare(
            port,
            definitions,
            hardening=level.hardening,
            epoch=epoch,
            suspect=fs.calls > 0 and not closed_well,  # it is the same boot
            now_ns=lambda: now_us() * 1000,
            on_branches=on_branches,
            is_shared=level.paired,
            lost=lost,
            space_id=space_id,
            waiting=waiting,
        )
    if isinstance(port, PairFileSystem):
        port.check = space.check_owner
    if counter_files.file_of(space).left_s > 0:
        counter_files.file_of(space)._due = float("inf")  # by the wall's time a slow machine makes a call more
    assert space.read_only is None, f"a mere crash damages no journal: {space.read_only}"
    return space


def _paired(fs: ForgetfulFileSystem | LastingFileSystem, token: str, lost: Callable[[], str]) -> PairFileSystem:
    """As ``Pair.port`` has it."""

    def check() -> None:
        if lost():
            raise ResourceFailed(lost())

    pair_fs.retire(fs, layout.ACTIVE, check)
    if not fs.is_dir(layout.ACTIVE):
        fs.make_dir(layout.ACTIVE)
    made = PairFileSystem(fs, layout.ACTIVE, token, check, pair.is_in_place)
    retire_unfinished(made)
    return made


def openings(
    fs: ForgetfulFileSystem, level: Level, every: int = 1
) -> Iterator[tuple[ForgetfulFileSystem, Space | None]]:
    """What a crash leaves before each call of an opening, or one in so many; and at last the space, opened."""
    left: list[ForgetfulFileSystem] = []
    fs.before_call = lambda: left.append(fs.copy())
    space = open_space(fs, level)
    fs.before_call = lambda: None
    yield from ((each, None) for each in left[::every])
    yield fs, space


_start = Journal.start


def _go_on(journal: Journal, _carried: object, **_: object) -> list[str]:
    return _start(journal)


_ready: dict[object, Tree] = {}


def ready(tree: Tree, level: Level) -> Tree:
    """The tree with the journal that stories of this level begin with; a bare one stays bare."""
    if not level.hardening.journal or not tree.nodes or layout.JOURNAL in tree.nodes:
        return tree
    key = tree.key(), level
    if key not in _ready:
        fs = tree.open()
        open_space(fs, level).close()
        if level.left_bytes is not None:
            _fill(fs, level, level.left_bytes)
        _ready[key] = fs.tree_after_kill()
    return _ready[key]


def _fill(fs: ForgetfulFileSystem, level: Level, left_bytes: int) -> None:
    """Three segments full of ghosts, and then as many as leave about so much room."""
    with mock.patch.object(journal_of, "SMALLEST_SEGMENT_BYTES", 1024):
        journal = Journal(fs, layout.JOURNAL, segment_bytes=level.segment_bytes, is_valid=is_valid)
    journal.start()
    large = ghost(level.segment_bytes // 16)
    own = 2 * checkpoint_entry(0).size_bytes
    most = level.segment_bytes - SECTOR_BYTES - large.size_bytes - own
    assert own < left_bytes < most, "so little, or so much, is never left"

    def left() -> int:
        return level.segment_bytes - journal.position % level.segment_bytes

    def fill(entry: Entry) -> None:
        journal.write([entry])
        if journal.full_segments:
            journal.write_checkpoint(journal.position)
            journal.recycle()

    while journal.position < 3 * level.segment_bytes or left() < left_bytes:
        fill(large)
    while left() > left_bytes + 2 * large.size_bytes:
        fill(large)
    while (more := left() - left_bytes) > ghost().size_bytes:
        fill(ghost(min(more - ghost().size_bytes, level.segment_bytes // 16)))
    journal.write_checkpoint(journal.position)


def ghost(padding: int = 0) -> Entry:
    """A record that puts a message."""
    message_id = MessageId(b"ghost".ljust(16))
    block = Block(Kind.ENQUEUE, message_id, Properties("a"), b"boo")
    head, body = encode(block)
    path = layout.message_path("a", 1 << 40, message_id)
    return entry_of(Change(CoreStep.ONE_PHASE, "x" * padding, [(PUT, path, head, body, 0)]))
