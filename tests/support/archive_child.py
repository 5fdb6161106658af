"""Works on a space whose queues keep what leaves them until it is killed, and writes down what it was told is done.

ROOT, LOG, SEED, and a word: ``drain`` takes all that is there and ends. A line says what was put, or taken, and where.
"""

from __future__ import annotations

import os
import random
import sys
import time
from contextlib import closing

import xaqueue
from xaqueue.features.session import attach
from xaqueue.features.streams import cleanup

STREAM = "query#1"


def main(root: str, log: str, seed: str, word: str) -> None:
    rng = random.Random(seed)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def done(what: str, queue: str, bodies: list[bytes]) -> None:
        os.write(fd, b"".join(b"%s %s %s\n" % (what.encode(), queue.encode(), body) for body in bodies))

    with closing(attach(root)) as session, xaqueue.connect(root) as connection:
        session.reserve("s", STREAM, 0, 0)
        put = 0
        while True:
            time.sleep(0.01)  # those who read it all again and again keep up
            queue, count = rng.choice("qs"), rng.choice([1, 2, 3, 16, 40])
            if word != "drain":
                bodies = [b"%s.%d" % (seed.encode(), put + at) for at in range(count)]
                put += count
                connection.enqueue_many(queue, bodies) if rng.random() < 0.5 else [
                    connection.enqueue(queue, body) for body in bodies
                ]
                connection.commit()
                done("put", queue, bodies)
            if queue == "s" or word == "drain":
                (told,) = session.reservations()
                if told.lag:
                    upto = told.consumed + (told.lag if word == "drain" else rng.randint(1, told.lag))
                    session.consume("s", STREAM, upto)
            taken = [m.body for _ in range(count + 5) if (m := connection.dequeue("q")) is not None]
            connection.commit()
            done("took", "q", taken)
            if word == "drain" and not taken:
                cleanup.clear(session.space)
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
