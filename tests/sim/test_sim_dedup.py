"""Messages of a dedup_key against a model of ten lines, under any order of branches, kills, restarts and clearings.

A failure says its seed; ``XAQUEUE_SIM_SEED`` replays it, ``XAQUEUE_CRASH_FULL=1`` plays far longer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.crash_level import JOURNAL, LAGGING, NOON_US, STRICT, Level, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import ForgetfulFileSystem
from support.simulating import simulate
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.errors import RolledBack
from xaqueue.features.dedup import dedup
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.xa import Code, Flag, Vote
from xaqueue.xid import Xid

WINDOW_S = 10
ONCE = Definitions(default=QueueDefinition(options={"dedup_window_s": WINDOW_S}))
SECOND_US = 1_000_000
KEYS = st.sampled_from(["a", "a", "b"])
OPEN = 3


@dataclass
class Known:
    """A branch, as the model has it: the key of each message, by its id."""

    session: Session
    xid: Xid
    keys: dict[bytes, str] = field(default_factory=dict)
    is_prepared: bool = False


class Machine(RuleBasedStateMachine):
    level: Level

    def __init__(self) -> None:
        super().__init__()
        self.fs: ForgetfulFileSystem = ready(EMPTY, self.level).open()
        self.now_us, self.numbers = NOON_US, 0
        self.branches: list[Known] = []
        self.seen: dict[str, tuple[bytes, int]] = {}
        self.queued: set[bytes] = set()
        self._open()

    def _open(self) -> None:
        self.space = open_space(self.fs, self.level, definitions=ONCE, now_us=lambda: self.now_us)

    # The model

    def known(self, key: str) -> bytes | None:
        message_id, until_us = self.seen.get(key, (b"", 0))
        return message_id if until_us > self.now_us else None

    def is_undecided(self, one: Known) -> bool:
        claimed = {key for other in self.branches if other.is_prepared for key in other.keys.values()}
        return any(key in claimed and self.known(key) is None for key in one.keys.values())

    def leave_out(self, one: Known) -> None:
        one.keys = {message_id: key for message_id, key in one.keys.items() if self.known(key) is None}

    def commit_all(self, one: Known) -> None:
        for message_id, key in one.keys.items():
            self.seen[key] = message_id, self.now_us + WINDOW_S * SECOND_US
            self.queued.add(message_id)
        self.branches.remove(one)

    # What is done

    @precondition(lambda self: sum(not one.is_prepared for one in self.branches) < OPEN)
    @rule(keys=st.lists(KEYS, min_size=1, max_size=2))
    def begin(self, keys: list[str]) -> None:
        self.numbers += 1
        one = Known(Session(self.space), Xid(1, b"%d" % self.numbers, b""))
        one.session.start(one.xid)
        self.branches.append(one)
        for key in keys:
            self.add(one, key)
        one.session.end(one.xid)

    def add(self, one: Known, key: str) -> None:
        own = next((message_id for message_id, other in one.keys.items() if other == key), None)
        wanted, found = self.known(key) or own, one.session.enqueue("q", key.encode(), dedup_key=key)
        assert wanted in (None, found)
        if wanted is None:
            one.keys[found] = key

    @precondition(lambda self: any(not one.is_prepared for one in self.branches))
    @rule(data=st.data(), ending=st.sampled_from(["prepare", "one phase", "rollback"]))
    def end(self, data: st.DataObject, ending: str) -> None:
        one = data.draw(st.sampled_from([one for one in self.branches if not one.is_prepared]))
        if ending == "rollback":
            one.session.rollback(one.xid)
            self.branches.remove(one)
            return
        try:
            vote = one.session.prepare(one.xid) if ending == "prepare" else Vote.RDONLY
            if ending != "prepare":
                one.session.commit(one.xid, Flag.ONEPHASE)
        except RolledBack as refused:
            if refused.code is not Code.XA_RBTRANSIENT or not self.is_undecided(one):
                raise
            self.branches.remove(one)
            return
        assert not self.is_undecided(one)
        self.leave_out(one)
        one.is_prepared = vote is Vote.OK
        assert one.is_prepared is (ending == "prepare" and bool(one.keys))
        if not one.is_prepared:
            self.commit_all(one)

    @precondition(lambda self: any(one.is_prepared for one in self.branches))
    @rule(data=st.data(), commits=st.booleans())
    def decide(self, data: st.DataObject, commits: bool) -> None:
        one = data.draw(st.sampled_from([one for one in self.branches if one.is_prepared]))
        if commits:
            one.session.commit(one.xid)
            self.commit_all(one)
        else:
            one.session.rollback(one.xid)
            self.branches.remove(one)

    @rule(
        what=st.sampled_from(["consume", "wait", "clear", "restart"]),
        seconds=st.sampled_from([1, 4, WINDOW_S]),
        killed=st.booleans(),
    )
    def pass_time(self, what: str, seconds: int, killed: bool) -> None:
        """One rule, so that most steps are those of branches."""
        if what == "wait":
            self.now_us += seconds * SECOND_US
        elif what == "clear":
            dedup.clear(self.space, cleanup.never)
            assert len(self.space.queue("q").keys.ends) == sum(self.known(key) is not None for key in self.seen)
        elif what == "consume":
            self.consume()
        else:
            self.restart(killed)

    def consume(self) -> None:
        session, xid = Session(self.space), Xid(1, b"consume", b"")
        session.start(xid)
        while session.dequeue("q") is not None:
            pass
        session.end(xid)
        session.commit(xid, Flag.ONEPHASE)
        self.queued.clear()

    def restart(self, killed: bool) -> None:
        """What is not prepared is lost."""
        if killed:
            self.space.log.end(OSError("killed"))
            self.fs = self.fs.tree_after_kill().open()
        else:
            self.space.close()
        self._open()
        self.branches = [one for one in self.branches if one.is_prepared]
        for one in self.branches:
            one.session = Session(self.space)

    @invariant()
    def all_are_where_the_model_has_them(self) -> None:
        assert {message.message_id for message in Session(self.space).browse("q")} == self.queued


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("level", [STRICT, LAGGING, JOURNAL], ids=str)
def test_any_order_of_branches_of_a_key(level: Level) -> None:
    machine = type("OfThisLevel", (Machine,), {"level": level})
    simulate(machine, sample=40, steps=30)
