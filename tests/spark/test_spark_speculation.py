"""Spark makes a second attempt at a slow task while the first is at work: only one of them is in the far queue.

Both may prepare all they write, one may come when the batch is decided, and one may end with its executor, with a
branch prepared and another begun. ``XAQUEUE_CRASH_FULL=1`` takes 25,000 messages.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from support import spark_copies
from support.spark_copies import FULL

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.xdist_group("spark-kill")]

MESSAGES, BATCHES = (25_000, 13) if FULL else (2_000, 5)
"""An odd number of batches, of which the first is empty: the attempts of each end in turn together or late, and that of
the last never ends.
"""


def expected(batch: int) -> tuple[list[str], list[str]]:
    """What the first attempt tells, and the second, which begins while the first is at work."""
    if batch == BATCHES - 1:
        return ["held up"], ["prepared"]
    return ["held up", "refused"] if batch % 2 else ["prepared"], ["prepared"]


def told(words: Path) -> dict[int, tuple[list[str], list[str]]]:
    found: dict[int, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for line in words.read_text("utf-8").splitlines():
        batch, attempt, word = line.split(" ", 2)
        found[int(batch)][int(attempt)].append(word)
    return found


def test_of_two_attempts_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = tmp_path / "words"
    words.touch()
    monkeypatch.setenv("XAQUEUE_TEST_WORDS", str(words))
    with spark_copies.scene(tmp_path, sinks=2, messages=MESSAGES, most=-(-MESSAGES // (BATCHES - 1))) as scene:
        run = scene.run("slow", BATCHES - 1, master="cluster")
        assert run.returncode == 0, run.stdout
        assert told(words) == {batch: expected(batch) for batch in range(BATCHES)}, run.stdout
        scene.check_whole()
