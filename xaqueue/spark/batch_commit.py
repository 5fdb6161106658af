"""The driver decides a batch once: in the first of its spaces ("home"), whose decision holds for all.

Every branch is seen to be prepared, then home records the decision, with the branches of the others; then these commit
theirs, and record that they did, also where nothing was written. A crash in between leaves home's record: whoever
writes the batch again finds it first, finishes what it says, and all that was written anew is rolled back.

The next batch is decided once every space has the last one: what a crash left of that is finished first, since home's
record of it goes. What was decided is for good only where it is the same batch: one of the same number that is made
from other offsets, or goes to other spaces, is refused before anything is decided, and so is one below the last that
any space knows. The error says how a query goes on behind what it has written last, where its checkpoint does not know
that any more.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from xaqueue.batch import Batch, BatchDecision, Plan
from xaqueue.core.model.format import read_format
from xaqueue.errors import InvalidArgument, OperationalError, UnknownXid
from xaqueue.rpc.client import server_launcher
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.xa import Outcome
from xaqueue.xid import Xid


class SinkSpace(NamedTuple):
    """One that is written to. At least one of the two is there."""

    path: str = ""
    server: str = ""

    def __str__(self) -> str:
        return self.path or self.server


def id_of(space: SinkSpace, session: RemoteManager) -> str:
    """The id in its FORMAT file."""
    if space.path and not space.server:
        return read_format(space.path, is_expected=True).id
    return str(session.space["space"])


@contextmanager
def reached(spaces: Sequence[SinkSpace], batch: Batch, plan: Plan) -> Iterator[BatchCommit]:
    """With a session in each of the spaces."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(closing(server_launcher.reach(*space))) for space in spaces]
        yield BatchCommit(spaces, sessions, batch, plan)


