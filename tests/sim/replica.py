"""A replica of the world's space: the product's own follower, without threads, sockets or a directory of the system.

It keeps what the space was at each end of its journal that it may have come to, as the model had it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast
from unittest import mock

from sim import doors
from sim.model import Model
from sim.wire import US
from support.failing_disk import FailingFileSystem
from support.forgetful import ForgetfulFileSystem
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.format import parse
from xaqueue.core.owner.record import Owner
from xaqueue.core.storage.fs import replace_file
from xaqueue.core.storage.owner_file import OwnerFile
from xaqueue.core.storage.scheduling import Condition, Threads
from xaqueue.errors import ConnectionLost
from xaqueue.features.replica import follower, promote, replicated, shipping
from xaqueue.features.replica.follower import ReplicaFollower
from xaqueue.features.replica.journal_copy import JournalCopy
from xaqueue.features.snapshots import restore, store
from xaqueue.rpc.methods.replication import give_up_copy
from xaqueue.rpc.server.calls import perform
from xaqueue.rpc.server.peer import NOBODY, Caller, ServerCalls

Place = tuple[int, int]
"""Epoch and LSN of a journal."""


def end_of(space: Space) -> Place:
    """Of its journal."""
    return shipping_of(space).end


def shipping_of(space: Space) -> shipping.Shipping:
    found = shipping.shipping_of(space)
    assert found is not None
    return found


def prune(space: Space) -> None:
    """What is kept of the journal, as an owner does behind a checkpoint."""
    store.prune_for(space.fs, space.definitions)


class Turns(threading.Event):
    """Who follows is stopped when it has looked so often whether it is to stop; it waits for nothing."""

    left = 0

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


class Lock:
    """Nobody else wants the directory."""

    def write(self, fs: ForgetfulFileSystem, data: bytes) -> None:
        replace_file(fs, layout.OWNER, data)


class Directories:
    """They follow now and then, and not in a thread of their own."""

    def __init__(self, copy: JournalCopy, dice: random.Random) -> None:
        self.copy, self.dice = copy, dice

    def check(self) -> None:
        if self.dice.random() < 0.5:
            self.copy.follow()

    def stop(self) -> None: ...


class Replica:
    def __init__(self, fs: FailingFileSystem) -> None:
        self.fs = fs
        self.follower: ReplicaFollower | None = None
        """None: its process is no more."""
        self.is_away = False
        """It answers nobody until its source is opened anew."""
        self.acknowledged: Place = (0, 0)
        self.noted: list[tuple[Place, Model, Sequence[Model]]] = []
        """What the space was at an end of its journal, and what it may have been behind that, before the next."""

    def note(self, space: Space, model: Model, allowed: Sequence[Model]) -> None:
        self.noted.append((end_of(space), model, allowed))

    def at(self, place: Place) -> list[Model]:
        """What the space may have been there."""
        before = [noted for noted in self.noted if noted[0] <= place]
        if before and before[-1][0] == place:
            return [before[-1][1]]
        following = self.noted[len(before) : len(before) + 1]
        # What was copied while the space was opened has nothing before it.
        found = [*(model for _, _, allowed in before[-1:] for model in allowed), *(model for _, model, _ in following)]
        return [*map(amid_decisions, found)]

    def later(self) -> list[Model]:
        """What the space may have been at what it has acknowledged, and behind that."""
        following = (model for place, _, allowed in self.noted if place >= self.acknowledged for model in allowed)
        return [*self.at(self.acknowledged), *following]

    def take(self, space: Space, connect: Callable[..., Any], turns: int, dice: random.Random, now_us: int) -> None:
        """What there is to be shipped, in so many turns, or all. Raises what its source fails with, and Crashed."""
        with world_of(self.fs, connect, dice, now_us):
            if self.follower is None:
                lock = cast(OwnerFile, Lock())
                self.follower = ReplicaFollower(Path("replica"), self.fs, lock, "xaq://there:1", Turns())
            cast(Turns, self.follower._stopped).left = turns
            try:
                self.follower._follow(once=turns > 100)
            finally:
                self.acknowledged = max(self.acknowledged, shipping_of(space)._has)

    @property
    def is_one(self) -> bool:
        """Whether it was ever a whole copy, or is about to be one."""
        return self.fs.exists(replicated.REPLICATION) or restore.is_cut_off(self.fs)


def amid_decisions(model: Model) -> Model:
    """As it is where of a decision by hand the record had come, and not that of its commit: who opens the space does
    that, and gives the numbers."""
    left = model.copy()
    for one in (one for branch in left.branches.values() for one in branch.decided):
        one.seq = 0
    return left


class Near:
    """Its source, asked without a wire. may_copy: else a whole copy is refused."""

    def __init__(self, space: Space, *, may_copy: bool) -> None:
        self.may_copy = may_copy
        self.caller = Caller(doors.session(space), cast(ServerCalls, None), US, NOBODY)

    def call(self, method: str, *params: Any, waits_s: float = 0.0) -> Any:
        if method == "replica_begin" and not self.may_copy:
            raise ConnectionLost("a step waits, so that no snapshot is taken")
        return perform(self.caller, method, list(params))

    def drop(self) -> None:
        give_up_copy(self.caller)


class Turning(Threads):
    """Who waits in a space lets the replica have its turn instead, for so many seconds at most."""

    def __init__(self, turn: Callable[[Space, float], None]) -> None:
        self.space: Space | None = None
        self._turn = turn
        self._is_taken = False

    def give_turn(self, limit_s: float) -> None:
        if self.space is not None and not self._is_taken:
            self._is_taken = True
            try:
                self._turn(self.space, limit_s)
            finally:
                self._is_taken = False

    def condition(self, lock: threading.Lock) -> Condition:
        return OnTurns(lock, self.give_turn)

    def let_others(self) -> None:
        self.give_turn(0.0)


class OnTurns:
    """A condition that comes true in another's turn, or never."""

    def __init__(self, lock: threading.Lock, turn: Callable[[float], None]) -> None:
        self._lock, self._turn = lock, turn

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None, "nobody would ever wake it"
        self._lock.release()
        try:
            self._turn(timeout)
        finally:
            self._lock.acquire()
        return True

    def notify_all(self) -> None: ...


