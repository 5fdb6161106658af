"""The messages of each customer are handled in order, and those of different customers side by side.

    python examples/groups.py DIRECTORY

Makes a queue space in the directory. Two workers share a queue; a customer whose payment fails holds up nobody else.
"""

import sys
import threading
from pathlib import Path

import xaqueue

EVENTS = [("ann", "opened"), ("bob", "opened"), ("ann", "paid"), ("bob", "closed"), ("ann", "closed")]


def work(space: Path, handled: dict[str, list[str]], failures: list[str]) -> None:
    with xaqueue.connect(space) as connection:
        while message := connection.dequeue("events", wait_s=1):
            customer, event = message.body.decode().split()
            if (customer, event) == ("ann", "paid") and message.tries < 2:
                failures.append(event)
                connection.rollback()  # it is put off, and what ann does next waits behind it
                continue
            handled[customer].append(event)
            connection.commit()


def main(space: Path) -> None:
    handled: dict[str, list[str]] = {"ann": [], "bob": []}
    failures: list[str] = []
    with xaqueue.connect(space, create=True) as connection:
        connection.define("events", retry_delay_s=0.1)
        for customer, event in EVENTS:
            connection.enqueue("events", f"{customer} {event}".encode(), group=customer)
        connection.commit()
        workers = [threading.Thread(target=work, args=(space, handled, failures)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    print("failed", len(failures), "times")
    for customer, events in handled.items():
        print(customer, *events)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
