"""Put a message into a queue, take it out again, and do both once more in two phases."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import xaqueue


def main(directory: Path) -> None:
    with xaqueue.connect(directory / "shop", create=True) as connection:
        # One phase: what is enqueued becomes visible, and durable, with commit.
        connection.enqueue("orders", b"two apples", correlation_id="42")
        connection.commit()
        message = connection.dequeue("orders")
        print("took", message.body if message else None)
        connection.rollback()  # changed our mind: the message is back in its place

        # Two phases: take an order and send a parcel, both or neither, as one branch of a global transaction.
        connection.tpc_begin(connection.xid(1, "order-42", "shop"))
        order = connection.dequeue("orders", correlation_id="42")
        connection.enqueue("parcels", b"parcel of " + order.body if order else b"")
        connection.tpc_prepare()  # from here on neither a crash nor a restart undoes it: it is in doubt
        print("in doubt:", *(xid.gtrid.decode() for xid in connection.tpc_recover()))
        connection.tpc_commit()
        print("parcels:", [parcel.body.decode() for parcel in connection.browse("parcels")])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
