"""A queue that is full: its producer waits for the consumer, or is told so and does something else.

    python examples/limits.py DIRECTORY

Makes a queue space in the directory.
"""

import sys
import threading
from pathlib import Path

import xaqueue


def consume(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        for message in connection.consume("orders", wait_s=10):
            connection.commit()  # from here on there is room for another one
            if message.body == b"order 19":
                return


def main(space: Path) -> None:
    with xaqueue.connect(space, create=True) as connection:
        connection.define("orders", max_messages=5, when_full="wait", full_wait_s=10)
        connection.define("alerts", max_messages=2)
        connection.define("readings", sync="NONE")
        consumer = threading.Thread(target=consume, args=(space,))
        consumer.start()
        for number in range(20):
            connection.enqueue("orders", f"order {number}".encode())
            connection.commit()
        consumer.join()
        print("20 orders went through a queue of 5")

        for number in range(3):
            try:
                connection.enqueue("alerts", f"alert {number}".encode())
            except xaqueue.QueueFull as full:
                print(full)
        connection.commit()  # the transaction has the other two
        print(len(list(connection.browse("alerts"))), "alerts are kept")

        connection.enqueue("readings", b"21.5 C")  # neither this transaction nor the next one waits for a sync
        connection.commit()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
