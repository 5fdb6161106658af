"""A barrier that leaves out one kind of sync, and names every kind that it was asked for.

A kind is who asks, and for what: ``_Preparation: target prepared``, ``harden_content: content block``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import pytest

from xaqueue.space.engine import state
from xaqueue.space.model import layout
from xaqueue.storage import group_commit
from xaqueue.storage.group_commit import Barrier, Step, Touched
from xaqueue.tools.torture.forgetful import ForgetfulFileSystem


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
    if name == ".watermark":
        return "watermark"
    if layout.parse_range(name) is not None:
        return "range"
    if directory == layout.BATCHES:
        return "batch record"
    if directory == layout.STREAMS:
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

    class CarelessBarrier(Barrier):
        def harden_content(self, paths: Sequence[str]) -> None:
            super().harden_content(care.kept(sys._getframe(1).f_code.co_name, "content", paths))

        def _apply(self, step: Step) -> Touched | None:
            change = super()._apply(step)
            if change is None or step.record is not None:  # its record is its hardening
                return change
            asks = asker_of(step.apply)
            return Touched(
                dict.fromkeys(care.kept(asks, "content", change.files)),
                dict.fromkeys(care.kept(asks, "target", change.targets)),
                dict.fromkeys(care.kept(asks, "source", change.sources)),
            )

    with monkeypatch.context() as patch:
        patch.setattr(state, "Barrier", CarelessBarrier)
        for name, role in ROLES.items():
            patch.setattr(ForgetfulFileSystem, name, _careless_sync(care, name, role))
        yield care


ROLES = {"sync_data": "content", "sync_file": "content", "sync_dir": "names", "sync_all": "all"}
WITHIN = frozenset({*ROLES, "sync", "_sync", "_settle", "_overwrite", "_write_own", "_write_at", "run"})
"""Functions that sync for others, who are the ones that ask."""


def _careless_sync(care: Carelessness, name: str, role: str) -> Callable[..., None]:
    """Like the real call of the port, unless it is left out. What the barrier asks for it has accounted for itself."""
    real = getattr(ForgetfulFileSystem, name)

    def sync(fs: ForgetfulFileSystem, path: str = "") -> None:
        frame: FrameType | None = sys._getframe(1)
        while (
            frame is not None and frame.f_code.co_name in WITHIN and frame.f_code.co_filename != group_commit.__file__
        ):
            frame = frame.f_back
        assert frame is not None
        by_barrier = frame.f_code.co_filename == group_commit.__file__
        if by_barrier or care.kept(frame.f_code.co_name, role, [path]):
            real(*(fs, path) if name != "sync_all" else (fs,))

    return sync


def asker_of(apply: Callable[[], Touched]) -> str:
    """The function or class that a step's ``apply`` belongs to."""
    owner = apply.__qualname__.partition(".<locals>")[0].removesuffix(".apply")
    return owner.rpartition(".")[2]
