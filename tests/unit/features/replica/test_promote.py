"""What a promotion makes of a replica."""

from __future__ import annotations

from support.crash_level import CYCLING, NOON_US, open_space
from support.crash_story import EMPTY
from xaqueue.core.model import definitions, layout
from xaqueue.core.owner.record import Owner
from xaqueue.core.storage.fs import replace_file
from xaqueue.features.replica import replicated
from xaqueue.features.replica.promote import take_place
from xaqueue.features.replica.replicated import REPLICA, REPLICATION, Replicated
from xaqueue.features.session import Session
from xaqueue.features.snapshots.restore import JUMP
from xaqueue.xa import Flag
from xaqueue.xid import Xid

DEFINED = definitions.parse('[queues.orders]\n[replication]\nacknowledge = "local"\n')


def test_no_number_is_given_out_again_in_a_queue_of_which_nothing_was_shipped() -> None:
    """The former one may have put its first messages there."""
    fs = EMPTY.open()
    fs.create(REPLICATION, [replicated.encode(Replicated(REPLICA, "xaq://there", "id", 1, 1, 512))])
    here = Owner(1, "host", 1, "", "JOURNAL", space="xaqueue 1 orders id")
    take_place(fs, here, NOON_US, DEFINED, lambda data: replace_file(fs, layout.OWNER, data))
    space = open_space(fs, CYCLING, definitions=DEFINED, epoch=1 << 20)
    session, xid = Session(space), Xid(1, b"first", b"")
    session.start(xid)
    session.enqueue("orders", b"")
    session.end(xid)
    session.commit(xid, Flag.ONEPHASE)
    (one,) = session.browse("orders")
    assert one.seq > JUMP
    assert not one.possible_duplicate
