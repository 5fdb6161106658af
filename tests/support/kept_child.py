"""The process that test_kill_kept kills. It writes down what it was answered, and how it goes on is up to chance.

Arguments: the space, its level, a file to append to, a seed. A line a message: ``put`` or ``maybe`` or ``taken``, its
body, and of what was taken, or may be, the xid.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

from xaqueue import connect
from xaqueue.connection import Connection

QUEUE = "orders"


def main(space: Path, flags: str, said: Path, seed: str) -> None:
    dice = random.Random(seed)
    with said.open("a", buffering=1) as lines, connect(space, sync=flags) as connection:
        for xid in connection.tpc_recover():
            connection.tpc_commit(xid)
        for number in range(100_000):
            tag = f"{seed}.{number}"
            bodies = [f"{tag}.{one}" for one in range(dice.choice((1, 3, 20)))]
            if len(bodies) > 1:
                connection.enqueue_many(QUEUE, [body.encode() for body in bodies])
            else:
                connection.enqueue(QUEUE, bodies[0].encode())
            lines.write("".join(f"maybe-put {body} -\n" for body in bodies))
            connection.commit()
            lines.write("".join(f"put {body} -\n" for body in bodies))
            _take(connection, dice, lines.write, tag)


def _take(connection: Connection, dice: random.Random, say: Callable[[str], object], tag: str) -> None:
    two_phase = dice.random() < 0.5
    branch = connection.xid(1, tag.encode(), b"")
    if two_phase:
        connection.tpc_begin(branch)
    found = connection.dequeue_many(QUEUE, dice.choice((1, 2, 5, 19)))
    xid = str(branch) if two_phase else "-"
    say("".join(f"maybe {message.body.decode()} {xid}\n" for message in found))
    if dice.random() < 0.1:
        connection.tpc_rollback() if two_phase else connection.rollback()
        return
    if two_phase:
        connection.tpc_prepare()
        connection.tpc_commit()
    else:
        connection.commit()
    say("".join(f"taken {message.body.decode()} {xid}\n" for message in found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4])
