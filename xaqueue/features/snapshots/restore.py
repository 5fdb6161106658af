"""Putting a snapshot back in the place of a space that nobody has open.

    .restoring/ is built and synced -> .restoring/READY -> FORMAT goes to removed/<time>/ -> so does what is replaced,
    and what was built takes its place -> FORMAT, with a new id, takes its own

Crash safety: before READY nothing of the space was touched, but that its directories may follow its journal, as by an
open; what was built is removed by the next restore. Behind it the same command goes on where it was, and soon the space
has no FORMAT, so that nobody opens it. Who opens it before that, or when all is done, removes READY: what he adds is
not in what was built. Nothing is deleted or overwritten: what is replaced stays in ``removed/``.

What came after the snapshot and can be read is brought over (``newer``), so that it is not lost as well; the snapshot's
own messages are possible duplicates (``restored``). Numbers go on far above all that a lost tail can have used,
and the new id tells readers that remember the old one that this is another life of the space.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from xaqueue.core.engine import redo
from xaqueue.core.model import change, layout
from xaqueue.core.model.block_files import listed, ranges_in
from xaqueue.core.model.change import highest_numbers
from xaqueue.core.model.layout import JOURNAL, QUEUES, Watermark
from xaqueue.core.model.record_kinds import RecordKinds
from xaqueue.core.recovery.from_journal import check_end
from xaqueue.core.storage.fs import FileSystem, discard
from xaqueue.core.storage.journal_files import headers
from xaqueue.core.storage.journal_reader import look
from xaqueue.errors import JournalDamaged, SpaceError
from xaqueue.features.counters.values import COUNTERS
from xaqueue.features.replica.replicated import REPLICATION, UNSHIPPED
from xaqueue.features.retries.register import TRIES
from xaqueue.features.snapshots import archived, manifest, restored, store
from xaqueue.features.snapshots.archived import move_away
from xaqueue.features.snapshots.below import Below
from xaqueue.features.snapshots.history import History
from xaqueue.features.snapshots.manifest import KEPT_JOURNAL, SNAPSHOTS, Manifest
from xaqueue.features.snapshots.newer import Newer, branches_in, link_into, link_or_copy
from xaqueue.features.snapshots.restored import REMOVED, RESTORE_READY, RESTORED, Restored
from xaqueue.features.streams.message_files import count_in
from xaqueue.xid import Xid

READY = RESTORE_READY
PLACE = READY.partition("/")[0]
_REMOVED = re.compile(rf"{REMOVED}/[0-9TZ]+(?:~[0-9]+)?")
JUMP = 1 << 32
"""So many numbers are passed over: more than a lost tail can have used."""
NEVER_BUILT = (JOURNAL, TRIES, UNSHIPPED)
REPLACED = (QUEUES, *NEVER_BUILT, COUNTERS, RESTORED, REPLICATION)
"""And every directory."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be put back, and what is known of the space that is here."""

    number: int | None = None
    """Of the snapshot; None for the newest that is clean."""
    at_us: int = 0
    """As of this moment, by the newest snapshot before it and the journal since; 0 for as of the snapshot."""
    exact: bool = False
    """What came after the snapshot stays behind, as it does with a moment."""
    as_new: bool = False
    """A snapshot of another space is used as well, and then nothing of this one is brought over."""
    queues: str = QUEUES
    """The file that says what is defined; without one the snapshot does."""
    is_whole: bool = False
    """The space was opened and closed just now, so that it has all that it is to have."""
    space_id: str = ""
    """Of the space that is here, as far as that is known."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a restore did."""

    snapshot: int
    taken_at: int
    removed: str
    """Where what it replaced is, relative to the space."""
    messages: int
    """That came back."""
    newer: int
    """Messages that were added after the snapshot, and were brought over."""
    lost: int
    """Newer ones that cannot be read: they stay in what was replaced."""
    branches: list[str]
    """In doubt then; nobody here can tell whether they were decided since: an operator decides."""
    at: int = 0
    """The moment up to which the journal was done again behind the snapshot, microseconds UTC; 0 for none."""
    passed: list[str] = field(default_factory=list)
    """Which snapshots were passed over, and why; and what is damaged in the one that was asked for."""
    is_another: bool = False
    """The snapshot is of another space, whose archive is not here."""


