"""A model of a space in a dozen lines, and the machines that hold a space to it, whatever is called and crashes."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.crash_level import LAGGING, STRICT, Level, open_space, ready
from support.crash_story import EMPTY, Became, body_of, call, look
from support.forgetful import Crashed, ForgetfulFileSystem
from xaqueue.core.engine.state import Space
from xaqueue.errors import ResourceFailed
from xaqueue.features.session import Session
from xaqueue.message import MessageId
from xaqueue.xid import Xid

QUEUES = st.sampled_from(("red", "green"))
PICK = st.integers(0, 63)
CALLS = st.integers(0, 30)
ENDS = {
    None: ("prepare", "one-phase", "rollback"),
    Became.IN_DOUBT: ("commit", "rollback", "decide commit", "decide rollback"),
    Became.DECIDED_DONE: ("forget",),
    Became.DECIDED_NOTHING: ("forget",),
}
AFTER = {
    "prepare": Became.IN_DOUBT,
    "decide commit": Became.DECIDED_DONE,
    "decide rollback": Became.DECIDED_NOTHING,
}


@dataclass
class Branch:
    became: Became | None = None
    """None while it is active."""
    puts: list[tuple[str, int]] = field(default_factory=list)
    takes: list[tuple[str, int]] = field(default_factory=list)


@dataclass
class Model:
    """Queues in commit order, and the branches that are not over."""

    queues: dict[str, list[int]] = field(default_factory=lambda: {"red": [], "green": []})
    branches: dict[int, Branch] = field(default_factory=dict)

    def locked(self) -> set[tuple[str, int]]:
        return {place for branch in self.branches.values() for place in branch.takes}

    def end(self, number: int, verb: str) -> None:
        branch = self.branches[number]
        if verb in ("commit", "one-phase", "decide commit"):
            for queue, message in branch.puts:
                self.queues[queue].append(message)
            for queue, message in branch.takes:
                self.queues[queue].remove(message)
        branch.became = AFTER.get(verb)
        if branch.became is not Became.IN_DOUBT:
            branch.puts, branch.takes = [], []
        if branch.became is None:
            del self.branches[number]

    def after_crash(self) -> Model:
        """Active branches are rolled back."""
        kept = deepcopy(self)
        kept.branches = {number: branch for number, branch in kept.branches.items() if branch.became}
        return kept


class SpaceMachine(RuleBasedStateMachine):
    """Every branch has a session of its own."""

    level: Level = STRICT

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.number = 0
        self.seqs: dict[tuple[str, int], int] = {}
        self._open(ready(EMPTY, self.level).open(), goes_on=True)

    def _open(
        self,
        fs: ForgetfulFileSystem,
        on_branches: Callable[[Space], object] = lambda _: None,
        *,
        goes_on: bool = False,
    ) -> None:
        self.fs = fs
        self.space = open_space(fs, self.level, on_branches, goes_on=goes_on)
        self.sessions: dict[int, Session] = {}
        assert not self.space.report.quarantined

    def _branch(self, pick: int, *wanted: Became | None) -> int:
        numbers = [number for number, branch in self.model.branches.items() if branch.became in wanted]
        return numbers[pick % len(numbers)]

    def _has(self, *wanted: Became | None) -> bool:
        return any(branch.became in wanted for branch in self.model.branches.values())

    @rule(work=st.lists(st.tuples(st.booleans(), QUEUES), max_size=5))
    def start(self, work: list[tuple[bool, str]]) -> None:
        self.number += 1
        number = self.number
        self.sessions[number] = Session(self.space)
        self.sessions[number].start(xid_of(number))
        self.model.branches[number] = Branch()
        for puts, queue in work:
            (self._enqueue if puts else self._dequeue)(number, queue)

    @precondition(lambda self: self._has(None))
    @rule(pick=PICK, queue=QUEUES)
    def enqueue(self, pick: int, queue: str) -> None:
        self._enqueue(self._branch(pick, None), queue)

    @precondition(lambda self: self._has(None))
    @rule(pick=PICK, queue=QUEUES)
    def dequeue(self, pick: int, queue: str) -> None:
        self._dequeue(self._branch(pick, None), queue)

    def _enqueue(self, number: int, queue: str) -> None:
        self.number += 1
        message_id = MessageId(self.number.to_bytes(16, "big"))
        self.sessions[number].enqueue(queue, body_of(self.number), message_id=message_id)
        self.model.branches[number].puts.append((queue, self.number))

    def _dequeue(self, number: int, queue: str) -> None:
        locked = self.model.locked()
        ready = [message for message in self.model.queues[queue] if (queue, message) not in locked]
        found = self.sessions[number].dequeue(queue)
        if not ready:
            assert found is None
        else:
            assert found is not None
            assert found.body == body_of(ready[0])
            self.model.branches[number].takes.append((queue, ready[0]))

    @precondition(lambda self: bool(self.model.branches))
    @rule(pick=PICK, how=PICK)
    def end(self, pick: int, how: int) -> None:
        self._end(*self._choose(pick, how))

    @precondition(lambda self: bool(self.model.branches))
    @rule(pick=PICK, how=PICK, calls=CALLS, dice=st.integers(0, 2**32), kill=st.booleans())
    def crash(self, pick: int, how: int, calls: int, dice: int, kill: bool) -> None:
        """Within or after a verb."""
        number, verb = self._choose(pick, how)
        before = self.model.after_crash()
        after = deepcopy(self.model)
        after.end(number, "rollback" if self._votes_read_only(number, verb) else verb)
        self.fs.crash_after = self.fs.calls + calls
        try:
            self._end(number, verb)
            allowed = [after.after_crash()]
        except (Crashed, ResourceFailed):
            assert self.fs.crashed
            allowed = [before, after.after_crash()]
        self._reopen(allowed, dice, kill)

    @rule(calls=CALLS, dice=st.integers(0, 2**32), kill=st.booleans())
    def crash_while_opening(self, calls: int, dice: int, kill: bool) -> None:
        self.fs.survive_kill(crash_after=self.fs.calls + calls)
        try:
            self._open(self.fs)
        except (Crashed, ResourceFailed):
            assert self.fs.crashed
        self._reopen([self.model.after_crash()], dice, kill)

    @precondition(lambda self: self._has(Became.IN_DOUBT))
    @rule(pick=PICK, how=PICK, calls=st.integers(0, 60), dice=st.integers(0, 2**32), kill=st.booleans())
    def decide_while_opening(self, pick: int, how: int, calls: int, dice: int, kill: bool) -> None:
        """Before the messages are loaded."""
        number = self._branch(pick, Became.IN_DOUBT)
        verb = ENDS[Became.IN_DOUBT][how % 4]
        before = self.model.after_crash()
        after = deepcopy(before)
        after.end(number, verb)
        told = []

        def decide(space: Space) -> None:
            call(Session(space), verb, xid_of(number))
            told.append(verb)

        self.fs.survive_kill(crash_after=self.fs.calls + calls)
        try:
            self._open(self.fs, decide)
        except (Crashed, ResourceFailed):
            assert self.fs.crashed
            self._reopen([after] if told else [before, after], dice, kill)
        else:
            self.fs.crash_after = None
            self.model = after

    @rule()
    def close_and_open(self) -> None:
        self.space.close()
        self.model = self.model.after_crash()
        self._open(self.fs)

    def _choose(self, pick: int, how: int) -> tuple[int, str]:
        number = self._branch(pick, *ENDS)
        verbs = ENDS[self.model.branches[number].became]
        return number, verbs[how % len(verbs)]

    def _votes_read_only(self, number: int, verb: str) -> bool:
        branch = self.model.branches[number]
        return verb == "prepare" and not branch.puts and not branch.takes

    def _end(self, number: int, verb: str) -> None:
        session = self.sessions.pop(number, None)
        read_only = self._votes_read_only(number, verb)
        if session is not None and self.model.branches[number].became is None:
            session.end(xid_of(number))
        call(session or Session(self.space), verb, xid_of(number))
        self.model.end(number, "rollback" if read_only else verb)

    def _reopen(self, allowed: list[Model], dice: int, kill: bool) -> None:
        if kill:
            self.fs.survive_kill()
            self._open(self.fs)
        else:
            self._open(self.fs.tree_by_chance(random.Random(dice)).open())
        explained = [model for model in allowed if self._shows(model)]
        assert explained, f"{self._seen()}, allowed {allowed}"
        self.model = explained[0]
        self.model.queues = self._seen()[0]

    def _seen(self) -> tuple[dict[str, list[int]], set[tuple[str, int]], dict[Xid, Became]]:
        seen = look(self.space, Session(self.space))
        queues: dict[str, list[int]] = {"red": [], "green": []}
        for (queue, message), _ in sorted(seen.seqs.items(), key=lambda item: item[1]):
            queues[queue].append(message)
        return queues, {place for place, locked in seen.contents.items() if locked}, seen.listed

    def _shows(self, model: Model) -> bool:
        listed = {xid_of(number): branch.became for number, branch in model.branches.items() if branch.became}
        queues, *rest = self._seen()
        return queues == model.queues and rest == [model.locked(), listed]

    @invariant()
    def the_model_explains_what_is_seen(self) -> None:
        assert self._shows(self.model), f"{self._seen()} is not {self.model}"

    @invariant()
    def numbers_rise(self) -> None:
        """A message keeps its number, and a new one is above all that were ever seen in its queue."""
        highest = {
            queue: max((seq for (name, _), seq in self.seqs.items() if name == queue), default=0)
            for queue in self.model.queues
        }
        for place, seq in look(self.space, Session(self.space)).seqs.items():
            assert self.seqs.get(place, seq) == seq
            assert place in self.seqs or seq > highest[place[0]]
            self.seqs[place] = seq


class JournalMachine(SpaceMachine):
    """With a journal of small segments, whose directories follow when they are told to."""

    level = LAGGING

    @rule()
    def flush(self) -> None:
        self.space.log.settle()

    @rule()
    def checkpoint(self) -> None:
        self.space.checkpoint()

    @rule(calls=CALLS, dice=st.integers(0, 2**32), kill=st.booleans(), flushes=st.booleans())
    def crash_in_the_background(self, calls: int, dice: int, kill: bool, flushes: bool) -> None:
        self.fs.crash_after = self.fs.calls + calls
        try:
            (self.flush if flushes else self.checkpoint)()
        except (Crashed, ResourceFailed):
            assert self.fs.crashed
        self._reopen([self.model.after_crash()], dice, kill)


def xid_of(number: int) -> Xid:
    return Xid(2, b"branch%d" % number, b"")
