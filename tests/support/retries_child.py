"""The process that test_kill_retries kills: transactions, leases, publications and moves, each told before it is done.

Arguments: space, flags, seed, fault ("" or as in ``kill_child``). It opens the space and tells what it holds; reads
what to do with what is in doubt, and then works until it is killed. A line is a list in JSON:

    holds     queues: by name [id, tries, sequence number] each; xids in doubt; whose dedup_key is
              remembered. An id of news2 ends in +
    ready     it has heard what to do
    takes     queue, id or null: it is about to lock that message, or the next one
    took      queue, id, tries, or nothing behind the queue where there was none
    adds      queue, id, group, dedup_key
    added     id, the id that it got
    full      id: its queue was full
    lent      queue, id, tries
    settles   ack, nack, reject or accept, id
    settled   the same
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
from xaqueue.core.engine.state import Space
from xaqueue.core.owner import open as attaching
from xaqueue.core.storage.ids import fresh_id
from xaqueue.delivery import Delivery
from xaqueue.errors import QueueFull, RolledBack
from xaqueue.features.dedup.dedup import keys_of
from xaqueue.features.session import attach
from xaqueue.xid import Xid

MOVES = ("work", "failed", "other")
QUEUES = (*MOVES, "small", "news1", "news2")
GROUPS = (None, "a", "a", "b")
MOST = 12
"""So many messages in work make it take rather than add."""
LEASES = 3
"""It has so many at most."""
KEYS = 300
LEASE_S = 600.0
SETTLES = ("ack", "nack", "reject", "accept")


def say(*line: object) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def holds(space: Space) -> tuple[dict[str, list[tuple[str, int, int]]], list[str], list[str]]:
    """At one moment, while what had all its tries moves."""
    with space.lock:
        found = {name: space.queue(name).index.entries(0) for name in QUEUES}
        content = {
            name: [(named(name, e.message_id), e.tries, e.seq) for e in entries] for name, entries in found.items()
        }
        in_doubt = [str(xid) for xid, branch in space.branches.items() if branch.prepared_at and not branch.busy]
        return content, in_doubt, [seen.message_id.hex() for seen in keys_of(space.queue("work")).ends]


def named(queue: str, message_id: bytes) -> str:
    """One publication is a message of each queue."""
    return message_id.hex() + ("+" if queue == "news2" else "")


class Work:
    def __init__(self, connection: Connection, space: Space, dice: random.Random) -> None:
        self.connection, self.space, self.dice = connection, space, dice
        self.deliveries: list[Delivery] = []

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
        steps += [
            self._put,
            self._take,
            self._take,
            self._move,
            self._lend,
            self._settle,
            self._publish,
            self._put_small,
        ]
        for step in self.dice.sample(steps, self.dice.randint(1, 3)):
            step()
        verb = self.dice.choice(("commit", "commit", "rollback"))
        if xid is None:
            self._ask(verb)
        elif self.dice.random() < 0.2:
            self._ask("rollback", xid)
        elif self._ask("prepare", xid):
            self._ask(verb, xid)

    def _ask(self, verb: str, xid: Xid | None = None) -> bool:
        """Whether it did not come to a rollback instead."""
        told = () if xid is None else (str(xid),)
        say("asks", verb, *told)
        try:
            answer = getattr(self.connection, verb if xid is None else f"tpc_{verb}")()
        except RolledBack:  # what is in doubt may have a message of the same key
            say("did", "rollback", *told)
            return False
        say("did", verb if answer is not False else "nothing", *told)
        return True

    def _put(self) -> None:
        message_id, group = fresh_id(), self.dice.choice(GROUPS)
        key = str(self.dice.randrange(KEYS)) if self.dice.random() < 0.5 else None
        say("adds", "work", message_id.hex(), group, key)
        found = self.connection.enqueue("work", message_id, message_id=message_id, group=group, dedup_key=key)
        say("added", message_id.hex(), found.hex())

    def _put_small(self) -> None:
        message_id = fresh_id()
        say("adds", "small", message_id.hex(), None, None)
        try:
            found = self.connection.enqueue("small", message_id, message_id=message_id)
        except QueueFull:
            say("full", message_id.hex())
        else:
            say("added", message_id.hex(), found.hex())

    def _publish(self) -> None:
        message_id, kind = fresh_id(), self.dice.choice(("hot", "cold"))
        for queue in ("news1", "news2") if kind == "hot" else ("news1",):
            say("adds", queue, named(queue, message_id), None, None)
        self.connection.publish("news", message_id, message_id=message_id, headers={"kind": kind})

    def _lend(self) -> None:
        if len(self.deliveries) >= LEASES:
            return
        say("takes", "work", None)
        found = self.connection.receive("work", 1, LEASE_S)
        self.deliveries += found
        for one in found:
            say("lent", "work", one.message.message_id.hex(), one.message.tries)
        if not found:
            say("took", "work")

    def _settle(self) -> None:
        if not self.deliveries:
            return
        one, how = self.deliveries.pop(self.dice.randrange(len(self.deliveries))), self.dice.choice(SETTLES)
        told = how, one.message.message_id.hex()
        say("settles", *told)
        if how == "accept":
            self.connection.accept(one)
        elif how == "reject":
            one.reject("no")
        else:
            getattr(one, how)()
        say("settled", *told)

    def _take(self) -> None:
        queue = self.dice.choice(("work", "work", "work", "small", *QUEUES))
        say("takes", queue, None)
        message = self.connection.dequeue(queue)
        assert message is None or message.body == message.message_id
        say("took", queue, *((named(queue, message.message_id), message.tries) if message is not None else ()))

    def _move(self) -> None:
        """To another queue and back, and from the failure queue back to where it was."""
        queue = self.dice.choice(MOVES)
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
            say("adds", "other" if queue == "work" else "work", moved.hex(), message.properties.group, None)


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