class BatchCommit:
    """One batch in all of its spaces."""

    def __init__(
        self, spaces: Sequence[SinkSpace], sessions: Sequence[RemoteManager], batch: Batch, plan: Plan
    ) -> None:
        self._spaces = spaces
        self._sessions = sessions
        self._batch = batch
        self._ids = [id_of(space, session) for space, session in zip(spaces, sessions, strict=True)]
        if len(set(self._ids)) < len(self._ids):
            raise OperationalError('the same space is named twice in "path" or "server": name each once')
        self._plan = replace(plan, spaces=tuple(self._ids))

    def check_seen(self, ids: Mapping[int, str], is_passed_over: bool) -> None:
        """OperationalError for a task that has seen other spaces than the driver, by the number of each, or a copy of
        one: is_passed_over: it has written nothing, since it found the batch decided.
        """
        for number, found in ids.items():
            is_copy = is_passed_over and all(one.decision(self._batch) is None for one in self._sessions)
            if found != self._ids[number] or is_copy:
                raise OperationalError(
                    f"tasks have another space at {self._spaces[number]} than the driver ({found[:8]}"
                    f"{', but a copy' if is_copy else ''}, and {self._ids[number][:8]}); nothing was written. Give all "
                    "executors the driver's"
                )

    def commit(
        self, branches: Mapping[int, Sequence[Xid]], queues: Collection[str], is_numbered_by_user: bool
    ) -> BatchDecision | None:
        """branches: by the number of their space; queues: to which it goes. Idempotent: a batch that is decided is
        finished as it was decided.

        Returns the decision that was there before; None where this is the first. is_numbered_by_user: one below the
        last is passed over, and nothing is done but to roll back what was prepared for it.
        """
        # one space alone sees to it by itself that its last batch is finished
        asked = self._batch if len(self._sessions) == 1 else replace(self._batch, number=0)
        last = [session.decision(asked) for session in self._sessions]
        known = [one if one is not None and one.batch.number >= self._batch.number else None for one in last]
        later = [one for one in known if one is not None and one.batch != self._batch]
        if later and is_numbered_by_user:
            self.roll_back()
            return later[0]
        self._check_same([*later, *known])
        home, decision = self._decided(known)
        if decision is not None:
            self._finish(home, decision, range(len(self._sessions)))
            return decision
        self._check_not_read(queues)
        self._check_prepared(branches)
        self._finish_last(last)
        others = [(self._ids[number], xid) for number in branches if number for xid in branches[number]]
        decision = self._sessions[0].commit_all(self._batch, branches.get(0, ()), others, self._plan)
        self._finish(0, decision, range(1, len(self._sessions)))
        return None

    def _finish_last(self, last: Sequence[BatchDecision | None]) -> None:
        """In each space that has not heard of the last batch. What is not in doubt there, others have ended."""
        for home, decision in enumerate(last):
            if decision is None or decision.plan.spaces[:1] != (self._ids[home],):
                continue
            for number, one in enumerate(last):
                is_known = one is not None and one.batch.number >= decision.batch.number
                if not is_known and self._ids[number] in decision.plan.spaces:
                    session = self._sessions[number]
                    xids = [xid for space, xid in decision.others if space == self._ids[number]]
                    xids = [xid for xid in xids if session.outcome(xid) is Outcome.IN_DOUBT]
                    session.commit_all(decision.batch, xids, (), decision.plan)

    def roll_back(self) -> None:
        """What is prepared of a batch that is not decided; one that is decided is left to whoever writes it again."""
        known = [session.decision(self._batch) for session in self._sessions]
        decided = {space for one in known if one and one.batch == self._batch for space in one.plan.spaces}
        for space, session in zip(self._ids, self._sessions, strict=True):
            if space not in decided:
                session.rollback_all(self._batch, self._ids)

    def _check_same(self, known: Iterable[BatchDecision | None]) -> None:
        for decision in filter(None, known):
            why_not = decision.why_not(self._batch, self._plan)
            if why_not:
                for found, space in zip(self._ids, self._spaces, strict=True):
                    why_not = why_not.replace(found, str(space))
                raise InvalidArgument(f"{why_not}{way_on(decision.plan.offsets)}")

    def _decided(self, known: Sequence[BatchDecision | None]) -> tuple[int, BatchDecision | None]:
        """Which of these is home, and what it has decided before. OperationalError where home has forgotten it."""
        parts = [(number, one) for number, one in enumerate(known) if one is not None]
        for number, decision in parts:
            if decision.plan.spaces[:1] in ((), (self._ids[number],)):
                return number, decision
        for number, decision in parts:
            home = self._spaces[self._ids.index(decision.plan.spaces[0])]
            raise OperationalError(
                f"{self._batch} was committed in {self._spaces[number]} as {home} had decided, which knows nothing of "
                "it and so was restored from an older copy: bring the newer one back; nothing was written"
            )
        return 0, None

    def _check_not_read(self, queues: Collection[str]) -> None:
        """InvalidArgument for a queue that the same query reads: it would go on for ever."""
        for document in filter(_is_of_queues, _documents(self._plan.offsets)):
            for path, read in document["spaces"].items():
                space_id = document.get("ids", {}).get(path, "")
                for found, space in zip(self._ids, self._spaces, strict=True):
                    is_same = found.startswith(space_id) if space_id else path == space.path
                    copied = [queue for queue in read if is_same and queue in queues]
                    if copied:
                        raise InvalidArgument(
                            f"queue {copied[0]!r} of {space} is read and written by one query, which would copy its "
                            "own copies for ever: write to another queue. Nothing was written"
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

    def _finish(self, home: int, decision: BatchDecision, numbers: Iterable[int]) -> None:
        """As home has decided, and with its plan, whatever is known of it now."""
        for number in numbers:
            others = decision.others if number == home else ()
            listed = [xid for space, xid in decision.others if space == self._ids[number]]
            xids = decision.xids if number == home else listed
            self._sessions[number].commit_all(self._batch, xids, others, decision.plan)


def way_on(offsets: str) -> str:
    """For an error, of what the last batch was made from: a line of JSON a source; empty where that says nothing.

    It is whole, however many queues there are: nothing else remembers where they were.
    """
    ways = "; ".join(filter(None, map(_way, _documents(offsets))))
    return f": {ways}" if ways else ""


def _documents(offsets: str) -> Iterator[dict[str, Any]]:
    for line in offsets.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            yield document


def _is_of_queues(document: dict[str, Any]) -> bool:
    return "stream" in document and isinstance(document.get("spaces"), dict)


def _way(document: dict[str, Any]) -> str:
    if _is_of_queues(document):
        return _lag(document["spaces"])
    is_kafkas = document and all(isinstance(part, dict) for part in document.values())
    return f"with the option startingOffsets={_compact(document)}" if is_kafkas else ""


def _lag(spaces: Mapping[str, Mapping[str, int]]) -> str:
    """A number is the last that was read, and with ``subscribe`` the first that is wanted, by the space's number."""
    wanted: dict[str, dict[str, int]] = {}
    releases = []
    for number, (path, queues) in enumerate(spaces.items()):
        for queue, seq in queues.items():
            wanted.setdefault(queue, {})[str(number)] = seq + 1
            if seq:
                releases.append(f"`xaqueue release {queue} --through {seq} --space {shlex.quote(path)}`")
    after = f", after {', '.join(releases)}" if releases else ""
    return (
        f"where the source keeps its messages, with the option startingOffsets={_compact(spaces)} (with subscribe "
        f"{_compact(wanted)}); where it consumes them, at the earliest{after}"
    )


def _compact(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))
