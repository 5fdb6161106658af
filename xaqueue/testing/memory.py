"""A queue space in memory: the real engine, on a file system that forgets at a crash what was not synced.

Nothing is on a disk, and no thread does anything until a message expires, is tried too often, or a branch has a time
limit. It belongs to one process. A power loss ends the engine where it is; what may be left of the files is recovered
as ever.
"""

from __future__ import annotations

import itertools
import os
import random
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast, get_args

from xaqueue.connection import Connection
from xaqueue.core.engine.features import Definer
from xaqueue.core.engine.state import Space
from xaqueue.core.model import definitions as definitions_of
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.owner.chores import Chores
from xaqueue.core.owner.definitions_file import hardening_of
from xaqueue.core.owner.threads import TimeLimits
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.ids import fresh_id
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.endpoint import MEMORY
from xaqueue.errors import InvalidArgument, ResourceFailed
from xaqueue.features.ages.chores import Expire
from xaqueue.features.defining import edits
from xaqueue.features.defining.queues_file import check_empty
from xaqueue.features.opening import open_space
from xaqueue.features.replica import options as replica
from xaqueue.features.session import Session
from xaqueue.features.snapshots import options as snapshots
from xaqueue.features.streams.cleanup import Clear
from xaqueue.message import Message, check_queue_name
from xaqueue.resource_manager import ResourceManager
from xaqueue.rpc.client import reach
from xaqueue.spans import connection
from xaqueue.testing.crashing import Crashed, CrashingFileSystem
from xaqueue.testing.forgetful import Tree
from xaqueue.times import span_us

Queues = Iterable[str] | Mapping[str, Mapping[str, Any]] | str | os.PathLike[str]
Kept = Literal["nothing", "part", "everything"]
"""What a power loss leaves of what was not synced; of ``part`` chance decides, each time alike."""

_alive: weakref.WeakSet[MemorySpace] = weakref.WeakSet()
_numbers = itertools.count(1)


