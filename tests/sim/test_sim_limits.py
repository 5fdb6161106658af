"""Limits of a queue against a model of a few lines: no order of work, kills and restarts brings more into it.

A failure says its seed; ``XAQUEUE_SIM_SEED`` replays it, ``XAQUEUE_CRASH_FULL=1`` plays far longer.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from support.crash_level import JOURNAL, LAGGING, NONE, Level, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import ForgetfulFileSystem
from support.simulating import simulate
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.errors import QueueFull
from xaqueue.features.session import Session
from xaqueue.xa import Flag
from xaqueue.xid import Xid

MOST = 3
BODY_BYTES = 200
MOST_BYTES = 3 * BODY_BYTES + 400
"""Room for three of them, whatever their properties take, and for no fourth."""


@dataclass
class Open:
    """A branch, as the model has it."""

    session: Session
    adds: int = 0
    takes: int = 0
    prepared: bool = False


class Machine(RuleBasedStateMachine):
    level: Level
    limits: dict[str, int]

    def __init__(self) -> None:
        super().__init__()
        self.fs: ForgetfulFileSystem = ready(EMPTY, self.level).open()
        self.committed = self.numbers = 0
        self.branches: dict[Xid, Open] = {}
        self._open()

    def _open(self) -> None:
        queue = QueueDefinition(options=self.limits)
        self.space = open_space(self.fs, self.level, definitions=Definitions({"q": queue}))

    def _pick(self, number: int, *, prepared: bool) -> tuple[Xid, Open] | None:
        found = [pair for pair in self.branches.items() if pair[1].prepared is prepared]
        return found[number % len(found)] if found else None

    def _at_work(self, number: int) -> Open:
        """One of those that are not prepared, or a new one."""
        found = [one for one in self.branches.values() if not one.prepared]
        if number < len(found):
            return found[number]
        self.numbers += 1
        xid, branch = Xid(1, b"%d" % self.numbers, b""), Open(Session(self.space))
        branch.session.start(xid)
        self.branches[xid] = branch
        return branch

    @rule(number=st.integers(0, 2))
    def add(self, number: int) -> None:
        branch = self._at_work(number)
        held = self.committed + sum(one.adds for one in self.branches.values())
        if held - branch.takes < MOST:
            branch.session.enqueue("q", bytes(BODY_BYTES))
            branch.adds += 1
        else:
            with pytest.raises(QueueFull):
                branch.session.enqueue("q", bytes(BODY_BYTES))

    @rule(number=st.integers(0, 2))
    def take(self, number: int) -> None:
        branch = self._at_work(number)
        if branch.session.dequeue("q") is not None:
            branch.takes += 1

    @rule(number=st.integers(0, 3), commits=st.booleans())
    def finish(self, number: int, commits: bool) -> None:
        picked = self._pick(number, prepared=False)
        if picked is not None:
            xid, branch = picked
            branch.session.end(xid)
            self._end(xid, Flag.ONEPHASE if commits else None)

    @rule(number=st.integers(0, 3))
    def prepare(self, number: int) -> None:
        picked = self._pick(number, prepared=False)
        if picked is not None:
            xid, branch = picked
            branch.session.end(xid)
            branch.session.prepare(xid)
            branch.prepared = True
            if not branch.adds and not branch.takes:
                del self.branches[xid]

    @rule(number=st.integers(0, 3), commits=st.booleans())
    def decide(self, number: int, commits: bool) -> None:
        picked = self._pick(number, prepared=True)
        if picked is not None:
            self._end(picked[0], Flag.NOFLAGS if commits else None)

    def _end(self, xid: Xid, commits: Flag | None) -> None:
        branch = self.branches.pop(xid)
        if commits is None:
            branch.session.rollback(xid)
        else:
            branch.session.commit(xid, commits)
            self.committed += branch.adds - branch.takes

    @rule(kills=st.booleans())
    def restart(self, kills: bool) -> None:
        if kills:
            self.space.log.end(OSError("killed"))
            self.fs = self.fs.tree_after_kill().open()
        else:
            self.space.close()
        self._open()
        self.branches = {xid: one for xid, one in self.branches.items() if one.prepared}
        for one in self.branches.values():
            one.session = Session(self.space)

    @invariant()
    def no_limit_is_passed(self) -> None:
        queue = self.space.queues.get("q")
        if queue is None:
            return
        assert len(queue.index) == self.committed <= MOST
        assert len(queue.pending) == sum(one.adds for one in self.branches.values())
        if "max_bytes" in self.limits:
            assert set(queue.sizes or ()) == queue.pending | {one.message_id for one in queue.index.entries(0)}
            assert queue.size_bytes == sum((queue.sizes or {}).values())
            self.space.settle()
            for one in queue.index.entries(0):
                path = layout.message_path("q", one.seq, one.message_id, one.tags)
                assert (queue.sizes or {})[one.message_id] == self.fs.size(path)


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("limits", [{"max_messages": MOST}, {"max_bytes": MOST_BYTES}], ids=["messages", "bytes"])
@pytest.mark.parametrize("level", [NONE, LAGGING, JOURNAL], ids=str)
def test_any_order_of_work_and_kills(level: Level, limits: dict[str, int]) -> None:
    machine = type("OfThisLevel", (Machine,), {"level": level, "limits": limits})
    simulate(machine, sample=15, steps=40)
