"""Moves what waits in a persist-queue (SQLiteAckQueue) into a queue, each item once, however often it is run or killed.

    python examples/migrate_persist_queue.py DIRECTORY

fills a queue of persist-queue in the directory first, to have something to move.
Needs: pip install xaqueue persist-queue
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import persistqueue

import xaqueue


def migrate(old: persistqueue.SQLiteAckQueue, conn: xaqueue.Connection, queue: str) -> int:
    """How many have moved. Stop whoever takes from the old queue before; who adds to it may go on meanwhile."""
    conn.define(queue, dedup_window_s=24 * 3600)
    moved = 0
    old.resume_unack_tasks()  # what somebody had taken and never acknowledged, this program included
    while old.size > 0:
        item = old.get(block=False, raw=True)
        body = json.dumps(item["data"]).encode()
        with conn.transaction():
            conn.enqueue(queue, body, dedup_key=f"persist-queue {item['pqid']}")
        # Killed here, it sends the item once more when it is run again, and the key makes that come to nothing.
        old.ack(id=item["pqid"])
        moved += 1
    return moved


def main(directory: Path) -> None:
    old = persistqueue.SQLiteAckQueue(str(directory / "old"))
    for number in range(1, 4):
        old.put({"order": number})
    old.get()  # by a worker that was stopped before it acknowledged
    with xaqueue.connect(directory / "space", create=True) as conn:
        print("moved", migrate(old, conn, "orders"))
        print("moved", migrate(old, conn, "orders"))
        print(*(message.body.decode() for message in conn.browse("orders")))
    old.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
