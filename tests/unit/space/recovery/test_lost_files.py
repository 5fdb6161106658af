"""What the journal moved and a replay finds nowhere is damage: the space opens read-only, and everybody names it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from typer.testing import CliRunner

import xaqueue
from support.bare_space import BareSpace, bare_space
from support.broken_journal import files, killed
from xaqueue.cli.main import app
from xaqueue.errors import ResourceFailed
from xaqueue.space.engine import cleanup
from xaqueue.space.model import layout
from xaqueue.space.model.definitions import Definitions, QueueDefinition
from xaqueue.space.offline.check import check
from xaqueue.space.offline.findings import Severity
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
