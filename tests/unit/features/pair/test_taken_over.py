"""An owner that is taken over in a real directory, by its real lock: it acknowledges nothing more, and what it does
late changes nothing, for whoever comes next. At every call: ``tests/sim/rules/takeovers.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import xaqueue
from xaqueue.connection import Connection
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.format import read_format
from xaqueue.core.owner import open as owning
from xaqueue.core.owner.open import _Attached
from xaqueue.core.storage.ids import fresh_id
from xaqueue.core.storage.owner_file import OwnerFile
from xaqueue.core.storage.scheduling import THREADS
from xaqueue.errors import Error, ResourceFailed
from xaqueue.features.counters import counters
from xaqueue.features.opening import WHOLE, create
from xaqueue.features.pair import standby
from xaqueue.features.retries.register import TRIES
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.xid import Xid

UNREAD = (layout.JOURNAL, TRIES, layout.HEARTBEAT)
IN_DOUBT = Xid(1, b"in doubt", b"")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(owning, "start_background", lambda *_, **__: [])
    create(tmp_path / "s", any_queue=True)
    return tmp_path / "s"


def own(root: Path, lock: OwnerFile) -> _Attached:
    """One of the two, which are in one process here."""
    return owning._open(root, read_format(root), WHOLE, None, False, None, THREADS, lambda _: None, lock)


def leave(owner: _Attached) -> None:
    """As a server that ends, whether it is the owner still or not."""
    with suppress(ResourceFailed):
        owner.space.close()
    owner.held.files.close()
    owner.space.log.end(OSError("killed"))
    owner.held.guard.stop()
    if owner.watchdog is not None:
        owner.watchdog.stop()
    owner.held.lock.release()


def connected(space: Space) -> Connection:
    return Connection(Session(space), fresh_id)


def put(space: Space, queue: str, body: bytes) -> None:
    with connected(space) as connection:
        connection.enqueue(queue, body)


def taken(space: Space, queue: str) -> list[bytes]:
    with connected(space) as connection:
        return [message.body for message in iter(lambda: connection.dequeue(queue), None)]


def believed(root: Path) -> dict[str, bytes]:
    """All that an open believes: no segment of the journal of a former owner, which nobody reads."""
    found = {path.relative_to(root): path for path in root.rglob("*") if path.is_file()}
    return {str(name): path.read_bytes() for name, path in found.items() if name.parts[0] not in UNREAD}


LATE: dict[str, Callable[[_Attached, Connection], object]] = {
    "commit": lambda _, prepared: prepared.tpc_commit(),
    "enqueue": lambda first, _: put(first.space, "a", b"late"),
    "dequeue": lambda first, _: taken(first.space, "a"),
    "release": lambda first, _: Session(first.space).release("s"),
    "follow": lambda first, _: first.space.log.settle(),
    "checkpoint": lambda first, _: first.space.checkpoint(),
    "clear": lambda first, _: cleanup.clear(first.space),
    "counters": lambda first, _: counters.write(first.space, closed=True),
    "owner": lambda first, _: first.held.say(endpoint="xaq://elsewhere:1"),
}


@pytest.mark.parametrize("late", [*LATE, "close"])
def test_what_a_former_owner_does_late(root: Path, late: str) -> None:
    first = own(root, standby.wait(root))
    for queue in ("a", "s"):
        put(first.space, queue, b"before")
    prepared = connected(first.space)
    prepared.tpc_begin(IN_DOUBT)
    prepared.enqueue("a", b"in doubt")
    prepared.tpc_prepare()
    Session(first.space).reserve("s", "stream", 0, 1)
    Session(first.space).consume("s", "stream", 1, False)
    lock = OwnerFile(root)
    assert lock.take_over(lock.locked)
    second = own(root, lock)
    connected(second.space).tpc_rollback(IN_DOUBT)
    put(second.space, "b", b"more")
    second.space.checkpoint()
    files = believed(root)
    if late in LATE:
        with pytest.raises((Error, OSError)):
            LATE[late](first, prepared)
    leave(first)
    assert believed(root) == files
    Session(second.space).release("s")
    assert [taken(second.space, queue) for queue in "abs"] == [[b"before"], [b"more"], []]
    leave(second)
    assert [str(one) for one in check(root) if one.severity is Severity.DAMAGE] == []
    with xaqueue.connect(root) as connection:
        assert connection.tpc_recover() == []
        assert [connection.dequeue(queue) for queue in "abs"] == [None] * 3
