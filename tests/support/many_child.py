"""The process that test_kill_many kills: what ``kill_child`` does, with leases that are given back or acknowledged, and
snapshots that are taken amid it.

Arguments: as of ``kill_child``; or of ``powercut_child``, whose standstill it has then.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from support import kill_child
from support.kill_child import Doom, MortalFileSystem, settled
from support.powercut_child import Standstill
from xaqueue.connection import Connection
from xaqueue.core.owner import open as attaching
from xaqueue.features.session import attach
from xaqueue.tools.torture import work
from xaqueue.tools.torture.ledger import Statement
from xaqueue.tools.torture.work import QUEUES, Client, prove, recover, say

SNAPSHOT_S = 0.15


class LeasingClient(Client):
    """Some of what it does in one phase is a delivery: each is a branch of its own."""

    def one_phase(self, tag: str) -> None:
        if self.dice.random() < 0.5:
            super().one_phase(tag)
            return
        queue = self.dice.choice(QUEUES)
        for number, lent in enumerate(self.connection.receive(queue, self.dice.choice((1, 3, 16)))):
            own, place = f"{tag}/{number}", (queue, prove(lent.message))
            if self.dice.random() < 0.4:
                lent.nack()
                continue
            self.say(Statement("maybe", own, [], [place], [work.number_of(lent.message)]))
            lent.ack()
            self.say(Statement("acked", own))


def take_snapshots(connection: Connection, life: str) -> None:
    """What was acknowledged before one begins is in it; of what was said behind its end is nothing."""
    for number in range(1_000):
        time.sleep(SNAPSHOT_S)
        say(Statement("snapshot begins", f"{life}.{number}"))
        taken = connection.snapshot()
        say(Statement("snapshot", f"{life}.{number}", [], [], [("", taken.number, "")]))


def main(space: Path, flags: str, life: str, seed: str, threads: int, *, times: bool) -> None:
    recover(attach(space, sync=flags, watch=False), set(json.load(sys.stdin)), say)
    for problem in settled(space, times=times):
        say(Statement("fault", f"after recovery: {problem}"))
    say(Statement("ready"))
    workers = [LeasingClient(attach(space, sync=flags, watch=False), f"{life}.{i}", seed, say) for i in range(threads)]
    running = [threading.Thread(target=work._run, args=(worker,)) for worker in workers]
    connection = Connection(attach(space, sync=flags, watch=False), lambda: os.urandom(16))
    running.append(threading.Thread(target=take_snapshots, args=(connection, life)))
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


if __name__ == "__main__":
    attaching.DirectoryFileSystem = MortalFileSystem  # type: ignore[attr-defined]
    flags, life, seed, threads, fault, *times = sys.argv[2:]
    kill_child.rollback_reason = Standstill(fault) if times else Doom(fault)
    main(Path(sys.argv[1]), flags, life, seed, int(threads), times=times != ["False"])
