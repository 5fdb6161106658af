"""The driver decides a batch once: in its only space, or in the first of several, whose decision holds for all.

Over several spaces, every branch is seen to be prepared, then the first space ("home") records the decision, with the
branches of the others; then these commit theirs. A crash in between leaves home's record: whoever writes the batch
again finds it first, finishes what it says, and all that was written anew is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import groupby
from operator import itemgetter

from xaqueue.batch import ONE_SPACE, Batch, Decision
from xaqueue.errors import OperationalError, UnknownXid
from xaqueue.rpc.client import RemoteManager
from xaqueue.space.format import read_format
from xaqueue.spark.sink_options import Space
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

Reach = Callable[[Space], RemoteManager]


def commit(spaces: Sequence[Space], reach: Reach, batch: Batch, branches: Mapping[int, Sequence[Xid]]) -> None:
    """branches: by the number of their space. Idempotent: a batch that is decided is finished as it was decided."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(closing(reach(space))) for space in spaces]
        if len(spaces) == 1:
            sessions[0].commit_all(batch, branches.get(0, ()))
        else:
            _Several(spaces, sessions, batch).commit(branches)


def roll_back(spaces: Sequence[Space], reach: Reach, batch: Batch) -> None:
    """What is prepared of a batch that is not decided; one that is decided is left to whoever writes it again."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(closing(reach(space))) for space in spaces]
        if any(session.decision(batch) is not None for session in sessions):
            return
        for session in sessions:
            session.rollback_all(batch)


class _Several:
    def __init__(self, spaces: Sequence[Space], sessions: Sequence[RemoteManager], batch: Batch) -> None:
        self._spaces = spaces
        self._sessions = sessions
        self._batch = batch
        self._ids = [_id_of(space, session) for space, session in zip(spaces, sessions, strict=True)]
        if len(set(self._ids)) < len(self._ids):
            raise OperationalError('the same space is named twice in "path" or "server": name each once')

    def commit(self, branches: Mapping[int, Sequence[Xid]]) -> None:
        found = self._decided()
        if found is None:
            self._check(branches)
            found = 0, self._sessions[0].commit_all(self._batch, branches.get(0, ()), self._listed(branches))
        self._finish(*found)

    def _listed(self, branches: Mapping[int, Sequence[Xid]]) -> list[tuple[str, Xid]]:
        """What home records beside its own; where that is nothing, one of its own, as a sign that it is home."""
        others = [(self._ids[number], xid) for number in branches if number for xid in branches[number]]
        return others or [(self._ids[0], xid) for xid in branches.get(0, ())[:1]]

    def _decided(self) -> tuple[int, Decision] | None:
        """What was decided before, and in which space. Raises OperationalError where that is only a part of it."""
        parts = []
        for number, session in enumerate(self._sessions):
            decision = session.decision(self._batch)
            if decision is not None and _is_whole(decision):
                return number, decision
            if decision is not None:
                parts.append(number)
        if parts:
            raise OperationalError(
                f"{self._batch} was committed in {self._spaces[parts[0]]} as another space had decided, which is not "
                'among those that are named now: name it in "path" or "server" once more, until the query has gone on'
            )
        return None

    def _check(self, branches: Mapping[int, Sequence[Xid]]) -> None:
        """Raises UnknownXid: home cannot see whether the branches of the others are there."""
        for number, xids in branches.items():
            for xid in xids if number else ():
                if self._sessions[number].outcome(xid) is not Outcome.IN_DOUBT:
                    raise UnknownXid(
                        f"branch {xid} is no longer prepared in {self._spaces[number]}: nothing of {self._batch} is "
                        "decided. Start the query again, and it is written again"
                    )

    def _finish(self, home: int, decision: Decision) -> None:
        listed = _by_space(decision.others)
        lacking = sorted(set(listed) - set(self._ids))
        for number, session in enumerate(self._sessions):
            xids = listed.get(self._ids[number], [])
            if number == home:
                session.commit_all(self._batch, decision.xids, decision.others)
            elif xids:
                session.commit_all(self._batch, xids)
            else:
                session.rollback_all(self._batch)
        if lacking:
            raise OperationalError(
                f"{self._batch} was committed with branches in other spaces (id {', '.join(lacking)}): name these in "
                '"path" or "server" once more, until the query has gone on'
            )


def _is_whole(decision: Decision) -> bool:
    """Whether it says all of its batch: it names other spaces, or was made for one space alone."""
    return bool(decision.others) or all(xid.format_id == ONE_SPACE for xid in decision.xids)


def _by_space(others: Iterable[tuple[str, Xid]]) -> dict[str, list[Xid]]:
    found = sorted(others, key=itemgetter(0))
    return {space: [xid for _, xid in group] for space, group in groupby(found, key=itemgetter(0))}


def _id_of(space: Space, session: RemoteManager) -> str:
    """The id in its FORMAT file."""
    if space.path and not space.server:
        return read_format(space.path).id
    return str(session.status()["format"]["id"])
