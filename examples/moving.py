"""Messages in the wrong place: they are looked at, moved, sent back, and copied into another space as they are.

    python examples/moving.py DIRECTORY

Makes two queue spaces in the directory, the second one for a trial of what failed in the first.
"""

import sys
from pathlib import Path

import xaqueue


def main(directory: Path) -> None:
    shop = xaqueue.connect(directory / "shop", create=True)
    trial = xaqueue.connect(directory / "trial", create=True)
    with shop, trial:
        for queue in ("orders", "refunds", "mistyped"):
            shop.define(queue)
        shop.enqueue("orders", b"two apples")
        refund = shop.enqueue("orders", b"refund of a pear", headers={"kind": "refund"})
        shop.enqueue("mistyped", b"three plums")
        shop.commit()

        (found,) = shop.browse("orders", message_id=refund.hex()[:16])  # the first digits do
        shop.move("orders", refund, "refunds")
        for message in shop.browse("mistyped"):
            shop.move("mistyped", message.message_id, "orders")
        shop.commit()  # all of that, or nothing
        shop.undefine("mistyped")
        print("orders:", [message.body.decode() for message in shop.browse("orders")])

        trial.define("refunds")
        print("copied:", [trial.restore(message) for message in shop.browse("refunds")])
        print("copied again:", [trial.restore(message) for message in shop.browse("refunds")])
        trial.commit()
        (copy,) = trial.browse("refunds")
        print("the same:", copy.message_id == found.message_id, copy.enqueued_at == found.enqueued_at, copy.headers)

        shop.requeue("refunds", refund)  # it was no refund after all
        shop.commit()
        print("orders:", [message.body.decode() for message in shop.browse("orders")])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
