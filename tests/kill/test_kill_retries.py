"""Retries, groups, leases, keys, limits, topics and moves, in processes that are killed: as ``sim`` has it, for real.

A message is in one place: a queue, the failure queue, consumed by a commit, or held by a branch in doubt. What a
killed process did last has one of a few outcomes, and what the next one finds has to be one of them: a delivery that
was killed counts once. Of a group nothing is delivered before what is in front of it, and of a key there is one
message. ``XAQUEUE_KILL_SEED`` replays it.
"""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support import SUPPORT
from support.retries_child import holds
from xaqueue.core.owner import definitions_file
from xaqueue.features import opening
from xaqueue.features.session import attach
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity

CHILD = SUPPORT / "retries_child.py"
FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
CAMPAIGNS, KILLS = (8, 25) if FULL else (1, 6)
SYNC = ("JOURNAL", "NONE", "FDATASYNC;DSYNC")
CALLS = ("create", "rename", "unlink", "prepared", "committed", "decide", "consume", "finish", "write_at", "sync")
TRIES, SMALL = 3, 3
DEFINED = """
[queues.work]
max_tries = 3
retry_delay_s = 0.01
failure_queue = "failed"
dedup_window_s = 36000
[queues.failed]
[queues.other]
[queues.small]
max_messages = 3
[topics.news]
[queues.news1]
topic = "news"
[queues.news2]
topic = "news"
match = {kind = "h*"}
"""
Found = tuple[dict[str, list[tuple[str, int, int]]], list[str], list[str]]


@dataclass
class Known:
    queue: str
    group: str | None
    order: int
    tries: int = 0

    @property
    def leaves(self) -> bool:
        return self.queue == "work" and self.tries >= TRIES


@dataclass
class Transaction:
    """What it has said of itself."""

    adds: dict[str, tuple[str, str | None, str | None]] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    moved: set[str] = field(default_factory=set)
    """Of what was taken, that of which no delivery fails."""
    taking: tuple[str, str | None] | None = None
    """Queue and id, if it is said, of what it was about to lock."""
    asked: str = ""
    xid: str = ""


