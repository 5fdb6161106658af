"""The clients of a server that is killed, or whose disk loses power: the work of xaqueue.tools.torture over a URL.

What was prepared before is resolved first, as a transaction manager does. Arguments: URL, name of this life, seed,
number of clients. The decided branches, a JSON list, come through standard input.
"""

from __future__ import annotations

import json
import os
import sys
import threading

import xaqueue
from xaqueue.connection import Connection
from xaqueue.tools.torture.ledger import Statement
from xaqueue.tools.torture.work import FAILED, Client, Say, resolve, say


class ServedClient(Client):
    """One connection. depth: of all queues, when it begins; from there on it knows what it added and took itself."""

    def __init__(self, connection: Connection, name: str, seed: str, say: Say, depth: int) -> None:
        self._begin(connection, name, seed, say)
        self.balance = depth

    def depth(self) -> int:
        self.balance += len(self.added) - len(self.taken)
        return self.balance


def work(client: ServedClient) -> None:
    try:
        client.run()
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(FAILED)


def main(url: str, life: str, seed: str, clients: str) -> None:
    first = xaqueue.connect(url)
    resolve(first, set(json.load(sys.stdin)), say)
    depth = sum(queue["depth"] for queue in first._manager.status()["queues"])  # type: ignore[attr-defined]
    say(Statement("ready"))
    for number in range(int(clients)):
        client = ServedClient(xaqueue.connect(url), f"{life}.{number}", seed, say, depth)
        threading.Thread(target=work, args=(client,)).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