def choose(fs: FileSystem, number: int | None, at_us: int, lives: Collection[str]) -> tuple[Manifest, list[str]]:
    """The snapshot of this number, or the newest of before a moment, if one is given, of which every file is read and
    found to be whole; and what is to be said of those that are newer, or of damage in it. lives: the ids of this space;
    none where any may be used. Raises SpaceError, OSError.
    """
    if number is not None:
        found, place = store.find(fs, number), f"{SNAPSHOTS}/{number}"
        wrong = _another(found, lives) or next(store.damage(fs, place, bodies=False), None)
        if wrong is not None:
            raise SpaceError(f"snapshot {number} is suspect and not used ({wrong}): choose another one")
        return found, [f"snapshot {number} is used as it is: {damage}" for damage in store.damage(fs, place)]
    passed = [f"snapshot {name} is passed over: {why}" for name, why in store.suspects(fs)]
    for found in reversed(store.listed(fs)):
        if at_us and found.taken_at > at_us:
            continue
        wrong = _another(found, lives) or next(store.damage(fs, f"{SNAPSHOTS}/{found.number}"), None)
        if wrong is None:
            return found, passed
        passed.append(f"snapshot {found.number} is passed over: {wrong}")
    why = "".join(f"; {one}" for one in passed[:3])
    if at_us:
        raise SpaceError(
            "there is no snapshot of before that which is whole: nothing was changed; `xaqueue snapshot list` says of "
            f"when they are{why}"
        )
    raise SpaceError(
        "there is no snapshot that is whole: nothing was changed; `xaqueue snapshot check` says what is wrong with "
        f"each, and --snapshot N takes one whose messages are damaged as it is{why}"
    )


def _another(found: Manifest, lives: Collection[str]) -> str | None:
    if not lives or found.space.split()[-1] in lives:
        return None
    return f"it is of another space, {found.space}; --as-new has that here as a space of its own"


def lives_of(fs: FileSystem, space_id: str) -> set[str]:
    """The ids that the space of this one has had: each restore gives it another. None where nobody can tell."""
    earlier = restored.read(fs)
    if not space_id or earlier.snapshot == restored.DAMAGED:
        return set()
    if earlier.snapshot and not earlier.lives:  # by an older xaqueue, to which every snapshot here was its own
        return {space_id, *(found.space.split()[-1] for found in store.listed(fs))}
    return {space_id, *earlier.lives}


def restore(
    fs: FileSystem, wanted: Wanted, now_us: int, *, kinds: RecordKinds, close: Callable[[], None] = lambda: None
) -> Done:
    """Puts it back; finishes a restore that was cut off instead, whatever is asked for. The caller owns the space.

    close: called when all but FORMAT is in its place: nothing that was there has to be believed any more. Raises
    SpaceError, OSError.
    """
    if not fs.exists(READY):
        if fs.is_dir(PLACE):
            store.remove_tree(fs, PLACE)
        lives = lives_of(fs, wanted.space_id)
        found, passed = choose(fs, wanted.number, wanted.at_us, set() if wanted.as_new else lives)
        if wanted.at_us and not found.lsn:
            raise SpaceError(
                f"snapshot {found.number}, the newest before that, was taken at level {found.sync}, and only at "
                "JOURNAL a space can go back to a moment in between: restore it with --snapshot"
            )
        is_another = _another(found, lives) is not None
        if is_another:
            lives = set()
        queues = wanted.queues if lives or not wanted.as_new else ""
        wanted = replace(wanted, queues=queues, exact=wanted.exact or wanted.at_us > 0 or is_another)
        if not (wanted.exact or wanted.is_whole):
            _follow(fs, kinds)
        build = _Build(fs, found, wanted, now_us, kinds, sorted({*lives, found.space.split()[-1]}))
        return put_in_place(fs, replace(build.build(), passed=passed, is_another=is_another), close)
    return finish(fs, close)


def put_in_place(fs: FileSystem, done: Done, close: Callable[[], None] = lambda: None) -> Done:
    """What was built in PLACE takes the place of what is there, which goes to ``done.removed``. Raises OSError."""
    fs.sync_all()
    making = f"{READY}.new"
    fs.create(making, [json.dumps({name: getattr(done, name) for name in Done.__slots__}).encode()])
    fs.sync_file(making)
    fs.rename(making, READY)
    fs.sync_dir(PLACE)
    return finish(fs, close)


def finish(fs: FileSystem, close: Callable[[], None] = lambda: None) -> Done:
    """From where it was cut off. Raises SpaceError where what says so is damaged, OSError."""
    try:
        done = Done(**json.loads(fs.read(READY)))
        is_sound = _REMOVED.fullmatch(done.removed) is not None
    except (ValueError, TypeError):
        is_sound = False
    if not is_sound:  # it may have come from elsewhere, and names where things go
        raise SpaceError(f"{READY} is damaged, and nothing was moved: remove {PLACE}/ and restore anew")
    _swap(fs, done, close)
    return done


