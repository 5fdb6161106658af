"""Several messages are held at once, and each is settled when its work is done, in whatever order.

    python examples/leases.py DIRECTORY

Makes a queue space in the directory. Pictures are resized side by side by threads; one is no picture, one has to wait.
"""

import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import xaqueue

PICTURES = ["harbour.jpg", "notes.txt", "mountain.jpg", "busy.jpg"]


def resize(name: str) -> str:
    if not name.endswith(".jpg"):
        raise ValueError(f"{name} is no picture")
    if name.startswith("busy"):
        raise TimeoutError(f"{name} is being written")
    return name


def handle(connection: xaqueue.Connection, pool: ThreadPoolExecutor) -> list[str]:
    told = []
    held = connection.receive("pictures", max_messages=10, lease_s=60)
    work = {pool.submit(resize, delivery.body.decode()): delivery for delivery in held}
    for done in as_completed(work):
        delivery, error = work[done], done.exception()
        if error is None:
            delivery.ack()  # gone for good
        elif isinstance(error, TimeoutError):
            delivery.nack(delay=60)  # again in a minute, and this was no try
        else:
            delivery.reject(str(error))  # to the failure queue, at once
        told.append(f"{delivery.body.decode()}: {error or 'resized'}")
    return sorted(told)


def main(space: Path) -> None:
    with xaqueue.connect(space, create=True) as connection, ThreadPoolExecutor() as pool:
        connection.define("pictures", failure_queue="pictures.failed")
        for name in PICTURES:
            connection.enqueue("pictures", name.encode())
        connection.commit()
        print(*handle(connection, pool), sep="\n")
        for queue in ("pictures", "pictures.failed"):
            for message in connection.browse(queue):
                why = message.origin.detail if message.origin else f"{message.tries} tries"
                print(f"in {queue}: {message.body.decode()}, {why}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
