"""A function for ``xaqueue work``: it packs each order, and what it raises undoes all that it did with the message.

xaqueue work orders worker_function:pack --space data/shop
"""

import xaqueue


def pack(message: xaqueue.Message, tx: xaqueue.Connection) -> None:
    what = message.body.decode()
    if not what.strip():
        raise ValueError("an order of nothing")
    tx.enqueue("parcels", f"parcel of {what}".encode(), headers={"order": message.message_id.hex()})
    print("packed", what, flush=True)
