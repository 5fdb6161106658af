"""Who has a space open starts a process for what left its queues, and says what is wrong with that."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from support.archive_space import Space, check
from support.patience import eventually
from xaqueue.core.owner.chores import Chores
from xaqueue.features.streams import archiving


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    monkeypatch.setattr(archiving, "AGE_S", 0.0)
    made = Space(tmp_path / "space", "JOURNAL")
    made.put(b"a", b"b", b"c", b"d")
    yield made
    made.stop()


@pytest.mark.parametrize("why", ["xaqueue[lake]", "says why"])
def test_what_keeps_it_from_that_is_told_once(
    space: Space, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    """Without PyArrow, or where the process fails; until more is there."""
    if why == "says why":
        monkeypatch.setattr(archiving, "COMMAND", ("false",))
    else:
        monkeypatch.setattr(archiving, "find_spec", lambda name: None)
    chore = archiving.Archive(space.session.space, space.root)
    turn = Chores(space.session.space, [])
    for _ in range(2):
        space.take(1)
        space.settle()
        with caplog.at_level(logging.WARNING):
            eventually(lambda: [chore.run(turn), why in caplog.text][1], 60.0)
            for _ in range(9):
                chore.run(turn)
        assert caplog.text.count("archive-stuck") == 1
        caplog.clear()
    check(space)


def test_it_ends_with_whoever_started_it(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Started(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Started)
    monkeypatch.setattr(archiving, "COMMAND", (sys.executable, "-c", "import time; time.sleep(1000)"))
    chore = archiving.Archive(space.session.space, space.root)
    space.take(1)
    space.settle()
    for _ in range(3):
        chore.run(Chores(space.session.space, []))
    (process,) = started
    assert process.poll() is None
    chore.finish()
    assert process.poll() is not None


def test_none_is_started_where_nothing_is_ready(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken of a block stays in it until the last of it is, however often somebody takes one."""
    started: list[object] = []
    monkeypatch.setattr(archiving.Archive, "_tell", lambda *given: started.append(given))
    monkeypatch.setattr(archiving, "find_spec", lambda name: None)
    chore, turn = archiving.Archive(space.session.space, space.root), Chores(space.session.space, [])
    space.put(*(b"%d" % at for at in range(20)), many=True)
    space.take(4)
    for _ in range(20):
        space.settle()
        chore.run(turn)
        assert len(started) == 1, "the four had files of their own"
        space.take(1)
    space.settle()
    for _ in range(3):
        chore.run(turn)
    assert len(started) == 2