def free_place(fs: FileSystem, now_us: int) -> str:
    """A directory that is not there, for what is replaced at that time."""
    when = datetime.fromtimestamp(now_us / 1e6, UTC).strftime("%Y%m%dT%H%M%SZ")
    place, copies = f"{REMOVED}/{when}", 1
    while fs.exists(place):
        copies += 1
        place = f"{REMOVED}/{when}~{copies}"
    return place


def _follow(fs: FileSystem, kinds: RecordKinds) -> None:
    """What only the journal has yet is done in the directories, as an open would have done it; not by one that is
    damaged. Raises OSError."""
    with suppress(SpaceError):
        found = look(fs, JOURNAL, change.is_valid)
        check_end(fs, found.records, found.position)
        if found.records:
            redo.make_dirs(fs, layout.ACTIVE)
            redo.replay(fs, found.records, kinds, without_lost=True)


def is_cut_off(fs: FileSystem) -> bool:
    return fs.exists(READY)


@dataclass(slots=True)
class _Build:
    """Makes what is to stand in the place of the space; see ``restore``."""

    fs: FileSystem
    found: Manifest
    wanted: Wanted
    now_us: int
    kinds: RecordKinds
    lives: list[str]
    source: str = field(init=False)
    newer: Newer = field(init=False)
    journal_numbers: dict[str, int] = field(init=False)
    """By queue the highest number that the journal gives, which the directories may be behind."""

    def __post_init__(self) -> None:
        self.journal_numbers = {}
        with suppress(SpaceError, OSError):
            self.journal_numbers = highest_numbers(look(self.fs, JOURNAL, change.is_valid).records)
        self.source = f"{SNAPSHOTS}/{self.found.number}"
        self.newer = Newer(self.fs, PLACE, self.kinds, is_whole=self.wanted.is_whole)

    def build(self) -> Done:
        fs, found = self.fs, self.found
        names = [path for path in manifest.files_below(fs, self.source) if manifest.is_copied(path)]
        for directory in layout.directories():
            redo.make_dirs(fs, f"{PLACE}/{directory}")
        for path in names:
            if path in found.copies:
                self._put(path, self._changed(path, fs.read(f"{self.source}/{path}")))
            else:
                self._link(f"{self.source}/{path}", path)
        queues, at_us = self.wanted.queues, self.wanted.at_us
        if queues and fs.exists(queues):
            discard(fs, f"{PLACE}/{QUEUES}")
            self._put(QUEUES, fs.read(queues))
        through = {queue: published for queue, (_, published, _) in found.queues.items()}
        messages = found.messages
        if at_us:
            through |= self._done_again(through)
            names = manifest.files_below(fs, PLACE)
            places = filter(None, map(layout.parse_path, names))
            messages = sum(count_in(Below(fs, PLACE), *place) for place in places)
        unknown = self._bring_over(names, through)
        self._keep_journal()
        branches = sorted(map(str, unknown))
        marks = self._marks(through)
        self._put(
            RESTORED, restored.encode(Restored(found.number, found.taken_at, self.now_us, marks, branches, self.lives))
        )
        place = free_place(fs, self.now_us)
        newer = self.newer
        return Done(found.number, found.taken_at, place, messages, newer.messages, newer.lost, branches, at_us)

    def _done_again(self, through: dict[str, int]) -> dict[str, int]:
        """What the journal tells from the snapshot on; returns by queue how far its messages go now."""
        highest: dict[str, int] = {}
        for records in History(self.fs, self.found, self.wanted.at_us).records():
            try:
                redo.replay(Below(self.fs, PLACE), records, self.kinds)
            except JournalDamaged as damage:
                raise SpaceError(
                    f"snapshot {self.found.number} and the journal since do not come to what was there at that time: "
                    f"{damage.lost_files[0]}. Restore to an earlier time, or without --at"
                ) from damage
            for queue, seq in highest_numbers(records).items():
                highest[queue] = max(highest.get(queue, through.get(queue, 0)), seq)
        for queue, seq in highest.items():
            path = layout.watermark_path(queue)
            discard(self.fs, f"{PLACE}/{path}")
            self._put(path, self._mark(queue, seq))
        return highest

    def _marks(self, through: dict[str, int]) -> dict[str, int]:
        """With those of what came back before: it may be brought over, and have been delivered before that."""
        earlier = restored.read(self.fs)
        queues = self._queues()
        if earlier.snapshot == restored.DAMAGED:
            return {queue: self._beyond(queue) for queue in queues | through.keys()}
        return {queue: max(through.get(queue, 0), earlier.queues.get(queue, 0)) for queue in queues | through.keys()}

    def _keep_journal(self) -> None:
        """Who has chosen the wrong moment may choose another one: its segments stay with those that are kept."""
        if self.fs.is_dir(KEPT_JOURNAL):
            for segment in headers(self.fs, JOURNAL)[0]:
                if not self.fs.exists(f"{KEPT_JOURNAL}/{segment.name}"):
                    link_or_copy(self.fs, f"{JOURNAL}/{segment.name}", f"{KEPT_JOURNAL}/{segment.name}")

    def _changed(self, path: str, data: bytes) -> bytes:
        """Of what is copied the parts that tell of another life."""
        if path == layout.FORMAT:
            words = data.decode().split()
            return f"{' '.join(words[:3])} {uuid.uuid4()}\n".encode()
        queue = _queue_of(path)
        if queue is None:
            return data
        return self._mark(queue)

    def _mark(self, queue: str, through: int = 0) -> bytes:
        """As who opens it next has it: readers find what is kept of numbers above the snapshot's before that, too."""
        last = max(through + JUMP, self._beyond(queue))
        return layout.format_watermark(Watermark(last, last))

    def _beyond(self, queue: str) -> int:
        """A number that no message of the queue ever had."""
        marks = [self.found.queues.get(queue, (0, 0, 0))[2], *self._numbers(queue)]
        with suppress(OSError):
            mark = layout.parse_watermark(self.fs.read(layout.watermark_path(queue), layout.WATERMARK_BYTES))
            marks += mark or ()
        return min(max(marks) + JUMP, layout.LAST_SEQ - JUMP)

    def _queues(self) -> set[str]:
        """Those of the space as it is."""
        found = {name for one in listed(self.fs, layout.COMMITTED) if (name := layout.parse_queue_directory(one))}
        return found | self.journal_numbers.keys()

    def _numbers(self, queue: str) -> list[int]:
        ranges = [(number + 1) << layout.RANGE_BITS for number in ranges_in(self.fs, queue)]
        return [self.journal_numbers.get(queue, 0), *ranges]

    def _bring_over(self, names: list[str], through: dict[str, int]) -> set[Xid]:
        """What came since, and the numbers of queues that came since. Returns the branches of which nobody can tell
        whether they were decided since."""
        then = set(branches_in(self.fs, f"{PLACE}/{layout.PREPARED}"))
        for queue in sorted(self._queues() - through.keys()):
            self._put(layout.watermark_path(queue), self._mark(queue))
        if self.wanted.exact:
            return then
        self.newer.bring(names)
        unknown, earlier = self.newer.bring_branches(), restored.read(self.fs)
        left = branches_in(self.fs, f"{PLACE}/{layout.PREPARED}")
        return unknown | {xid for xid in left if earlier.of_branch(xid)}  # nobody could tell of these before

    def _put(self, path: str, data: bytes) -> None:
        redo.make_dirs(self.fs, f"{PLACE}/{path}".rpartition("/")[0])
        self.fs.create(f"{PLACE}/{path}", [data])

    def _link(self, source: str, path: str) -> None:
        link_into(self.fs, source, f"{PLACE}/{path}")


