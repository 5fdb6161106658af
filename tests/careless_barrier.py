"""A barrier that leaves out one kind of sync, and names every kind that it was asked for.

A kind is who asks, and for what: ``prepare: target prepared``, ``harden_blocks: content block``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from forgetful_fs import ForgetfulFileSystem

from xaqueue.space import layout, space
from xaqueue.storage.barrier import Barrier, Ticket


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
    if layout.parse_queue_directory(name) is not None:
        return "queue"
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

        def submit(
            self,
            *,
            files: Iterable[str] = (),
            targets: Iterable[str] = (),
            sources: Iterable[str] = (),
            publish: Callable[[], None] | None = None,
        ) -> Ticket:
            step = sys._getframe(1).f_code.co_name
            return super().submit(
                files=care.kept(step, "content", files),
                targets=care.kept(step, "target", targets),
                sources=care.kept(step, "source", sources),
                publish=publish,
            )

    def sync_data(fs: ForgetfulFileSystem, path: str) -> None:
        step = sys._getframe(1).f_code.co_name
        if step != "_write_final_watermarks" or care.kept(step, "content", [path]):
            fs.sync_file(path)

    with monkeypatch.context() as patch:
        patch.setattr(space, "Barrier", CarelessBarrier)
        patch.setattr(ForgetfulFileSystem, "sync_data", sync_data)
        yield care
