"""A log that leaves out one kind of sync, and names every kind that it was asked for.

A kind is who asks, and for what: ``prepare: target prepared``, ``harden of prepare: content block``. A step that is
carried out in the directories asks by the name of its kind, for its point apart from what follows; the directories of
a round are its targets and sources. All other syncs are asked for by the function that calls the log, the journal or
the port.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import pytest

from support.forgetful import ForgetfulFileSystem
from xaqueue.core.engine import directory_log
from xaqueue.core.engine.directory_log import DirectoryLog
from xaqueue.core.model import layout
from xaqueue.core.model.change import Change, Op
from xaqueue.features.batches import record
from xaqueue.features.streams.record import STREAMS

RETRIES = layout.retries_path("").rpartition("/")[2]
NAMED = {".watermark": "watermark", RETRIES: "tries", layout.GONE: "bitmaps"}


class Carelessness:
    """Which kind is left out, if any; which kinds were asked for."""

    def __init__(self, left_out: str = "") -> None:
        self.left_out = left_out
        self.asked: set[str] = set()

    def kept(self, step: str, role: str, paths: Iterable[str]) -> list[str]:
        kinds = {path: f"{step}: {role} {kind_of(path)}" for path in paths}
        self.asked.update(kinds.values())
        return [path for path, kind in kinds.items() if kind != self.left_out]


def kind_of(path: str) -> str:
    """What a directory, or a file whose content is synced, is for."""
    directory, _, name = path.rpartition("/")
    if directory == layout.ACTIVE and name.startswith(layout.STAGED):
        return kind_of(name.removeprefix(layout.STAGED).replace("~", "/"))
    for place, what in ((RETRIES, "try"), (layout.GONE, "bitmap")):
        if directory.endswith(f"/{place}"):
            return what
    if name in NAMED:
        return NAMED[name]
    if layout.parse_range(name) is not None:
        return "range"
    if directory == layout.HEURISTIC:
        return "decision"
    if directory == record.BATCHES:
        return "batch record"
    if directory == STREAMS:
        return "stream record"
    if layout.parse_queue_directory(name) is not None:
        return "queue"
    if directory == layout.JOURNAL:
        return "archive" if ".archive" in name else "new segment" if name.endswith(".new") else "segment"
    if directory in (layout.ACTIVE, layout.PREPARED):
        return "first block" if name.endswith("." + layout.FIRST) else "block"
    return path or "root"


@contextmanager
def careless(monkeypatch: pytest.MonkeyPatch, left_out: str = "") -> Iterator[Carelessness]:
    """Every space that is opened inside leaves this kind of sync out."""
    care = Carelessness(left_out)
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryLog, "_carry_out", _careless_step(care))
        for name, role in ROLES.items():
            patch.setattr(ForgetfulFileSystem, name, _careless_sync(care, name, role))
        yield care


def _careless_step(care: Carelessness) -> Callable[..., None]:
    """Has the round sync what the step touched, but for what is left out of it."""
    real = DirectoryLog._carry_out

    def carry(
        log: DirectoryLog, change: Change, ops: Sequence[Op], touched: directory_log._Touched | None = None
    ) -> None:
        if touched is None:  # at a level that syncs nothing
            real(log, change, ops)
            return
        own = directory_log._Touched()
        try:
            real(log, change, ops, own)
        finally:
            asks = change.kind.name.lower() + ("'s point" if ops is change.point else "")
            touched.files.update(dict.fromkeys(care.kept(asks, "content", own.files)))
            targets = care.kept(asks, "target", own.targets)
            losing = care.kept(asks, "source", [path for path in own.sources if path not in own.targets])
            touched.targets.update(dict.fromkeys(targets))
            touched.to_move_back += own.to_move_back
            touched.emptied += own.emptied
            touched.sources.update(dict.fromkeys([*losing, *(path for path in targets if path in own.sources)]))

    return carry


ROLES = {"sync_data": "content", "sync_file": "content", "sync_dir": "names", "sync_all": "all"}
ROUND = "DirectoryLog._sync"
WITHIN = frozenset(
    {
        *(
            "synced",
            "write_then_sync",
            "Threads.run",
            "Space.put",
            "Space.stage",
            "Space.sync_all",
            "Journal._sync",
            "_Recovery._harden_contents",
            "_settle",
            "writer_of",
        ),
        *("Journal._write_own", "_careless_sync", "_failing"),
        *("GroupCommit.perform", "GroupCommit._lead", "DirectoryLog._harden"),
        *(
            "harden",
            "stage",
            "_make_dir",
            "sync_contents",
            "sync_names",
            "_sync_contents",
            "_sync_names",
            "_sync",
            "_sync_all",
        ),
    }
)
"""What syncs for others, who are the ones that ask; the last are those of both logs."""


def _careless_sync(care: Carelessness, name: str, role: str) -> Callable[..., None]:
    """Like the real call of the port, unless it is left out. What a round asks for, its steps have accounted for."""
    real = getattr(ForgetfulFileSystem, name)

    def sync(fs: ForgetfulFileSystem, path: str = "") -> None:
        asker = _asker(sys._getframe(1))
        if asker == ROUND or care.kept(asker, role, [path]):
            real(*(fs, path) if name != "sync_all" else (fs,))

    return sync


def _asker(frame: FrameType | None) -> str:
    while frame is not None:
        owner = frame.f_code.co_qualname.partition(".<locals>")[0]
        log, _, name = owner.partition(".")
        if owner == ROUND or not (owner in WITHIN or (log in ("DirectoryLog", "JournalLog") and name in WITHIN)):
            return owner if owner == ROUND else owner.rpartition(".")[2]
        frame = frame.f_back
    raise AssertionError("nobody asks")