@contextmanager
def world_of(fs: ForgetfulFileSystem, connect: Callable[..., Any], dice: random.Random, now_us: int) -> Iterator[None]:
    """What a follower has around it is this."""
    instead: dict[Any, dict[str, Any]] = {
        follower: {
            "RemoteManager": lambda _, connect_s, hello: connect(hello=hello),
            "_Directories": lambda copy: Directories(copy, dice),
            "read_format": lambda _: parse(fs.read(layout.FORMAT).decode()),
            "WAIT_S": 0.0,
        },
        shipping: {"PIECE_BYTES": dice.choice((500, 3000, 1 << 20))},
    }
    with ExitStack() as stack:
        for module, names in instead.items():
            for name, value in names.items():
                stack.enter_context(mock.patch.object(module, name, value))
        stack.enter_context(mock.patch("time.time_ns", return_value=now_us * 1000))
        yield


def take_place(fs: ForgetfulFileSystem, now_us: int, defined: Definitions) -> None:
    """It is the space from then on; again, where that was cut off. Its copy is whole."""
    found = replicated.read(fs)
    assert found is not None
    if found.role == replicated.REPLICA:
        here = Owner(found.epoch, "host", 1, "", "JOURNAL", space=fs.read(layout.FORMAT).decode().strip())
        with mock.patch("secrets.randbelow", return_value=0):
            promote.take_place(fs, here, now_us, defined, lambda data: replace_file(fs, layout.OWNER, data))


def copied_at(fs: ForgetfulFileSystem) -> Place | None:
    """Where in its source's journal it has begun; None once it was promoted. A copy that was cut off is finished."""
    if restore.is_cut_off(fs):
        restore.finish(fs)
    found = replicated.read(fs)
    return (found.journal, found.lsn) if found is not None and found.role == replicated.REPLICA else None


def promoted_at(fs: ForgetfulFileSystem) -> tuple[int, Place]:
    """Its epoch, and where its journal had ended."""
    found = replicated.read(fs)
    assert found is not None
    assert found.role == replicated.PROMOTED
    return found.epoch, (found.journal, found.lsn)
