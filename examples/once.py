"""A sender that loses the answer sends again, and the order is there once.

    python examples/once.py DIRECTORY

Makes a queue space in the directory. The sender dies when its order is committed and before it has heard so.
"""

import sys
from pathlib import Path

import xaqueue


class Died(Exception):
    """The sender is gone, with all that it knew."""


def send(space: Path, order: str, dies: bool = False) -> str:
    with xaqueue.connect(space) as connection:
        message_id = connection.enqueue("orders", order.encode(), dedup_key=order)
        connection.commit()
        if dies:
            raise Died
        return message_id.hex()


def main(space: Path) -> None:
    with xaqueue.connect(space, create=True) as connection:
        connection.define("orders", dedup_window_s=24 * 3600)
    try:
        send(space, "order 42", dies=True)
    except Died:
        print("sent, or not?")
    first = send(space, "order 42")
    with xaqueue.connect(space) as connection:
        for message in connection.consume("orders"):
            print("handled", message.body.decode(), "as the first:", message.message_id.hex() == first)
            connection.commit()
            break
    print("sent once more:", send(space, "order 42") == first)
    with xaqueue.connect(space) as connection:
        print("left in the queue:", len(list(connection.browse("orders"))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
