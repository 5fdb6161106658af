"""A message that cannot be handled is put off, tried again, and moves to a failure queue in the end.

    python examples/retries.py DIRECTORY

Makes a queue space in the directory, and handles orders of which one is poisoned.
"""

import sys
import time
from pathlib import Path

import xaqueue


def handle(body: bytes) -> None:
    if body == b"poison":
        raise ValueError("no such product")


def main(space: Path) -> None:
    with xaqueue.connect(space, create=True) as connection:
        connection.define("orders.failed")  # as `xaqueue define` does
        connection.define("orders", max_tries=3, retry_delay_s=0.1, failure_queue="orders.failed")
        for body in (b"one", b"poison", b"two"):
            connection.enqueue("orders", body)
        connection.commit()
    with xaqueue.connect(space) as connection:
        while message := connection.dequeue("orders", wait_s=1):
            try:
                handle(message.body)
                connection.commit()
                print("handled", message.body.decode())
            except ValueError:
                connection.rollback()  # it counts as a try, and the message is put off
                print("failed", message.body.decode(), "tries:", message.tries + 1)
        while not (failed := list(connection.browse("orders.failed"))):
            time.sleep(0.01)  # it moves in the background
        origin = failed[0].origin
        assert origin is not None
        print("moved", failed[0].body.decode(), "from", origin.queue, "after", origin.tries, "tries")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
