"""What the journal moved and a replay finds nowhere is damage: the space opens read-only, and everybody names it.

What goes while nobody has the space open is told once, and no number of it is used again.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import xaqueue
from support.bare_space import DURABLE, BareSpace, bare_space
from support.broken_journal import files, killed
from xaqueue.cli.main import app
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.errors import ResourceFailed
from xaqueue.features import opening
from xaqueue.features.opening import attach
from xaqueue.features.streams import cleanup
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.xa import Outcome
from xaqueue.xid import Xid


def commit(bare: BareSpace, xid: Xid) -> None:
    with bare.connect() as connection:
        connection.tpc_commit(xid)


def moved(bare: BareSpace, expires_at: int | None = None) -> Path:
    """A message of which the journal has no more than the name; its file."""
    with bare.connect() as connection:
        xid = Xid(1, b"moved", b"b")
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"precious", expires_at=expires_at)
        assert connection.tpc_prepare()
        bare.space.checkpoint()
        connection.tpc_commit()
    bare.space.sync_all()
    return bare.message_file("orders", b"precious")


@pytest.mark.parametrize("how", ["removed", "emptied", "flipped"])
def test_it_is_damage_and_salvage_goes_on_without_it(tmp_path: Path, how: str) -> None:
    root = tmp_path / "space"
    with bare_space(root, "JOURNAL") as bare:
        bare.put("orders", b"other")
        path = moved(bare)
    killed(root)
    if how == "removed":
        path.unlink()
    else:
        path.write_bytes(b"" if how == "emptied" else path.read_bytes().replace(b"precious", b"precIous"))
    name, before = str(path.relative_to(root)), files(root)

    damage = [(found.path, found.problem) for found in check(root) if found.severity is Severity.DAMAGE]
    assert damage[0][0] == name
    assert "the space opens for reading only" in damage[0][1]
    assert CliRunner().invoke(app, ["check", "--space", str(root)]).exit_code == 1
    with xaqueue.connect(root) as connection:
        assert [message.body for message in connection.browse("orders")] == [b"other"]
        with pytest.raises(ResourceFailed, match=rf"(?s){name}.*salvage-journal"):
            connection.enqueue("orders", b"no")
    assert files(root) == before

    shown = CliRunner().invoke(app, ["salvage-journal", "--space", str(root)])
    assert f"lost: {name}" in shown.output
    assert CliRunner().invoke(app, ["salvage-journal", "--yes", "--space", str(root)]).exit_code == 0
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"and on")
        connection.commit()
        assert [message.body for message in connection.browse("orders")] == [b"other", b"and on"]


def test_what_was_set_aside_before_the_crash_is_known(tmp_path: Path) -> None:
    uncached = Definitions(default=QueueDefinition(), cache_bytes=0)
    with bare_space(tmp_path / "space", "JOURNAL", definitions=uncached) as bare:
        moved(bare).write_bytes(b"")
        assert bare.take("orders") == []
        assert len(bare.quarantined()) == 1
        assert bare.reopen().read_only is None


def test_what_expired_is_no_loss(tmp_path: Path) -> None:
    """It was removed, and the journal says so."""
    now = [1_800_000_000_000_000]
    with bare_space(tmp_path / "space", "JOURNAL", lambda: now[0]) as bare:
        path = moved(bare, now[0] + 1_000_000)
        now[0] += 2_000_000
        assert bare.take("orders") == []
        cleanup.expire(bare.space)
        bare.space.sync_all()
        assert not path.exists()
        assert bare.reopen().read_only is None
        assert bare.take("orders") == []


def test_a_checkpoint_waits_for_a_commit_whose_messages_found_no_room(tmp_path: Path) -> None:
    """Its record is all that says that it is committed."""
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        bare.put("orders", b"other")
        xid = bare.prepare("late", add=[("orders", b"precious")])
        bare.space.sync_all()
        bare.fs.faults["rename", layout.COMMITTED] = errno.ENOSPC
        commit(bare, xid)
        bare.space.checkpoint()
        assert len(bare.messages("orders")) == 1
        bare.fs.faults.clear()
        assert bare.reopen().outcome(xid) is Outcome.COMMITTED
        assert bare.take("orders") == [b"other", b"precious"]


LEVELS = ["NONE", DURABLE, "JOURNAL"]
GONE = {"queue": "queue=orders", "range": "queue=orders/range=*", "message": "queue=orders/range=*/*3.*"}
"""What somebody removes below committed/."""


def opened(root: Path) -> list[str]:
    """What an open has to say; it is closed again."""
    session = attach(root, watch=False)
    session.close()
    return session.space.report.notes


@pytest.mark.parametrize("sync", LEVELS)
@pytest.mark.parametrize("what", GONE)
def test_what_is_removed_while_it_is_closed_is_told(tmp_path: Path, what: str, sync: str) -> None:
    root, xid = tmp_path / "space", Xid(1, b"doubt", b"b")
    opening.create(root, any_queue=True, sync=sync)
    with xaqueue.connect(root) as connection:
        for queue, body in (("orders", b"1"), ("orders", b"2"), ("orders", b"3"), ("others", b"stays")):
            connection.enqueue(queue, body)
        connection.commit()
        connection.dequeue("orders")
        connection.commit()
        connection.tpc_begin(xid)
        connection.dequeue("orders")
        connection.enqueue("orders", b"4")
        connection.tpc_prepare()
    assert list(check(root)) == [], "what a branch holds is there"
    assert opened(root) == []
    with xaqueue.connect(root) as connection:
        connection.tpc_rollback(xid)

    (gone,) = (root / "committed").glob(GONE[what])
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    lost = 1 if what == "message" else 2
    (damage,) = [found for found in check(root) if found.severity is Severity.DAMAGE]
    assert damage.problem.startswith(f"{lost} of 2 messages that were here when the space was closed are gone")
    assert f"{lost} messages of queue orders are gone" in str(opened(root))
    assert "are gone" not in str(opened(root)), "it is told once"
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"new")
        connection.commit()
        found = list(connection.browse("orders"))
        assert [message.body for message in found] == [*[b"2"][lost - 1 :], b"new"]
        assert found[-1].seq > 3, "a reader that remembers how far it came misses nothing"
    assert (list(check(root)), opened(root)) == ([], [])


def test_what_is_set_aside_at_an_open_is_told_as_that(tmp_path: Path) -> None:
    root = tmp_path / "space"
    opening.create(root, any_queue=True)
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"1")
        connection.commit()
    (path,) = (root / "committed").glob("queue=orders/range=*/0*")
    path.rename(path.with_name("strange"))
    assert opened(root) == []
    assert len(list((root / "quarantine").glob("*strange"))) == 1
    assert opened(root) == []
