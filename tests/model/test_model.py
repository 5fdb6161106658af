"""The protocol of nodes that share a database, and that of slots that share a directory, tried in all orders by spin:
``nodes.pml`` and ``slots.pml`` say what, and what not.

One sweeper, and one look at a slot, where all mutants are found; with ``XAQUEUE_CRASH_FULL=1`` two, and more that may
happen at once: that takes some minutes, and 3 GB for the largest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).with_name("nodes.pml")
SLOTS = Path(__file__).with_name("slots.pml")
GUIDE = Path(__file__).parents[2] / "man" / "guide" / "protocol.md"
FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
MEGABYTES = 3000
DEPTH = 400_000

HOLD = [
    "",
    "QUEUE_CRASH",
    "DATABASE_CRASH",
    "CARRIED QUEUE_CRASH DATABASE_CRASH",
    "COPY",
    "TWIN",
    "YEARS QUEUE_CRASH",
    "NO_LOCK",
    "NO_FORCE",
    "EARLY",
    "QUEUES=2",
]
WHOLE = [
    "",
    "QUEUE_CRASH",
    "DATABASE_CRASH",
    "CARRIED",
    "CARRIED QUEUE_CRASH",
    "CARRIED QUEUE_CRASH DATABASE_CRASH",
    "COPY",
    "TWIN",
    "YEARS",
    "NO_LOCK",
    "NO_FORCE",
    "EARLY",
    "SWEEPERS=1 QUEUES=2 QUEUE_CRASH",
    "SWEEPERS=1 QUEUE_CRASH DATABASE_CRASH YEARS TWIN",
    "SWEEPERS=1 QUEUE_CRASH DATABASE_CRASH COPY",
    "SWEEPERS=1 NODES=2 LOOKS=1",
]
FOUND = [
    "M_UNREGISTERED",
    "M_UNSIGNED",
    "M_UNMET YEARS",
    "M_SOFT_NODE DATABASE_CRASH",
    "M_SOFT_DECISION DATABASE_CRASH",
    "M_SOFT_END DATABASE_CRASH NO_FORCE",
    "NO_LOCK NO_FORCE",
    "EARLY NO_FORCE",
    "M_STALE NO_FORCE",
    "M_WORD",
    "M_FORCED_LATE",
    "M_MISSING",
    "M_LISTED_ONCE SWEEPERS=2",
    "M_LIVING",
    "M_NO_TOMBSTONE",
    "M_SIGN COPY",
    "M_WINDOW COPY",
    "M_UNASKED",
    "M_SOFT QUEUE_CRASH",
    "M_HARDENED_BEFORE QUEUE_CRASH",
    "M_LIFE QUEUE_CRASH",
    "M_LAST QUEUES=2",
    "M_NAME TWIN",
    "M_CARRIED CARRIED",
    "M_LIVES CARRIED QUEUE_CRASH",
    "M_UNWAITED CARRIED QUEUE_CRASH",
    "M_READ CARRIED QUEUE_CRASH",
    "M_AGE YEARS",
    "M_YEARS_LIFE YEARS QUEUE_CRASH",
    "M_CLOSE",
    "M_CLOSE_LIFE QUEUE_CRASH",
]
SLOTS_HOLD = ["", "POWER", "LOST", "OLDER LOOKS=2", "SILENT", *(["NO_LOCK"] if FULL else [])]
SLOTS_FOUND = [
    "M_SOFT_NODE POWER",
    "M_SOFT_DECISION POWER",
    "M_UNSYNCED POWER",
    "NO_LOCK M_OWNER",
    "M_OWNER LOST",
    "M_OWNER_LATE LOST",
    "M_JOURNAL LOST",
    "M_EARLY",
    "M_EPOCH",
    "M_LISTED",
    "M_DECIDED SILENT",
    "M_ONCE",
    "M_REMOVED",
    "M_OLDER OLDER",
]


def explored(options: str, tmp_path: Path, model: Path = MODEL) -> str:
    """What spin says of all that may happen: the assertion that fails first, and empty where none does."""
    missing = [name for name in ("spin", "gcc") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no model checker is found: apt-get install {' '.join(missing)}")
    words = [f"-D{one}" for one in options.split()]
    if model is MODEL and "SWEEPERS" not in options and (not FULL or "M_" in options):
        words.append("-DSWEEPERS=1")
    if model is SLOTS and "LOOKS" not in options and "M_" not in options and not FULL:
        words.append("-DLOOKS=1")
    optimized = ["-O2", "-DCOLLAPSE"] if FULL else ["-O0"]
    _run(tmp_path, "spin", *words, "-a", str(model))
    _run(tmp_path, "gcc", *optimized, "-DSAFETY", f"-DMEMLIM={MEGABYTES}", "-w", "-o", "pan", "pan.c")
    said = _run(tmp_path, "./pan", f"-m{DEPTH}")
    errors = re.search(r"errors: (\d+)", said)
    assert errors is not None, said
    if errors[1] == "0":
        assert "Search not completed" not in said, said
        assert "max search depth too small" not in said, said
        return ""
    found = re.search(r"assertion violated +(.*) \(at depth", said)
    assert found is not None, said
    return found[1]


def _run(where: Path, *arguments: str) -> str:
    done = subprocess.run(arguments, cwd=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("options", WHOLE if FULL else HOLD)
def test_all_or_none_and_no_doubt(options: str, tmp_path: Path) -> None:
    assert explored(options, tmp_path) == ""


@pytest.mark.parametrize("options", FOUND)
def test_broken_clause_is_found(options: str, tmp_path: Path) -> None:
    assert explored(options, tmp_path) != ""


@pytest.mark.parametrize("options", SLOTS_HOLD)
def test_slots_all_or_none_and_no_doubt(options: str, tmp_path: Path) -> None:
    assert explored(options, tmp_path, SLOTS) == ""


@pytest.mark.parametrize("options", SLOTS_FOUND)
def test_broken_clause_of_slots_is_found(options: str, tmp_path: Path) -> None:
    assert explored(options, tmp_path, SLOTS) != ""


@pytest.mark.parametrize(("model", "found"), [(MODEL, FOUND), (SLOTS, SLOTS_FOUND)])
def test_each_mutant_is_tried_and_told(model: Path, found: list[str]) -> None:
    mutants = set(re.findall(r"\bM_[A-Z_]+\b", model.read_text()))
    tried = {word for one in found for word in one.split()}
    assert mutants == {word for word in tried if word.startswith("M_")}
    assert tried <= set(re.findall(r"\b[A-Z_]+(?:=2)?", GUIDE.read_text()))
