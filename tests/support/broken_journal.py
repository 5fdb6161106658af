"""A space that was killed, with everything in its journal, and a way to damage that."""

from __future__ import annotations

import json
from pathlib import Path

from support.bare_space import bare_space
from support.journals import spoil
from xaqueue.core.engine import heuristics
from xaqueue.core.model import layout
from xaqueue.core.model.change import is_valid
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.journal_format import Record
from xaqueue.core.storage.journal_reader import look
from xaqueue.xid import Xid

IN_DOUBT, DECIDED = (Xid(1, name, b"b") for name in (b"in doubt", b"decided"))
STEPS = ["one phase", "one phase", "prepare", "prepare", "decision", "commit", "one phase"]
"""The records of ``make``: 0 and 1 add first and second; 2 takes first and adds third; 3 to 5 fourth; 6 adds fifth."""


def make(root: Path) -> Path:
    """A space whose directories hold everything, too, where the owner was killed."""
    with bare_space(root, sync="JOURNAL") as bare:
        bare.put("orders", b"first", b"second")
        bare.prepare("in doubt", add=[("orders", b"third")], take=["orders"])
        bare.prepare("decided", add=[("orders", b"fourth")])
        heuristics.decide(bare.space, DECIDED, to_commit=True, by="test")
        bare.put("orders", b"fifth")
        bare.space.log.settle()
        bare.space.sync_all()
    killed(root)
    return root


def killed(root: Path) -> None:
    """As an owner that was killed leaves it, as far as its file tells."""
    owner = {"epoch": 1, "host": "h", "pid": 1, "since": "s", "sync": "JOURNAL", "state": "ready", "journalled": True}
    (root / layout.OWNER).write_text(json.dumps(owner))


def lose_directories(root: Path) -> None:
    """Of what was done since the last checkpoint, a power loss leaves nothing but the journal."""
    for directory in (layout.COMMITTED, layout.PREPARED, layout.HEURISTIC, layout.ACTIVE):
        for path in sorted((root / directory).rglob("*"), reverse=True):
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()


def records(root: Path) -> list[Record]:
    """Those that are not covered by a checkpoint; of a journal that is sound."""
    fs = DirectoryFileSystem(root)
    try:
        return look(fs, layout.JOURNAL, is_valid).records
    finally:
        fs.close()


def damage(root: Path, *which: int) -> None:
    """Flips a bit in some of the records of a sound journal."""
    lsns = [record.lsn for record in records(root)]
    fs = DirectoryFileSystem(root)
    for number in which:
        spoil(fs, lsns[number], 60)
    fs.close()


def files(root: Path) -> dict[str, bytes]:
    """All but what says who looked."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name not in (layout.LOCK, layout.OWNER)
    }
