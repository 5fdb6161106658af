"""The process that test_kill_retries kills: transactions with groups, retries and moves, each told before it is done.

Arguments: space, flags, seed, fault ("" or as in ``kill_child``). It opens the space and tells what it holds; reads
what to do with what is in doubt, and then works until it is killed. A line is a list in JSON:

    holds     queues: by name [id, tries, sequence number] each; xids in doubt
    ready     it has heard what to do
    takes     queue, id or null: it is about to lock that message, or the next one
    took      queue, id, tries, or nothing behind the queue where there was none
    adds      queue, id, group
    asks      the verb, and the xid where it has one
    did       the same
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from support import kill_child
from xaqueue import Connection
from xaqueue.space.engine.state import Space
from xaqueue.space.owner import open as attaching
from xaqueue.space.owner.open import attach
from xaqueue.storage.ids import fresh_id
from xaqueue.xid import Xid

QUEUES = ("work", "failed", "other")
GROUPS = (None, "a", "a", "b")
MOST = 12
"""So many messages in work make it take rather than add."""


def say(*line: object) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def holds(space: Space) -> tuple[dict[str, list[tuple[str, int, int]]], list[str]]:
    """At one moment, while what had all its tries moves."""
    with space.lock:
        found = {name: space.queue(name).index.entries(0) for name in QUEUES}
        content = {name: [(e.message_id.hex(), e.tries, e.seq) for e in entries] for name, entries in found.items()}
        return content, [str(xid) for xid, branch in space.branches.items() if branch.prepared_at and not branch.busy]


class Work:
    def __init__(self, connection: Connection, space: Space, dice: random.Random) -> None:
        self.connection, self.space, self.dice = connection, space, dice

    def resolve(self, decisions: dict[str, str]) -> None:
        for xid, verb in decisions.items():
            say("asks", verb, xid)
            (self.connection.tpc_commit if verb == "commit" else self.connection.tpc_rollback)(Xid.parse(xid))
            say("did", verb, xid)

    def transaction(self) -> None:
        xid = self.connection.xid(1, fresh_id(), b"kill") if self.dice.random() < 0.4 else None
        if xid is not None:
            self.connection.tpc_begin(xid)
        steps = [self._put, self._put] if len(self.space.queue("work").index) < MOST else [self._take, self._take]
        for step in self.dice.sample([*steps, self._put, self._take, self._take, self._move], self.dice.randint(1, 2)):
            step()
        verb = self.dice.choice(("commit", "commit", "rollback"))
        if xid is None:
            self._ask(verb)
        elif self.dice.random() < 0.2:
            self._ask("rollback", xid)
        else:
            self._ask("prepare", xid)
            self._ask(verb, xid)

    def _ask(self, verb: str, xid: Xid | None = None) -> None:
        told = () if xid is None else (str(xid),)
        say("asks", verb, *told)
        answer = getattr(self.connection, verb if xid is None else f"tpc_{verb}")()
        say("did", verb if answer is not False else "nothing", *told)

    def _put(self) -> None:
        message_id, group = fresh_id(), self.dice.choice(GROUPS)
        say("adds", "work", message_id.hex(), group)
        self.connection.enqueue("work", message_id, message_id=message_id, group=group)

    def _take(self) -> None:
        queue = self.dice.choice(("work", "work", "work", *QUEUES))
        say("takes", queue, None)
        message = self.connection.dequeue(queue)
        assert message is None or message.body == message.message_id
        say("took", queue, *((message.message_id.hex(), message.tries) if message is not None else ()))

    def _move(self) -> None:
        """To another queue and back, and from the failure queue back to where it was."""
        queue = self.dice.choice(QUEUES)
        found = list(self.connection.browse(queue, 5))
        if not found:
            return
        message = self.dice.choice(found)
        say("takes", queue, message.message_id.hex())
        if queue == "work":
            moved = self.connection.move(queue, message.message_id, "other")
        else:
            moved = self.connection.requeue(queue, message.message_id)
        if moved is None:
            say("took", queue)
        else:
            say("took", queue, message.message_id.hex(), -1)
            say("adds", "other" if queue == "work" else "work", moved.hex(), message.properties.group)


def main(root: Path, flags: str, seed: str) -> None:
    attaching.DirectoryFileSystem = kill_child.MortalFileSystem  # type: ignore[attr-defined]
    session = attach(root, sync=flags, watch=False)
    say("holds", *holds(session.space))
    decisions: Any = json.loads(sys.stdin.readline())
    say("ready")
    work = Work(Connection(session, fresh_id), session.space, random.Random(seed))
    work.resolve(decisions)
    while True:
        work.transaction()


if __name__ == "__main__":
    kill_child.rollback_reason = kill_child.Doom(sys.argv[4])
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
