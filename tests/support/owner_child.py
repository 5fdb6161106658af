"""An owner that commits messages until it is fenced, with a line for each that is acknowledged."""

from __future__ import annotations

import sys
from itertools import count

import xaqueue
from xaqueue.errors import ResourceFailed


def main(root: str, sync: str) -> None:
    connection = xaqueue.connect(root, sync=sync)
    for number in count():
        try:
            connection.enqueue("orders", b"first %d" % number)
            connection.commit()
        except ResourceFailed as error:
            sys.stdout.write(f"fenced {error}\n")
            return
        sys.stdout.write(f"first {number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
