"""What was said of every branch, and what must therefore be true: nothing lost, nothing twice, nothing in part.

Jepsen's total queue with transactions: what committed branches added, less what they took, is what is found, as a
multiset. The ledger is also the decision log of a transaction manager: a branch that is decided is committed, whether
or not whoever decided it lived to do so. No I/O here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Place = tuple[str, str]
"""A queue, and the key of a message in it."""
Number = tuple[str, int, str]
"""A queue, a sequence number in it, and the id of the message that has it."""

FINISHED = frozenset({"acked", "resolved"})
BEGUN = frozenset({"acked", "decided", "undecided", "resolved"})
"""After "prepared": its end has begun, so that it need not be in doubt."""


class Statement(NamedTuple):
    """One line of who does the work.

    Of a branch: "intent" or "maybe" (of one phase) before its first promise, with all it does; "prepared", "decided",
    "undecided", "acked", "resolved". Of a recovery: "in doubt" for each branch, then "recovered". "fault": the tag
    says what is wrong.
    """

    event: str
    tag: str = ""
    added: Sequence[Place] = ()
    taken: Sequence[Place] = ()
    seen: Sequence[Number] = ()

    def line(self) -> bytes:
        """Short enough for a pipe's atomic write, so that threads do not mix theirs."""
        return json.dumps(self).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Statement:
        event, tag, added, taken, seen = json.loads(line)
        return cls(event, tag, [(q, key) for q, key in added], [(q, key) for q, key in taken], [(*s,) for s in seen])


@dataclass
class BranchRecord:
    """What was said of one branch."""

    added: Sequence[Place]
    taken: Sequence[Place]
    one_phase: bool
    said: set[str] = field(default_factory=set)

    @property
    def committed(self) -> bool:
        return "acked" in self.said or "decided" in self.said

    @property
    def uncertain(self) -> bool:
        return self.one_phase and "acked" not in self.said


@dataclass
class Holdings:
    """What a space turned out to hold: after a recovery, the branches in doubt; at the end, all messages."""

    in_doubt: set[str] = field(default_factory=set)
    messages: Counter[Place] = field(default_factory=Counter)
    numbers: list[Number] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What is wrong in itself, whatever was promised."""


@dataclass
class CrashTally:
    """``tries``: kills, or trees that a power loss may leave; after ``faulty`` of them something was wrong."""

    tries: int = 0
    branches: int = 0
    """Branches that were acknowledged."""
    faulty: int = 0
    faults: list[str] = field(default_factory=list)

    def count(self, faults: Sequence[str]) -> None:
        """One more try, and what was wrong after it."""
        self.tries += 1
        self.faulty += bool(faults)
        self.faults += faults


class Ledger:
    """Everything that was said so far. ``faults``: what cannot be."""

    def __init__(self) -> None:
        self.branches: dict[str, BranchRecord] = {}
        self.heard: Counter[str] = Counter()
        self.faults: list[str] = []
        self._in_doubt: set[str] = set()
        self._numbers: dict[tuple[str, int], str] = {}

    def begin_life(self) -> None:
        """What a recovery that was cut off said is worth nothing."""
        self._in_doubt.clear()

    def hear(self, said: Statement) -> None:
        self.heard[said.event] += 1
        for queue, seq, message_id in said.seen:
            if self._numbers.setdefault((queue, seq), message_id) != message_id:
                self.faults.append(f"{queue} gave {seq} out twice")
        if said.event in ("intent", "maybe"):
            self.branches[said.tag] = BranchRecord(said.added, said.taken, said.event == "maybe")
        elif said.event == "in doubt":
            self._in_doubt.add(said.tag)
        elif said.event == "recovered":
            self.faults += self._broken_promises(self._in_doubt)
            self._in_doubt.clear()
        elif said.event == "fault":
            self.faults.append(said.tag)
        elif said.tag:
            self.branches[said.tag].said.add(said.event)

    def decided(self) -> set[str]:
        """The branches that are to be committed where they are found in doubt."""
        return {tag for tag, branch in self.branches.items() if branch.committed}

    def judge(self, found: Holdings) -> list[str]:
        """What is wrong with what was found, after all that was said; nothing is remembered of it."""
        faults = [*found.faults, *self._broken_promises(found.in_doubt)]
        numbers = dict(self._numbers)
        for queue, seq, message_id in found.numbers:
            if numbers.setdefault((queue, seq), message_id) != message_id:
                faults.append(f"{queue} gave {seq} out twice")
        return [*faults, *self._wrong_totals(found.messages), *self._parts(found.messages)]

    def _broken_promises(self, in_doubt: set[str]) -> Iterator[str]:
        for tag in sorted(in_doubt):
            if tag not in self.branches:
                yield f"branch {tag} is in doubt, and nobody prepared it"
            elif self.branches[tag].said & FINISHED:
                yield f"finished branch {tag} is in doubt again"
        for tag, branch in self.branches.items():
            if "prepared" in branch.said and not branch.said & BEGUN and tag not in in_doubt:
                yield f"prepared branch {tag} is not in doubt"

    def _wrong_totals(self, messages: Counter[Place]) -> Iterator[str]:
        total: Counter[Place] = Counter()
        added_perhaps: Counter[Place] = Counter()
        taken_perhaps: Counter[Place] = Counter()
        for branch in self.branches.values():
            if branch.committed:
                total.update(branch.added)
                total.subtract(branch.taken)
            elif branch.uncertain:
                added_perhaps.update(branch.added)
                taken_perhaps.update(branch.taken)
        for place in sorted({*total, *messages, *added_perhaps}):
            difference = messages[place] - total[place]
            queue, key = place
            if difference < -taken_perhaps[place]:
                yield f"lost: message {key} of {queue}"
            elif difference > added_perhaps[place]:
                what = "comes twice" if total[place] + added_perhaps[place] > 0 else "from nowhere, or consumed before"
                yield f"{what}: message {key} of {queue}"

    def _parts(self, messages: Counter[Place]) -> Iterator[str]:
        """An uncertain branch came about as a whole or not at all; of the others the totals tell.

        Told by its own messages, whose keys begin with its tag: one that it moved may have been there before.
        """
        seen = {key for _, key in messages}
        seen.update(key for branch in self.branches.values() for _, key in branch.taken)
        for tag, branch in self.branches.items():
            own = {key for _, key in branch.added if key.startswith(f"{tag}.")}
            if branch.uncertain and len({key in seen for key in own}) > 1:
                yield f"part of branch {tag} was committed"
