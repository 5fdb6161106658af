"""Topics against a model of a few lines: subscriptions that come and go, and what each subscriber does for itself.

A publication is in the queues that wanted it when it was made, or in none; what one subscriber does to its message no
other sees. A failure says its seed; ``XAQUEUE_SIM_SEED`` replays it, ``XAQUEUE_CRASH_FULL=1`` plays far longer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.crash_level import FILLING, LAGGING, STRICT, Level, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import ForgetfulFileSystem
from support.simulating import simulate
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.features.retries import moving
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.xa import Flag
from xaqueue.xid import Xid

TRIES = 2
QUEUES = ("a", "b", "c", "dead")
POLICY = QueueDefinition(options={"max_tries": TRIES, "failure_queue": "dead"})
MATCHES: tuple[dict[str, str], ...] = ({}, {"kind": "paid"}, {"kind": "p*"}, {"kind": "p*", "land": "*"})
HEADERS: tuple[dict[str, str], ...] = ({}, {"kind": "paid"}, {"kind": "post", "land": "eu"}, {"kind": "new"})
BODY = b"news " * 200
QUEUE = st.sampled_from(QUEUES[:3])
PICK = st.integers(0, 3)


def wants(match: dict[str, str], headers: dict[str, str]) -> bool:
    return all(k in headers and (headers[k] == v or headers[k][: len(v) - 1] + "*" == v) for k, v in match.items())


@dataclass(eq=False)
class Known:
    number: int
    tries: int = 0


class Machine(RuleBasedStateMachine):
    level: Level

    def __init__(self) -> None:
        super().__init__()
        self.fs: ForgetfulFileSystem = ready(EMPTY, self.level).open()
        self.numbers = 0
        self.matches: dict[str, dict[str, str]] = {}
        self.queues: dict[str, list[Known]] = {name: [] for name in QUEUES}
        self.in_doubt: dict[Xid, list[tuple[str, int]]] = {}
        self._open()

    @property
    def definitions(self) -> Definitions:
        topic = {
            name: replace(POLICY, options={**POLICY.options, "topic": "t", "match": match})
            for name, match in self.matches.items()
        }
        return Definitions(
            {**dict.fromkeys("abc", POLICY), "dead": QueueDefinition(), **topic}, tables={"topics": {"t": {}}}
        )

    def _open(self) -> None:
        self.space = open_space(self.fs, self.level, definitions=self.definitions)

    def _begin(self) -> tuple[Session, Xid]:
        self.numbers += 1
        session, xid = Session(self.space), Xid(1, b"%d" % self.numbers, b"")
        session.start(xid)
        return session, xid

    @rule(queue=QUEUE, match=st.sampled_from([*MATCHES, None]))
    def subscribe(self, queue: str, match: dict[str, str] | None) -> None:
        """None: unsubscribes. What was published before is in the queue all the same."""
        self.matches.pop(queue, None)
        if match is not None:
            self.matches[queue] = match
        self.space.redefine(self.definitions)

    @rule(
        headers=st.sampled_from(HEADERS),
        to=st.none() | st.lists(QUEUE, min_size=1, unique=True),
        how=st.sampled_from(["one phase", "prepare", "rollback"]),
        twice=st.booleans(),
    )
    def publish(self, headers: dict[str, str], to: list[str] | None, how: str, twice: bool) -> None:
        """to: or adds to these queues."""
        session, xid = self._begin()
        adds: list[tuple[str, int]] = []
        for number in (self.numbers, -self.numbers)[: 1 + twice]:
            body = b"%d " % number + BODY
            if to is None:
                session.publish("t", body, headers=headers)
            else:
                session.enqueue_to(to, body, headers=headers)
            adds += [
                (name, number) for name in to or [name for name, match in self.matches.items() if wants(match, headers)]
            ]
        session.end(xid)
        if how == "rollback":
            session.rollback(xid)
        elif how == "one phase":
            session.commit(xid, Flag.ONEPHASE)
            self._add(adds)
        else:
            session.prepare(xid)
            if adds:
                self.in_doubt[xid] = adds

    def _add(self, adds: list[tuple[str, int]]) -> None:
        for name, number in adds:
            self.queues[name].append(Known(number))

    @precondition(lambda self: self.in_doubt)
    @rule(pick=PICK, commits=st.booleans())
    def decide(self, pick: int, commits: bool) -> None:
        xid = list(self.in_doubt)[pick % len(self.in_doubt)]
        adds = self.in_doubt.pop(xid)
        (Session(self.space).commit if commits else Session(self.space).rollback)(xid)
        if commits:
            self._add(adds)

    @rule(queue=QUEUE, how=st.sampled_from(["commit", "rollback", "killed"]))
    def take(self, queue: str, how: str) -> None:
        session, xid = self._begin()
        wanted = next((one for one in self.queues[queue] if one.tries < TRIES), None)
        message = session.dequeue(queue)
        assert (message and (message.body, message.tries)) == (wanted and (b"%d " % wanted.number + BODY, wanted.tries))
        if how == "killed":
            self._reopen(how, 0)
        else:
            session.end(xid)
            session.rollback(xid) if how == "rollback" else session.commit(xid, Flag.ONEPHASE)
        if wanted is not None and how == "commit":
            self.queues[queue].remove(wanted)
        elif wanted is not None:
            wanted.tries += 1

    @rule(pick=PICK, source=st.sampled_from(QUEUES), to=QUEUE, commits=st.booleans())
    def move(self, pick: int, source: str, to: str, commits: bool) -> None:
        """Where the same publication may be already."""
        found = self.queues[source]
        if not found or source == to:
            return
        session, xid = self._begin()
        one, at = found[pick % len(found)], list(Session(self.space).browse(source))[pick % len(found)]
        assert session.move(source, at.message_id, to) is not None
        session.end(xid)
        if commits:
            session.commit(xid, Flag.ONEPHASE)
            found.remove(one)
            self.queues[to].append(Known(one.number))
        else:
            session.rollback(xid)

    @rule()
    def clean(self) -> None:
        """What had all its tries leaves its queue, in the order in which it had them or was found."""
        moving.move_exhausted(self.space, cleanup.never)
        moved = sorted(one.number for name in "abc" for one in self.queues[name] if one.tries >= TRIES)
        for name in "abc":
            self.queues[name] = [one for one in self.queues[name] if one.tries < TRIES]
        found = [_number(one.body) for one in Session(self.space).browse("dead")][len(self.queues["dead"]) :]
        assert sorted(found) == moved
        self.queues["dead"] += map(Known, found)

    @rule(way=st.sampled_from(["closed", "killed", "cut"]), dice=st.integers(0, 2**32))
    def restart(self, way: str, dice: int) -> None:
        """With the power, tries may go."""
        self._reopen(way, dice)
        for name, known in self.queues.items() if way == "cut" else ():
            for one, found in zip(known, Session(self.space).browse(name), strict=True):
                assert found.tries <= one.tries
                one.tries = found.tries

    def _reopen(self, way: str, dice: int) -> None:
        if way == "closed":
            self.space.close()
        else:
            self.space.log.end(OSError("killed"))
        self.fs.survive_kill()
        if way == "cut":
            self.fs = self.fs.tree_by_chance(random.Random(dice)).open()
        self._open()

    @rule(checkpoints=st.booleans())
    def follow(self, checkpoints: bool) -> None:
        (self.space.checkpoint if checkpoints else self.space.log.settle)()

    @invariant()
    def all_are_where_the_model_has_them(self) -> None:
        session = Session(self.space)
        for name, known in self.queues.items():
            found = list(session.browse(name))
            assert [(_number(one.body), one.tries) for one in found] == [(one.number, one.tries) for one in known]
            assert all(one.queue == one.properties.queue == name for one in found)
        assert set(session.recover(1000, Flag.STARTRSCAN | Flag.ENDRSCAN)) == set(self.in_doubt)


def _number(body: bytes) -> int:
    return int(body.partition(b" ")[0])


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("level", [STRICT, LAGGING, FILLING], ids=str)
def test_any_order_of_publications_and_subscribers(level: Level) -> None:
    machine = type("OfThisLevel", (Machine,), {"level": level})
    simulate(machine, sample=40, steps=40)
