"""A consumer in asyncio: one loop receives, and a task for each message handles it and settles it, ten at a time.

    python examples/asyncio_consumer.py URL QUEUE

SIGTERM or SIGINT lets what runs finish.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

import xaqueue

if TYPE_CHECKING:
    from xaqueue.rpc.client.asyncio import AsyncDelivery

AT_A_TIME = 10


async def handle(body: bytes) -> None:
    await asyncio.sleep(0.01)  # what it waits for: a mail server, an API
    if not body.isdigit():
        raise ValueError(f"{body!r} is no number")
    print("handled", int(body), flush=True)


async def handle_and_settle(delivery: AsyncDelivery, places: asyncio.Semaphore) -> None:
    try:
        await handle(delivery.body)
    except ValueError as error:
        await delivery.reject(str(error))
    else:
        await delivery.ack()
    finally:
        places.release()


async def consume(connection: xaqueue.AsyncConnection, queue: str, stopped: asyncio.Event) -> None:
    places = asyncio.Semaphore(AT_A_TIME)
    async with asyncio.TaskGroup() as handlers:
        while not stopped.is_set():
            await places.acquire()
            found = await connection.receive(queue, lease_s=60, wait_s=1)
            if not found:
                places.release()
            for delivery in found:
                handlers.create_task(handle_and_settle(delivery, places))


async def main(url: str, queue: str) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with await xaqueue.connect_async(url) as connection:
        await consume(connection, queue, stopped)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
