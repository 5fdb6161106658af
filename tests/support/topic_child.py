"""The process that test_kill_topics kills: it publishes, and takes what it finds, until its end.

Arguments: space, name of this life, seed. It says on its standard output, a line each and before its next call: ``maybe
KEY`` before a branch is ended, ``acked KEY`` behind it; ``taking QUEUE KEY``, ``taken QUEUE KEY``.
"""

from __future__ import annotations

import os
import random
import sys

import xaqueue
from xaqueue.connection import Connection
from xaqueue.xid import Xid

SUBSCRIBERS = [f"s{number:02}" for number in range(50)]
TOPIC = "news"
FORMAT_ID = 9


def say(*words: str) -> None:
    os.write(1, f"{' '.join(words)}\n".encode())


def publish(connection: Connection, key: str, dice: random.Random) -> None:
    if dice.random() < 0.5:
        connection.publish(TOPIC, key.encode())
        say("maybe", key)
        connection.commit()
    else:
        connection.tpc_begin(Xid(FORMAT_ID, key.encode(), b""))
        connection.publish(TOPIC, key.encode())
        connection.tpc_prepare()
        say("maybe", key)
        connection.tpc_commit()
    say("acked", key)


def take(connection: Connection, queue: str) -> None:
    message = connection.dequeue(queue)
    if message is not None:
        say("taking", queue, message.body.decode())
    connection.commit()
    if message is not None:
        say("taken", queue, message.body.decode())


def main(root: str, life: str, seed: str) -> None:
    dice, number = random.Random(f"{seed}/{life}"), 0
    with xaqueue.connect(root) as connection:
        for xid in connection.tpc_recover():  # its "maybe" was not said yet, or was: both ways are right
            connection.tpc_rollback(xid)
        say("open")
        while True:
            publish(connection, f"{life}.{number}", dice)
            number += 1
            for queue in dice.sample(SUBSCRIBERS, 3):
                take(connection, queue)


if __name__ == "__main__":
    main(*sys.argv[1:])
