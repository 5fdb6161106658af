"""Who has a space open has what left its queues brought into Parquet, by a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from support.archive_space import Space, check, in_parquet
from support.patience import eventually
from xaqueue.features.streams import archiving


def test_it_comes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "LOOK_S", 0.02)
    monkeypatch.setattr(archiving, "AGE_S", 0.2)
    space = Space(tmp_path / "space", "JOURNAL")
    space.put(b"a", b"b", b"c", b"d")
    for count in (1, 3):
        space.take(count)
        eventually(lambda: in_parquet(space.root) == list(space.taken), 60.0)
    check(space)
    space.stop()