class MemorySpace:
    """A space for tests, with the same connections as any other: ``connect``, or ``xaqueue.connect(space)``.

    Safe for threads. As a block it is closed at its end.
    """

    def __init__(self, queues: Queues = (), *, sync: str | None = None) -> None:
        """queues: names; or names and the options of each, as in queues.toml; or a queues.toml, as text (of more than
        one line) or as the path of it or of its space. Without any, every name is taken. What is about the disk, such
        as [snapshots] and [replication], has no effect here.

        sync: flags, as for ``xaqueue.connect``. Raises InvalidArgument.
        """
        self._pid = os.getpid()
        self._text = text_of(queues)
        definitions = _parsed(self._text)
        self._hardening = hardening_of(sync, definitions)
        self._id = str(uuid.uuid4())
        self._ahead_ns = 0
        self._epoch = 0
        self._is_closed = False
        self._threads: list[_Chores] = []
        self._begin(Tree(dict.fromkeys(layout.directories())))
        self.place = f"{MEMORY}://{next(_numbers)}"
        """What ``xaqueue.connect`` takes for it, in this process, until it is closed."""
        reach.in_memory[self.place] = self._connect
        _alive.add(self)

    def __fspath__(self) -> str:
        return self.place

    def connect(self) -> Connection:
        """A connection of its own session. Raises ResourceFailed in a forked child, without power, and once closed."""
        self._check()
        return connection(cast(ResourceManager, _Cut(Session(self._engine), self._fs)), fresh_id)

    def messages(self, queue: str) -> list[Message]:
        """All messages of a queue in its order, as ``Connection.browse`` has them. Raises as that does."""
        with self.connect() as connection:
            return list(connection.browse(queue))

    def advance(self, seconds: float | timedelta) -> None:
        """The clock of the space goes on by so much: what is delayed becomes due, what expires does so, also over a
        ``reopen``. Not moved: leases, time limits of branches, and how long a call waits. Raises InvalidArgument."""
        self._ahead_ns += span_us("seconds", seconds) * 1000
        with self._engine.lock:
            for queue in self._engine.queues.values():
                queue.arrived.notify_all()
        self._engine.wakes.consumed.wake()

    def close(self) -> None:
        """All is gone. A second call does nothing, nor does one in a forked child."""
        reach.in_memory.pop(self.place, None)
        if not self._is_closed and self._pid == os.getpid():
            self._is_closed = True
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Power losses

    @property
    def is_crashed(self) -> bool:
        """Whether the power is gone."""
        return self._fs.crashed

    def crash_after(self, calls: int) -> None:
        """The power goes after so many more calls that change or sync something. Calls of connections that are on their
        way then raise Crashed, and all later ones ResourceFailed, until ``reopen``."""
        self._check()
        if not isinstance(calls, int) or isinstance(calls, bool) or calls < 0:
            raise InvalidArgument(f"crash_after({calls!r}) is refused: a number of calls, from 0, is wanted")
        self._fs.crash_after = self._fs.calls + calls

    def crash(self) -> None:
        """The power goes now. A second call does nothing."""
        self._fs.crashed = True
        self._stop()

    def reopen(self, kept: Kept = "everything") -> Self:
        """The power comes back, or goes now and comes back: recovers from what was synced, and what was ``kept`` of
        the rest. Connections of before stay dead. Returns itself."""
        if kept not in get_args(Kept):
            raise InvalidArgument(f"kept {kept!r} is refused: {', '.join(get_args(Kept))} are wanted")
        self._check(is_crashed=True)
        self.crash()
        self._begin(_left_of(self._fs, kept))
        return self

    # Within

    def _begin(self, tree: Tree) -> None:
        self._fs = CrashingFileSystem(tree=tree)
        self._epoch += 1
        self._engine = engine = open_space(
            self._fs,
            _parsed(self._text).check_sync(self._hardening),
            hardening=self._hardening,
            epoch=self._epoch,
            journalled=self._epoch > 1 and self._hardening.journal,
            space_id=self._id,
            now_ns=lambda: time.time_ns() + self._ahead_ns,
        )
        engine.definer = _Definer(engine, self._redefine)
        self._threads = [_Chores(engine, [Expire(engine), Clear(engine)]), _Chores(engine, [TimeLimits(engine)])]

    def _stop(self) -> None:
        """Ends the engine where it is; nothing more is written."""
        self._engine.log.end(ResourceFailed("the space in memory is closed, or its power is gone: reopen() it"))
        for thread in self._threads:
            with suppress(Crashed):
                thread.stop()
        self._engine.close()

    def _check(self, *, is_crashed: bool = False) -> None:
        if self._pid != os.getpid():
            raise ResourceFailed(
                "a space in memory belongs to one process, and this is a forked child of it: have the space in a "
                "directory, served by `xaqueue serve` or the pytest fixture queue_server"
            )
        if self._is_closed:
            raise ResourceFailed("the space in memory is closed: make another one")
        if self._fs.crashed and not is_crashed:
            raise ResourceFailed("the power of the space in memory is gone: reopen() it")

    def _connect(self, sync: str | None) -> Connection:
        if sync is not None and Hardening.parse(sync) != self._hardening:
            raise InvalidArgument(f"the space in memory was made with {self._hardening}, not {sync}")
        return self.connect()

    def _redefine(self, edit: Callable[[str], str], check: Callable[[], None]) -> None:
        with self._engine.defining:
            text = edit(self._text)
            self._engine.redefine(_parsed(text).check_sync(self._hardening), check)
            self._text = text


@dataclass(frozen=True, slots=True)
class _Definer(Definer):
    """What the space is defined by."""

    space: Space
    redefine: Callable[[Callable[[str], str], Callable[[], None]], None]

    def define(self, name: str, settings: Mapping[str, Any], table: str) -> None:
        self.redefine(lambda text: edits.with_queue(text, name, settings, table), lambda: None)
        self.space.wakes.consumed.wake()

    def undefine(self, queue: str) -> None:
        self.redefine(lambda text: edits.without_queue(text, queue), lambda: check_empty(self.space, queue))