@dataclass
class Model:
    known: dict[str, Known] = field(default_factory=dict)
    in_doubt: dict[str, Transaction] = field(default_factory=dict)
    last: Transaction = field(default_factory=Transaction)
    leased: set[str] = field(default_factory=set)
    settling: tuple[str, str] | None = None
    keys: dict[str, str] = field(default_factory=dict)
    """By dedup_key, the message that was committed."""
    count: int = 0

    def hear(self, verb: str, *said: Any) -> None:
        last = self.last
        if verb == "takes":
            last.taking = said[0], said[1]
        elif verb == "took":
            last.taking = None
            if len(said) > 1:
                self._check_turn(*said)
                last.taken.append(said[1])
                last.moved |= {said[1]} if said[2] < 0 else set()
        elif verb == "adds":
            last.adds[said[1]] = said[0], said[2], said[3]
        elif verb == "added":
            self._added(*said)
        elif verb == "full":
            del last.adds[said[0]]
            assert self._small() >= SMALL
        elif verb == "lent":
            last.taking = None
            self._check_turn(said[0], said[1], said[2], ())
            self.leased.add(said[1])
        elif verb == "settles":
            self.settling = said[0], said[1]
        elif verb == "settled":
            self.settle()
        elif verb == "asks":
            if len(said) > 1 and said[1] in self.in_doubt:
                last = self.last = self.in_doubt.pop(said[1])
                self.in_doubt[said[1]] = copy.deepcopy(last)
            last.asked, last.xid = said[0], said[1] if len(said) > 1 else ""
        else:
            self._did(said[0])

    def _did(self, verb: str) -> None:
        if verb == "prepare":
            self.in_doubt[self.last.xid] = self.last
        elif verb != "nothing":
            self.end(self.last, commits=verb == "commit")
        self.last = Transaction()

    def _added(self, message_id: str, found: str) -> None:
        queue, _, key = self.last.adds[message_id]
        own = [name for name, (_, _, other) in self.last.adds.items() if key is not None and other == key]
        assert found == self.keys.get(key or "", own[0] if own else message_id)
        if found != message_id:
            del self.last.adds[message_id]
        assert queue != "small" or self._small() <= SMALL

    def _small(self) -> int:
        """What is counted of the queue that has a limit."""
        branches = [self.last, *(branch for branch in self.in_doubt.values() if branch is not self.last)]
        adds = sum(queue == "small" for branch in branches for queue, _, _ in branch.adds.values())
        known = [name for name, one in self.known.items() if one.queue == "small"]
        return len(known) + adds - len({*known} & {*self.last.taken})

    def settle(self) -> None:
        """As it is being settled. An accept is a dequeue of the transaction."""
        assert self.settling is not None
        (how, message_id), self.settling = self.settling, None
        self.leased.remove(message_id)
        if how == "ack":
            del self.known[message_id]
        elif how == "reject":
            self.known[message_id].queue, self.known[message_id].tries = "failed", 0
        elif how == "accept":
            self.last.taken.append(message_id)

    def _check_turn(self, queue: str, message_id: str, tries: int, taken: Sequence[str] | None = None) -> None:
        """taken: before, by the same."""
        one = self.known[message_id]
        self.see_moved(one, queue)
        taken = self.last.taken if taken is None else taken
        held = {name for branch in self.in_doubt.values() for name in branch.taken}
        held |= self.leased | (set(self.last.taken) - set(taken))
        assert one.queue == queue
        assert message_id not in held
        if tries < 0:  # it is moved, which needs no turn
            return
        assert tries == one.tries
        if queue == "work":
            assert tries < TRIES
            others = {name: other for name, other in self.known.items() if one.group and other.group == one.group}
            before = [n for n, o in others.items() if o.queue == "work" and not o.leaves and o.order < one.order]
            assert not set(before) - set(taken), "of its group it is not the next"
            assert not held & {name for name, other in others.items() if other.queue == "work"}, "its group is held"

    @staticmethod
    def see_moved(one: Known, queue: str) -> None:
        if one.leaves and queue == "failed":
            one.queue, one.tries = "failed", 0

    def end(self, branch: Transaction, *, commits: bool) -> None:
        self.in_doubt.pop(branch.xid, None)
        for message_id in branch.taken:
            if commits:
                del self.known[message_id]
            elif message_id not in branch.moved:
                self.known[message_id].tries += 1
        for message_id, (queue, group, key) in branch.adds.items() if commits else ():
            self.count += 1
            self.known[message_id] = Known(queue, group, self.count)
            if key is not None:
                assert key not in self.keys
                self.keys[key] = message_id

    def outcomes(self) -> Iterator[Model]:
        """What may have become of it with a kill now: all leases end with it."""
        for settles in (False, True) if self.settling else (False,):
            model = copy.deepcopy(self)
            if settles:
                model.settle()
            for message_id in model.leased:
                model.known[message_id].tries += 1
            model.leased, model.settling = set(), None
            yield from model._of_transaction()

    def _of_transaction(self) -> Iterator[Model]:
        asked, xid = self.last.asked, self.last.xid
        if xid in self.in_doubt or asked == "prepare":
            in_doubt = copy.deepcopy(self)
            in_doubt.in_doubt[xid] = copy.deepcopy(self.last)
            yield in_doubt
        if asked == "commit":
            yield self._ended(commits=True)
        if asked in ("", "rollback", "prepare") or (asked == "commit" and xid not in self.in_doubt):
            undone = self._ended(commits=False)
            yield undone
            queue, message_id = self.last.taking or ("", None)
            for name, one in self.known.items() if queue and message_id is None else ():
                if one.queue == queue or one.leaves:
                    tried = copy.deepcopy(undone)
                    tried.see_moved(tried.known[name], queue)
                    tried.known[name].tries += 1
                    yield tried

    def _ended(self, *, commits: bool) -> Model:
        made = copy.deepcopy(self)
        made.end(made.last, commits=commits)
        return made

    def differs(self, found: Found) -> set[object]:
        """What is found, or known, and not both."""
        content, in_doubt, keys = found
        for message_id, _, _ in content["failed"]:
            if message_id in self.known:
                self.see_moved(self.known[message_id], "failed")
        seen = {(queue, name, tries) for queue, places in content.items() for name, tries, _ in places}
        ordered = [name for _, name in sorted((seq, name) for name, _, seq in content["work"])]
        known = [name for name, one in self.known.items() if one.queue == "work"]
        wrong: set[object] = seen ^ {(one.queue, name, one.tries) for name, one in self.known.items()}
        wrong |= set(in_doubt) ^ set(self.in_doubt)
        wrong |= set(keys) ^ set(self.keys.values())
        if not wrong and ordered != sorted(known, key=lambda name: self.known[name].order):
            wrong.add("they are in another order")
        return wrong


