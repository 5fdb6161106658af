"""What happens is published once, and whoever wants to know has a queue of its own.

    python examples/topics.py DIRECTORY

Makes a queue space in the directory, a topic, and two queues that subscribe to it.
"""

import sys
from pathlib import Path

import xaqueue


def main(space: Path) -> None:
    with xaqueue.connect(space, create=True) as connection:
        connection.define_topic("events")
        connection.subscribe("events", "audit")  # all of it
        connection.subscribe("events", "shipping", match={"kind": "paid"})
        with connection.transaction():
            connection.publish("events", b"order 1 opened", headers={"kind": "opened"})
            connection.publish("events", b"order 1 paid", headers={"kind": "paid"})

        failed = connection.dequeue("shipping")
        connection.rollback()  # it is tried again there; the audit does not notice
        for queue in ("audit", "shipping"):
            for message in connection.consume(queue, wait_s=0):
                print(f"{queue}: {message.body.decode()}, tries {message.tries}")
                connection.commit()
        assert failed is not None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
