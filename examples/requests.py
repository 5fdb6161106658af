"""A request waits for its reply, which a worker sends in the transaction that took the request.

    python examples/requests.py DIRECTORY

Makes a queue space in the directory, with a worker in a thread.
"""

import sys
from pathlib import Path

import xaqueue


def price(message: xaqueue.Message, tx: xaqueue.Connection) -> None:
    tx.reply(message, b"%d cents" % (60 * int(message.body)))


def main(space: Path) -> None:
    with xaqueue.connect(space, create=True) as connection:
        connection.define("prices")
        connection.define("prices.replies")
        with xaqueue.Worker(space, "prices", price):
            reply = connection.request("prices", b"7")
            print("seven apples:", reply.body.decode())
        try:
            connection.request("prices", b"8", timeout_s=0.1)
        except xaqueue.NoReply:
            print("eight apples: nobody answers")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
