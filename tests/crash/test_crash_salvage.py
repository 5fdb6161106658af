"""A salvage that is cut off at any call goes on where it was."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

import xaqueue
from support import broken_journal
from support.broken_journal import damage, lose_directories
from support.forgetful import Crashed, Tree
from xaqueue.core.model import layout
from xaqueue.core.model.change import is_valid
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES, Journal
from xaqueue.errors import SpaceError
from xaqueue.offline.salvage import give_up


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return broken_journal.make(tmp_path / "space")


def tree_of(root: Path) -> Tree:
    """The space, with a journal that is small enough for a file system in memory."""
    nodes: dict[str, bytes | None] = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        nodes[name] = None if path.is_dir() else path.read_bytes()[:SMALLEST_SEGMENT_BYTES]
    return Tree(nodes)


def test_it_may_be_cut_off_at_any_call(tmp_path: Path) -> None:
    root = tmp_path / "space"
    xaqueue.connect(root, create=True).close()
    for path in (root / layout.JOURNAL).iterdir():
        path.unlink()
    (root / layout.QUEUES).write_text(f"[default]\n[space]\njournal_segment_bytes = {SMALLEST_SEGMENT_BYTES}\n")
    broken_journal.make(root)
    damage(root, 2)
    lose_directories(root)
    start = tree_of(root)
    done = start.open()
    give_up(done, SMALLEST_SEGMENT_BYTES)
    wanted = {path: data for path, data in done.tree_after_kill().nodes.items() if not path.startswith(layout.JOURNAL)}
    kept = {path for path in done.tree_after_kill().nodes if path.endswith(".archive")}
    assert len(kept) == 2
    for crash_after in count():
        fs = start.open(crash_after)
        with suppress(Crashed):
            give_up(fs, SMALLEST_SEGMENT_BYTES)
        for tree in (fs.tree_after_kill(), *fs.trees_after_crash(limit=40, seed=crash_after)):
            after = tree.open()
            try:
                journal = Journal(after, layout.JOURNAL, segment_bytes=SMALLEST_SEGMENT_BYTES, is_valid=is_valid)
            except SpaceError:
                give_up(after, SMALLEST_SEGMENT_BYTES)
            else:
                assert journal.replay == []
                journal.start()
            nodes = after.tree_after_kill().nodes
            assert {path: data for path, data in nodes.items() if not path.startswith(layout.JOURNAL)} == wanted
            assert {path for path in nodes if path.endswith(".archive")} == kept
        if not fs.crashed:
            break