def _swap(fs: FileSystem, done: Done, close: Callable[[], None]) -> None:
    """Each rename may have been done before."""
    removed = done.removed
    redo.make_dirs(fs, removed)
    fs.sync_dir(REMOVED)
    fs.sync_dir("")
    if fs.exists(f"{PLACE}/{layout.FORMAT}"):
        move_away(fs, layout.FORMAT, removed)
        fs.sync_dir("")
        for name in (*REPLACED, *layout.directories()):
            is_built = fs.exists(f"{PLACE}/{name}")
            if is_built or name in NEVER_BUILT:  # else what stands there is what was built
                move_away(fs, name, removed)
            if is_built:
                fs.rename(f"{PLACE}/{name}", name)
        if not fs.exists(layout.OPERATORS) and fs.exists(f"{PLACE}/{layout.OPERATORS}"):
            fs.rename(f"{PLACE}/{layout.OPERATORS}", layout.OPERATORS)
        archived.put_back(fs, PLACE, removed, is_another=done.is_another)
        fs.sync_all()
        close()
        fs.rename(f"{PLACE}/{layout.FORMAT}", layout.FORMAT)
        fs.sync_dir("")
    store.remove_tree(fs, PLACE)
    fs.sync_dir("")


def _queue_of(path: str) -> str | None:
    """Of the path of a watermark."""
    parts = path.split("/")
    return layout.parse_queue_directory(parts[1]) if len(parts) == 3 and parts[2] == ".watermark" else None
