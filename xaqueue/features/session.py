"""A session of a space, with the verbs of its features.

Whoever opens a space above the core, serves it or asks its server has these; ``VERBS`` is also what a server takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

from xaqueue.core.engine import session as core
from xaqueue.core.engine.state import Space
from xaqueue.core.recovery.load import Progress
from xaqueue.core.storage.group_commit import nothing
from xaqueue.core.storage.owner_file import OwnerFile
from xaqueue.core.storage.scheduling import PATIENCE_S
from xaqueue.features import opening
from xaqueue.features.batches import verbs as batches
from xaqueue.features.carry import verbs as carrying
from xaqueue.features.leases import leases
from xaqueue.features.retries import verbs as retries
from xaqueue.features.savepoints import savepoints
from xaqueue.features.scrub import verbs as scrub
from xaqueue.features.snapshots import verbs as snapshots
from xaqueue.features.streams import streams
from xaqueue.features.topics import bulk
from xaqueue.rpc import plain
from xaqueue.rpc.verb import Verb

P = ParamSpec("P")
T = TypeVar("T")


class Verbs:
    """The same methods of a session in a space and of one with a server. A subclass says which half of a verb is its
    own: ``perform``, or ``ask``, and may have more."""

    _half: ClassVar[str]
    verbs: ClassVar[dict[str, Verb[..., Any]]]
    """By their names those of a class."""

    enqueue_many = bulk.enqueue_many
    enqueue_to = bulk.enqueue_to
    publish = bulk.publish
    restore = bulk.restore
    dequeue_many = bulk.dequeue_many
    move = retries.move

    mark = savepoints.mark
    cut = savepoints.cut

    receive = leases.receive
    settle = leases.settle
    extend = leases.extend
    accept = leases.accept

    commit_all = batches.commit_all
    rollback_all = batches.rollback_all
    decision = batches.decision

    reserve = streams.reserve
    consume = streams.consume
    release = streams.release
    reservations = streams.reservations

    carriers = carrying.carriers
    deliver = carrying.deliver
    release_carrier = carrying.release_carrier

    snapshot = snapshots.snapshot
    repair = scrub.repair

    def __init_subclass__(cls, half: str) -> None:
        cls._half = half
        cls.verbs = VERBS | verbs_in(cls)
        for name in cls.verbs.keys() - {one for one, made in vars(cls).items() if not isinstance(made, Verb)}:
            verb = cls.verbs[name]
            setattr(cls, name, getattr(verb, half))  # at no cost of a call

    def do(self, verb: Verb[P, T], /, *arguments: P.args, **options: P.kwargs) -> T:
        """One that stands here or not."""
        result: T = getattr(verb, self._half)(self, *arguments, **options)
        return result


def verbs_in(kind: type) -> dict[str, Verb[..., Any]]:
    return {name: verb for name, verb in vars(kind).items() if isinstance(verb, Verb)}


VERBS = verbs_in(Verbs)


class Session(plain.WholeSession, Verbs, half="perform"):
    """A ResourceManager. Used by one thread at a time; any number of sessions share a space, and take turns where it
    has some."""

    def __new__(cls, space: Space, on_close: Callable[[], None] = nothing) -> Self:
        chosen: type[Any] = TurnSession if cls is Session and space.waiting.turn is not None else cls
        made: Self = super().__new__(chosen)
        return made

    carry = carrying.carry
    can_carry = property(carrying.can_carry)


def _in_turn(verb: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Session, P], T]:
    def turned(self: Session, /, *arguments: P.args, **options: P.kwargs) -> T:
        turn = self.space.waiting.turn
        assert turn is not None
        try:
            turn.acquire(True, PATIENCE_S)
            return verb(self, *arguments, **options)
        finally:
            try:  # noqa: SIM105 (every verb comes by here)
                turn.release()
            except RuntimeError:
                pass  # given up by a wait, or never had

    return turned


class TurnSession(Session, half="perform"):
    """Of a space whose threads take turns: for its calls that touch files, as an enqueue hardly ever does."""

    dequeue = _in_turn(Session.dequeue)
    prepare = _in_turn(Session.prepare)
    commit = _in_turn(Session.commit)


def whole(session: core.Session) -> Session:
    """With all verbs, in the place of one that was just made."""
    return Session(session.space, session.on_close)


def attach(
    path: str | os.PathLike[str],
    *,
    create_missing: bool = False,
    sync: str | None = None,
    watch: bool = True,
    progress: Progress | None = None,
    lock: OwnerFile | None = None,
) -> Session:
    """See ``open.attach``."""
    made = opening.attach(path, create_missing=create_missing, sync=sync, watch=watch, progress=progress, lock=lock)
    return whole(made)
