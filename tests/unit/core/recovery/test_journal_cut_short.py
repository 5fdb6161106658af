"""A journal that was cut short is damage wherever anything proves it: to the open, to check, to salvage, to a TM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import xaqueue
from support.bare_space import bare_space
from support.broken_journal import files, killed
from xaqueue.core.model import layout
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.journal_format import SECTOR_BYTES
from xaqueue.errors import DecisionLogDamaged, ResourceFailed
from xaqueue.features.session import attach
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.offline.salvage import find_loss, salvage
from xaqueue.tm.log import DecisionLog
from xaqueue.tm.log_directory import open_log

MANY = 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A space that was killed, with all of its messages in the journal and the directories."""
    root = tmp_path / "space"
    with bare_space(root, sync="JOURNAL") as bare:
        for number in range(MANY):
            bare.put("orders", b"body %d" % number)
        bare.space.sync_all()
    killed(root)
    return root


def segment(root: Path) -> Path:
    return min((root / layout.JOURNAL).glob("*.log"))


def cut(root: Path, body: bytes, *, keep_size: bool) -> None:
    """Ends the segment in the middle of the record with this body."""
    data = segment(root).read_bytes()
    os.truncate(segment(root), data.index(body) // SECTOR_BYTES * SECTOR_BYTES)
    if keep_size:
        os.truncate(segment(root), len(data))


def lose_watermark(root: Path) -> None:
    os.truncate(root / layout.watermark_path("orders"), 0)


def lose_last_files(root: Path) -> None:
    """The watermark tells of them."""
    for path in sorted((root / layout.queue_path("orders")).glob("range=*/*"))[MANY // 2 :]:
        path.unlink()


@pytest.mark.parametrize("lose", [lambda _: None, lose_watermark, lose_last_files], ids=["nothing", "mark", "files"])
@pytest.mark.parametrize("keep_size", [False, True], ids=["short", "zeros"])
def test_it_is_told_and_nothing_is_changed(root: Path, keep_size: bool, lose: object) -> None:
    assert callable(lose)
    lose(root)
    cut(root, b"body 12", keep_size=keep_size)
    before = files(root)
    damage = [finding for finding in check(root) if finding.severity is Severity.DAMAGE]
    assert any("was cut short" in finding.problem for finding in damage)
    session = attach(root, watch=False)
    assert session.space.read_only is not None
    assert "was cut short" in str(session.space.read_only)
    session.close()
    with xaqueue.connect(root) as connection, pytest.raises(ResourceFailed, match="was cut short"):
        connection.enqueue("orders", b"new")
    assert files(root) == before
    loss = find_loss(root)
    assert loss is not None
    assert (len(loss.steps), len(loss.gaps), loss.gaps[0].end) == (12, 1, None)
    assert salvage(root).steps == 12
    with xaqueue.connect(root) as connection:
        assert len(list(connection.browse("orders"))) >= 12
        connection.enqueue("orders", b"new")
        connection.commit()


def test_a_torn_tail_of_which_nothing_was_seen_is_no_damage(root: Path) -> None:
    """The last record was on its way: nobody was told of it, and its message has no file."""
    cut(root, b"body 19", keep_size=True)
    max((root / layout.queue_path("orders")).glob("range=*/*")).unlink()
    lose_watermark(root)
    with xaqueue.connect(root) as connection:
        assert len(list(connection.browse("orders"))) == MANY - 1


def test_what_the_checkpoint_covers_proves_nothing(root: Path) -> None:
    """Most of the files are older than the records, and other queues have none."""
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"last")
        connection.enqueue("bills", b"first")
        connection.commit()
    for _ in range(2):
        xaqueue.connect(root).close()
        killed(root)
        assert [finding for finding in check(root) if finding.severity is Severity.DAMAGE] == []
        with xaqueue.connect(root) as connection:
            assert len(list(connection.browse("orders"))) == MANY + 1


def test_a_decision_log_that_was_cut_short_is_not_opened(tmp_path: Path) -> None:
    fs = DirectoryFileSystem(tmp_path)
    log = DecisionLog(fs)
    for number in range(MANY):
        log.decide(b"%d" % number, ["a", "b"])
    log.close()
    (name,) = [path for path in tmp_path.glob("journal/*.log") if b"XAQJ" in path.read_bytes()[SECTOR_BYTES:]]
    os.truncate(name, 70_656)
    before = name.read_bytes()
    with pytest.raises(DecisionLogDamaged, match=r"was cut short: it has 70,656 bytes.*(copy|backup)"):
        open_log(tmp_path)
    assert name.read_bytes() == before
