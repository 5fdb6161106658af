"""The driver decides a batch once: in the first of its spaces ("home"), whose decision holds for all.

Every branch is seen to be prepared, then home records the decision, with the branches of the others; then these commit
theirs, and record that they did, also where nothing was written. A crash in between leaves home's record: whoever
writes the batch again finds it first, finishes what it says, and all that was written anew is rolled back.

What was decided is for good only where it is the same batch: one of the same number that is made from other offsets, or
goes to other spaces, is refused before anything is decided, and so is one below the last that any space knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

from xaqueue.batch import Batch, Decision, Plan
from xaqueue.errors import InvalidArgument, OperationalError, UnknownXid
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.space.model.format import read_format
from xaqueue.spark.sink_options import Space
from xaqueue.spark.way_on import queues_read, way_on
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

Reach = Callable[[Space], RemoteManager]


def commit(
    spaces: Sequence[Space],
    reach: Reach,
    batch: Batch,
    plan: Plan,
    branches: Mapping[int, Sequence[Xid]],
    *,
    queues: Collection[str] = (),
    is_numbered_by_user: bool = False,
) -> Decision | None:
    """branches: by the number of their space; queues: to which it goes. Idempotent: a batch that is decided is finished
    as it was decided.

    Returns the decision that was there before; None where this is the first. is_numbered_by_user: one below the last
    is passed over, and nothing is done but to roll back what was prepared for it.
    """
    with ExitStack() as stack:
        deciding = _Deciding(spaces, [stack.enter_context(closing(reach(space))) for space in spaces], batch, plan)
        return deciding.commit(branches, queues, is_numbered_by_user)


def roll_back(spaces: Sequence[Space], reach: Reach, batch: Batch) -> None:
    """What is prepared of a batch that is not decided; one that is decided is left to whoever writes it again."""
    with ExitStack() as stack:
        deciding = _Deciding(spaces, [stack.enter_context(closing(reach(space))) for space in spaces], batch, Plan())
        deciding.roll_back()


class _Deciding:
    def __init__(self, spaces: Sequence[Space], sessions: Sequence[RemoteManager], batch: Batch, plan: Plan) -> None:
        self._spaces = spaces
        self._sessions = sessions
        self._batch = batch
        self._ids = [id_of(space, session) for space, session in zip(spaces, sessions, strict=True)]
        if len(set(self._ids)) < len(self._ids):
            raise OperationalError('the same space is named twice in "path" or "server": name each once')
        self._plan = replace(plan, spaces=tuple(self._ids))

    def commit(
        self, branches: Mapping[int, Sequence[Xid]], queues: Collection[str], is_numbered_by_user: bool
    ) -> Decision | None:
        standing = [session.decision(self._batch) for session in self._sessions]
        later = [one for one in standing if one is not None and one.batch != self._batch]
        if later and is_numbered_by_user:
            self.roll_back()
            return later[0]
        self._check_same([*later, *standing])
        before = self._decided(standing)
        if before is None:
            self._check_not_read(queues)
            self._check_prepared(branches)
            others = [(self._ids[number], xid) for number in branches if number for xid in branches[number]]
            decision = self._sessions[0].commit_all(self._batch, branches.get(0, ()), others, self._plan)
            self._finish(0, decision, range(1, len(self._sessions)))
            return None
        home, decision = before
        self._finish(home, decision, range(len(self._sessions)))
        return decision

    def roll_back(self) -> None:
        standing = [session.decision(self._batch) for session in self._sessions]
        decisions = [one for one in standing if one is not None and one.batch == self._batch]
        decided = {space for decision in decisions for space in decision.plan.spaces}
        for space, session in zip(self._ids, self._sessions, strict=True):
            if space not in decided:
                session.rollback_all(self._batch, self._ids)

    def _check_same(self, standing: Iterable[Decision | None]) -> None:
        for decision in filter(None, standing):
            why_not = decision.why_not(self._batch, self._plan)
            if why_not:
                for found, space in zip(self._ids, self._spaces, strict=True):
                    why_not = why_not.replace(found, str(space))
                raise InvalidArgument(f"{why_not}{way_on(decision.plan.offsets)}")

    def _decided(self, standing: Sequence[Decision | None]) -> tuple[int, Decision] | None:
        """What home has decided before, and which of these it is. OperationalError where home has forgotten it."""
        parts = [(number, one) for number, one in enumerate(standing) if one is not None]
        for number, decision in parts:
            if decision.plan.spaces[:1] in ((), (self._ids[number],)):
                return number, decision
        for number, decision in parts:
            home = self._spaces[self._ids.index(decision.plan.spaces[0])]
            raise OperationalError(
                f"{self._batch} was committed in {self._spaces[number]} as {home} had decided, which knows nothing of "
                "it and so was restored from an older copy: bring the newer one back; nothing was written"
            )
        return None

    def _check_not_read(self, queues: Collection[str]) -> None:
        """InvalidArgument for a queue that the same query reads: it would go on for ever."""
        for path, space_id, read in queues_read(self._plan.offsets):
            for found, space in zip(self._ids, self._spaces, strict=True):
                is_same = found.startswith(space_id) if space_id else path == space.path
                copied = [queue for queue in read if is_same and queue in queues]
                if copied:
                    raise InvalidArgument(
                        f"queue {copied[0]!r} of {space} is read and written by one query, which would copy its own "
                        "copies for ever: write to another queue. Nothing was written"
                    )

    def _check_prepared(self, branches: Mapping[int, Sequence[Xid]]) -> None:
        """Raises UnknownXid: home cannot see whether the branches of the others are there."""
        for number, xids in branches.items():
            for xid in xids if number else ():
                if self._sessions[number].outcome(xid) is not Outcome.IN_DOUBT:
                    raise UnknownXid(
                        f"branch {xid} is no longer prepared in {self._spaces[number]}: nothing of {self._batch} is "
                        "decided. Start the query again, and it is written again"
                    )

    def _finish(self, home: int, decision: Decision, numbers: Iterable[int]) -> None:
        """As home has decided, and with its plan, whatever is known of it now."""
        listed = _by_space(decision.others)
        for number in numbers:
            is_home = number == home
            xids = decision.xids if is_home else listed.get(self._ids[number], ())
            self._sessions[number].commit_all(self._batch, xids, decision.others if is_home else (), decision.plan)


def _by_space(others: Iterable[tuple[str, Xid]]) -> dict[str, list[Xid]]:
    found = sorted(others, key=itemgetter(0))
    return {space: [xid for _, xid in group] for space, group in groupby(found, key=itemgetter(0))}


def id_of(space: Space, session: RemoteManager) -> str:
    """The id in its FORMAT file."""
    if space.path and not space.server:
        return read_format(space.path, is_expected=True).id
    return str(session.status()["format"]["id"])