class Crash:
    """One run of what is tried at every moment: the power goes at some call in the block ``with crash:``, and behind
    the block the space has recovered from that."""

    def __init__(self, space: MemorySpace, call: int, kept: Kept) -> None:
        self.space = space
        self.call = call
        """The power goes before this call of the block to the disk, counted from 0, or at its end."""
        self.kept = kept
        """Of what was not synced."""
        self.is_finished: bool | None = None
        """Whether the block came to its end; None before it ran."""

    def __enter__(self) -> Self:
        self.space.crash_after(self.call)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        was_lost = self.space.is_crashed
        self.is_finished = not was_lost
        self.space.reopen(self.kept)
        return was_lost and isinstance(error, (Exception, Crashed))  # of a program that is dead

    def __repr__(self) -> str:
        return f"<Crash before call {self.call}, {self.kept} kept>"


def every_crash(queues: Queues = (), *, sync: str | None = None) -> Iterator[Crash]:
    """A new space for each moment at which the power may go, and each ``Kept``: before each call to the disk of the
    block ``with crash:``, and at last behind it.

    queues, sync: of the spaces, as for MemorySpace. What is done with ``crash.space`` before the block is done in full.
    An error that the block raises once the power is gone is dropped. Raises InvalidArgument where a run had no block.
    """
    for call in itertools.count():
        is_last = True
        for kept in get_args(Kept):
            with MemorySpace(queues, sync=sync) as space:
                crash = Crash(space, call, kept)
                yield crash
            if crash.is_finished is None:
                raise InvalidArgument("no power loss was tried: put what is to be tried into a block `with crash:`")
            is_last = is_last and crash.is_finished
        if is_last:
            return


class _Cut:
    """A session whose calls raise Crashed where the power goes meanwhile, whatever the engine makes of that."""

    def __init__(self, session: Session, fs: CrashingFileSystem) -> None:
        self._session = session
        self._fs = fs

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._session, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            before = self._fs.crashed
            try:
                return found(*arguments, **named)
            except BaseException as error:
                if not self._fs.crashed or before:
                    raise
                self._session.space.log.fail(error)  # whatever it was that met it
                raise Crashed(f"during {name}") from error

        setattr(self, name, call)
        return call


class _Chores(Chores):
    """Ends with the power."""

    def _run(self) -> None:
        with suppress(Crashed):
            super()._run()


def _left_of(fs: CrashingFileSystem, kept: Kept) -> Tree:
    with fs.lock:
        if kept == "everything":
            return fs.tree_after_kill()
        if kept == "nothing":
            *_, barest = fs.barest_trees()
            return barest
        return fs.tree_by_chance(random.Random(fs.calls))


def text_of(queues: Queues) -> str:
    """As a queues.toml. Raises InvalidArgument."""
    if isinstance(queues, os.PathLike) or (isinstance(queues, str) and "\n" not in queues):
        path = Path(queues)
        try:
            return (path / layout.QUEUES if path.is_dir() else path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(
                f"queues {os.fspath(path)!r} is no queues.toml that can be read ({error}): give its path, its text, or "
                "names as a list"
            ) from error
    if isinstance(queues, str):
        return queues
    options = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues)
    for name in options:
        check_queue_name(name)
    if not any(options.values()):
        return "".join(f'[queues."{name}"]\n' for name in options) or "[default]\n"
    import tomlkit  # slow to load

    try:
        return tomlkit.dumps({"queues": {name: given or {} for name, given in options.items()}})
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"queues are refused ({error}): give each its options, as queues.toml has them") from None


def _parsed(text: str) -> Definitions:
    """Without what is about the disk: the shortest journal, and nobody who has to have it, too."""
    found, off = definitions_of.parse(text), (snapshots.TABLE.name, replica.TABLE.name)
    tables = {name: said for name, said in found.tables.items() if name not in off}
    return replace(found, journal_segment_bytes=SMALLEST_SEGMENT_BYTES, tables=tables)


def _after_fork() -> None:
    for space in _alive:
        space._engine.abandon()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork)
