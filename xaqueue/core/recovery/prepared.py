"""What stands in ``prepared/`` is read here as recovery would read it, and nothing is owned, locked or changed.

For the inspector and the checker, which also look at a space while its owner works in it: a file that vanishes has
moved on, and raises FileNotFoundError out of ``survey`` so that the caller looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from xaqueue.core.engine import quarantine
from xaqueue.core.model import layout
from xaqueue.core.model.block import ADDS, HEAD_READ_BYTES, NOTHING, Head, Kind, Listed, verify
from xaqueue.core.model.block_files import ids_taken, listed, read_checked
from xaqueue.core.model.layout import ACTIVE, COMMIT, FIRST, numbered
from xaqueue.core.model.message_block import read_taken
from xaqueue.core.model.record_kinds import RecordKinds
from xaqueue.core.recovery.load import read_head, read_list
from xaqueue.core.storage.fs import FileSystem
from xaqueue.errors import DamagedBlock
from xaqueue.message import MessageId
from xaqueue.xid import Xid

Holds = Callable[[str, MessageId], bool]
"""Whether a queue has a message of this id in ``committed/``."""


class Verdict(Enum):
    """What the files of a branch in ``prepared/`` say of it."""

    IN_DOUBT = "in doubt"
    COMMITTING = "committing"
    """Its commit is decided, and on its way or completed by the next open."""
    FINISHED = "finished"
    """Its one move is done; only its file is left."""
    INCOMPLETE = "incomplete"
    """Promised to nobody: rolled back by the next open."""


@dataclass(slots=True)
class PreparedBranch:
    """One branch in ``prepared/``. Paths are relative to the space."""

    xid: Xid
    verdict: Verdict = Verdict.IN_DOUBT
    prepared_at: int = 0
    """Int microseconds UTC."""
    blocks: list[tuple[str, Head]] = field(default_factory=list)
    broken: list[tuple[str, str]] = field(default_factory=list)
    """Files that are not the block they should be, each with what is wrong."""
    rows: list[Listed] = field(default_factory=list)
    """What its branch block lists."""
    list_path: str = ""
    """Of its branch block, where it can be read."""
    lost: list[str] = field(default_factory=list)
    """What the branch needs and has no more, in words."""
    leftovers: list[tuple[str, str]] = field(default_factory=list)
    """Files that the next open removes or completes, each with why."""

    @property
    def damage(self) -> list[str]:
        return [f"{path}: {reason}" for path, reason in self.broken] + self.lost


def branches(fs: FileSystem, directory: str) -> tuple[dict[Xid, dict[str, str]], list[str]]:
    """The paths of blocks by xid and suffix, and the paths of files that are foreign here."""
    found: dict[Xid, dict[str, str]] = {}
    foreign = []
    for name in listed(fs, directory):
        parsed = layout.parse_block(name)
        if parsed is None:
            foreign.append(f"{directory}/{name}")
        else:
            found.setdefault(parsed[0], {})[parsed[1]] = f"{directory}/{name}"
    return found, foreign


def prepared(fs: FileSystem) -> tuple[dict[Xid, dict[str, str]], list[str]]:
    """``branches`` of ``prepared/``; a branch that commits in one phase has its blocks in ``active/`` still."""
    found, foreign = branches(fs, layout.PREPARED)
    committing = [xid for xid, files in found.items() if COMMIT in files]
    if committing:
        active, _ = branches(fs, layout.ACTIVE)
        for xid in committing:
            found[xid] = {**active.get(xid, {}), **found[xid]}
    return found, foreign


def read_whole(fs: FileSystem, path: str) -> Head:
    """The head of a block, after its every bit was checked. Raises DamagedBlock, and OSError for a vanished file."""
    head = read_head(fs, path)
    if head.size_bytes >= HEAD_READ_BYTES:
        verify(head, read_checked(fs, path))
    return head


def survey(
    fs: FileSystem,
    xid: Xid,
    files: dict[str, str],
    lost: Sequence[str],
    holds: Holds,
    *,
    whole: bool = False,
    kinds: RecordKinds = (),
) -> PreparedBranch:
    """What a branch is, from its files in ``prepared/`` by suffix, and where one of these kinds decides it, from that.

    lost: names of its blocks in quarantine. whole: whether bodies are read and checked too.
    """
    status = _Survey(fs, files, lost, holds, read_whole if whole else read_head).of(xid)
    decided = next(filter(None, (kind.decides(fs, xid) for kind in kinds)), None) if files else None
    if decided is not None and status.verdict in (Verdict.IN_DOUBT, Verdict.INCOMPLETE):
        status.verdict = Verdict.COMMITTING if decided.commits else Verdict.INCOMPLETE
        status.leftovers = [(path, decided.why) for path in sorted(files.values())[:1]]
    return status


@dataclass(slots=True)
class _Survey:
    fs: FileSystem
    files: dict[str, str]
    lost: Sequence[str]
    holds: Holds
    read: Callable[[FileSystem, str], Head]

    def of(self, xid: Xid) -> PreparedBranch:
        status = PreparedBranch(xid, lost=[f"{layout.QUARANTINE}/{name}" for name in self.lost])
        if COMMIT in self.files:
            self._committing(status)
        elif FIRST in self.files:
            self._first(status)
        elif any(name.partition("~")[0].endswith(f".{FIRST}") for name in self.lost):
            self._rest(status)
        else:
            status.verdict = Verdict.INCOMPLETE
            for path in self.files.values():
                status.leftovers.append((path, "its branch has no .000: never prepared, to be rolled back"))
        return status

    def _committing(self, status: PreparedBranch) -> None:
        path = self.files[COMMIT]
        status.verdict = Verdict.COMMITTING
        rows = self._rows(status, path)
        if rows is None:
            self._rest(status)
            return
        status.rows, status.list_path = rows, path
        status.prepared_at = self.fs.modified_ns(path) // 1000
        status.leftovers.append((path, "its branch is committed: to be rolled forward"))
        for number, row in enumerate(rows, 1):
            suffix = numbered(number)
            if suffix in self.files and row != NOTHING and not self._is_done(row, self.files[suffix]):
                self._block(status, suffix, row)

    def _is_done(self, row: Listed, path: str) -> bool:
        """Whether the message came or went, with all that went with it: then a block of that number may be of a later
        life of the branch."""
        if row.kind is not Kind.DEQUEUE or self.holds(row.queue, row.message_id):
            return row.kind is not Kind.DEQUEUE and self.holds(row.queue, row.message_id)
        with suppress(DamagedBlock):
            head = read_head(self.fs, path)
            return head.checksum != row.checksum or not self._taken(head)[0]
        return True

    def _taken(self, head: Head) -> tuple[list[MessageId], list[MessageId]]:
        """Of the messages that the block of a dequeue names those that are there, and those that are gone."""
        there, gone = list[MessageId](), list[MessageId]()
        for message_id in ids_taken(self.fs, head):
            (there if self.holds(head.properties.queue, message_id) else gone).append(message_id)
        return there, gone

    def _first(self, status: PreparedBranch) -> None:
        path = self.files[FIRST]
        first = self._block(status, FIRST)
        if first is None:
            self._rest(status)
            return
        status.prepared_at = self.fs.modified_ns(path) // 1000
        if first.kind is Kind.BRANCH:
            status.blocks.clear()
            self._all_listed(status, path)
        else:
            self._only(status, path, first)

    def _only(self, status: PreparedBranch, path: str, first: Head) -> None:
        queue, taken = first.properties.queue, first.kind is Kind.DEQUEUE
        there, gone = self._taken(first) if taken else ([], [])
        if gone and (there or self._are_aside(queue, first, gone)):
            self._lose(status, path, queue, gone, "in quarantine")
        elif gone or (not taken and self.holds(queue, first.message_id)):
            status.verdict = Verdict.FINISHED
            status.leftovers.append((path, "what it asks for is done: to be removed"))
        for suffix in sorted(set(self.files) - {FIRST}):
            status.leftovers.append((self.files[suffix], "its branch has one block, .000: to be removed"))

    def _all_listed(self, status: PreparedBranch, path: str) -> None:
        rows = self._rows(status, path)
        if rows is None:
            self._rest(status)
            return
        status.rows, status.list_path = rows, path
        aside = {name.partition("~")[0].rpartition(".")[2] for name in self.lost}
        known = {FIRST}
        for number, row in enumerate(rows, 1):
            suffix = numbered(number)
            known.add(suffix)
            if row == NOTHING:
                continue
            if suffix in self.files:
                self._listed_block(status, suffix, row)
            elif suffix not in aside:
                status.verdict = Verdict.INCOMPLETE
                status.leftovers.append((path, f"lists block {suffix}, which is not there: to be rolled back"))
        for suffix in sorted(set(self.files) - known):
            status.leftovers.append((self.files[suffix], "its branch block does not list it: to be removed"))

    def _listed_block(self, status: PreparedBranch, suffix: str, row: Listed) -> None:
        head = self._block(status, suffix, row)
        gone = self._taken(head)[1] if head is not None and head.kind is Kind.DEQUEUE else ()
        if gone:
            self._lose(status, self.files[suffix], row.queue, gone)

    def _are_aside(self, queue: str, head: Head, gone: Sequence[MessageId]) -> bool:
        """Whether all of them are in quarantine, each by itself or with the block in which they lay."""
        taken = read_taken(head.properties)
        if taken is not None and quarantine.has_message(self.fs, queue, taken[0].message_id, taken[0].first):
            return True
        return all(quarantine.has_message(self.fs, queue, one) for one in gone)

    @staticmethod
    def _lose(status: PreparedBranch, path: str, queue: str, gone: Sequence[MessageId], where: str = "gone") -> None:
        which, more = f"message {gone[0].hex()} of queue {queue}", len(gone) - 1
        also = f" with {more:,} others" if more else ""
        status.lost.append(f"{which}, which {path} dequeues{also}, is {where}")

    def _rest(self, status: PreparedBranch) -> None:
        """Without a list: whatever of the branch can be read."""
        for suffix in sorted(set(self.files) - {FIRST, COMMIT}, key=int):
            self._block(status, suffix)

    def _rows(self, status: PreparedBranch, path: str) -> list[Listed] | None:
        try:
            self.read(self.fs, path)
            return read_list(self.fs, path)
        except DamagedBlock as damage:
            status.broken.append((path, str(damage)))
            return None

    def _block(self, status: PreparedBranch, suffix: str, row: Listed | None = None) -> Head | None:
        path = self.files[suffix]
        try:
            head = self.read(self.fs, path)
            if row is not None and (head.checksum, head.message_id) != (row.checksum, row.message_id):
                raise DamagedBlock("is not the block that its branch lists")  # noqa: TRY301
            if head.kind in ADDS and not head.properties.queue:
                if row is None:
                    raise DamagedBlock("names no queue, and the list of its branch is lost")  # noqa: TRY301
                head.properties.queue = row.queue
        except DamagedBlock as damage:
            status.broken.append((path, str(damage)))
            return None
        status.blocks.append((path, head))
        return head


def named(fs: FileSystem, paths: Iterable[str]) -> dict[str, dict[MessageId, bytes]]:
    """By queue the messages that these blocks of branches add or remove, which recovery needs before it can judge a
    branch, each with the key that its branch claims with it. A damaged block names none."""
    found: dict[str, dict[MessageId, bytes]] = {}
    for path in paths:
        for queue, message_id, key in _named_by(fs, path):
            ids = found.setdefault(queue, {})
            ids[message_id] = key or ids.get(message_id, b"")
    return found


def _named_by(fs: FileSystem, path: str) -> Iterator[tuple[str, MessageId, bytes]]:
    try:
        head = read_head(fs, path)
        rows = read_list(fs, path) if head.kind is Kind.BRANCH else []
    except DamagedBlock:
        return
    if head.kind is Kind.BRANCH:
        yield from ((item.queue, item.message_id, item.key) for item in rows if item != NOTHING)
    elif head.properties.queue and (head.kind not in ADDS or not path.startswith(ACTIVE)):
        yield head.properties.queue, head.message_id, b""
        if (taken := read_taken(head.properties)) is not None:
            yield head.properties.queue, taken[0].message_id, b""  # by which its block is found
