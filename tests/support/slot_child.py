"""The process that test_kill_slots kills: transactions over two queues of servers, with a directory that others share.

Arguments: directory, its life, number of transactions, fault as of ``tm_child``. It says "begin <id>" before a
transaction, and "ack <id>" once it has committed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import xaqueue
from support.tm_child import Doom, say
from xaqueue import TransactionManager


def manager(place: Path, doom: Doom, interval_s: float = 0.1) -> TransactionManager:
    places = {name: f"xaq+unix://{place / name}.sock" for name in "ab"}
    queues = {name: lambda url=url: xaqueue.connect(url) for name, url in places.items()}
    return TransactionManager(place / "decisions", queues, recovery_interval_s=interval_s, on_step=doom)


def main(place: Path, life: str, count: int, fault: str) -> None:
    with manager(place, Doom(fault)) as tm:
        say(f"node {tm.node}")
        for number in range(count):
            name = f"{life}.{number}"
            say(f"begin {name}")
            with tm.transaction() as tx:
                for queue in "ab":
                    tx[queue].enqueue("q", name.encode())
            say(f"ack {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
