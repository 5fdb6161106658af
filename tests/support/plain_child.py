"""Fills two queues until it is killed, and says each number that was committed: plain_child.py SPACE LIFE

Of ``orders`` each message has a file of its own, of ``calls`` 20 lie in a block. Of some transactions nothing comes.
"""

from __future__ import annotations

import sys
import time
from itertools import count
from pathlib import Path

import xaqueue

MANY = 20
PAUSE_S = 0.002
ROLLED_BACK = b"rolled back"


def body(life: str, number: int) -> bytes:
    return b"%s.%d" % (life.encode(), number)


def main(space: str, life: str) -> None:
    with xaqueue.connect(Path(space)) as queues:
        for number in count(0, MANY):
            if number % (3 * MANY) == 0:
                queues.enqueue("orders", ROLLED_BACK)
                queues.enqueue_many("calls", [ROLLED_BACK] * MANY)
                queues.rollback()
            if number % (7 * MANY) == 0:
                queues.enqueue_many("calls", [body(life, number + one) for one in range(MANY)])
            else:
                queues.enqueue("orders", body(life, number))
            queues.commit()
            sys.stdout.write(f"{life}.{number}\n")
            sys.stdout.flush()
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