class Life:
    """One process, from its start until it is killed."""

    def __init__(self, space: Path, sync: str, seed: str, dice: random.Random) -> None:
        self.dice = dice
        fault = "" if dice.random() < 0.4 else f"{dice.choice(CALLS)}:{dice.randint(1, 60)}:{dice.choice(WHEN)}"
        self.told = f"{sync}, dies at {fault or 'any moment'}"
        command = [sys.executable, str(CHILD), str(space), sync, seed, fault]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.timer = threading.Timer(dice.uniform(0.3, 0.6) if dice.random() < 0.15 else 30.0, self.child.kill)
        self.timer.start()

    def lines(self) -> Iterator[list[Any]]:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if line.endswith(b"\n"):
                yield json.loads(line)

    def answer(self, decisions: dict[str, str]) -> None:
        """From now on it works; the time of its death comes soon."""
        assert self.child.stdin is not None
        self.timer.cancel()
        self.timer = threading.Timer(self.dice.uniform(0.0, 0.4), self.child.kill)
        self.timer.start()
        try:
            self.child.stdin.write(json.dumps(decisions).encode() + b"\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            pass

    def end(self) -> None:
        _, complaint = self.child.communicate()
        self.timer.cancel()
        self.timer.join()
        assert self.child.returncode == -9, complaint.decode()


WHEN = ("before", "after")


def judged(model: Model, found: Found) -> Model:
    """The outcome that is found. It fails where none is."""
    wrong = []
    for outcome in model.outcomes():
        wrong.append(outcome.differs(found))
        if not wrong[-1]:
            outcome.last = Transaction()
            return outcome
    raise AssertionError(f"{min(wrong, key=len)}, after {model.last}")


@pytest.mark.crash
@pytest.mark.parametrize("campaign", range(CAMPAIGNS))
def test_each_message_is_in_one_place_whatever_is_killed(tmp_path: Path, campaign: int) -> None:
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    dice, space, model, worked = random.Random(f"{seed}/{campaign}"), tmp_path / "space", Model(), 0
    opening.create(space)
    definitions_file.write_definitions(space, DEFINED)
    for number in range(KILLS):
        life = Life(space, SYNC[(number + campaign) % len(SYNC)], f"{seed}/{campaign}/{number}", dice)
        sys.stdout.write(f"life {number}: {life.told}\n")
        with life.child:
            try:
                for verb, *said in life.lines():
                    if verb == "holds":
                        model = judged(model, (said[0], said[1], said[2]))
                        decisions = {xid: dice.choice(("commit", "rollback")) for xid in said[1] if dice.random() < 0.7}
                        life.answer(decisions)
                    elif verb != "ready":
                        model.hear(verb, *said)
                        worked += verb == "did"
            except BaseException:
                life.child.kill()
                raise
            life.end()
        assert [str(one) for one in check(space) if one.severity is Severity.DAMAGE] == []
    session = attach(space, sync=SYNC[0], watch=False)
    judged(model, holds(session.space))
    session.close()
    sys.stdout.write(f"{worked} steps\n")
    assert worked > KILLS
