"""Power cuts on real file systems: what was acknowledged is there after the mount, and nothing is there in part.

The lives of one space, on one disk: each ends without power, at a random moment or at a chosen call, most of them
syncs; the next recovers with the kernel's own recovery behind it, and goes on. What was said until then is held to what
all of it comes to, as in test_kill_space. ``XAQUEUE_CRASH_FULL=1``: more of them, and each sync in turn.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import SUPPORT
from support.many_moments import DEFINED, WatchingLedger
from support.powercut import DURABLE, KINDS, MIXED, SMALL_JOURNAL, Disk, Lives, disk, seeded
from xaqueue.core.owner import definitions_file

FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
CALLS = ("sync", "sync", "sync", "write_at", "create", "rename", "unlink", "decide", "consume", "sync_all")
CUTS = 40 if FULL else 10
CUTS_AMID_MANY = 50 if FULL else 6
LONGEST_LIFE_S = 2.0
EACH_SYNC = 70
"""Syncs of one life that are cut before and after, each in turn."""

pytestmark = pytest.mark.crash


@pytest.fixture(params=KINDS)
def drive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    with disk(request.param, tmp_path) as made:
        yield made


def fault_of(dice: random.Random) -> str:
    """A call to cut the power at, or nothing: then it is cut some time."""
    if dice.random() < 0.35:
        return ""
    soon = dice.choice((3, 30, 150))  # the first few calls are those of the recovery
    return f"{dice.choice(CALLS)}:{dice.randint(1, soon)}:{dice.choice(('before', 'after'))}"


def test_the_power_is_really_cut(drive: Disk) -> None:
    (drive.place / "a").mkdir()
    os.sync()
    for name, hardened in (("kept", True), ("lost", False)):
        with (drive.place / "a" / name).open("wb") as file:
            file.write(b"content")
            if hardened:
                file.flush()
                os.fsync(file.fileno())
    drive.cut()
    assert (drive.place / "a" / "kept").read_bytes() == b"content"
    lost = drive.place / "a" / "lost"
    assert not lost.exists() or lost.read_bytes() != b"content"


TOLD = (
    "nobody prepared it",
    "lost: ",
    "is not in doubt",
    "is in doubt again",
    "comes twice",
    "from nowhere",
    "out twice",
    "part of branch",
)
"""What the judge says of a loss: which it finds first is chance."""


def test_without_syncs_a_cut_loses_what_was_acknowledged(drive: Disk) -> None:
    """The judge would notice."""
    lives = Lives(drive, seeded(), "NONE", small_journal=False)

    def live_and_judge() -> None:
        lives.live("", 0.5)
        lives.judge()

    with pytest.raises(AssertionError, match="and no damage|" + "|".join(TOLD)):
        live_and_judge()
    assert lives.ledger.heard["acked"] > 0


@pytest.mark.parametrize("sync", [*DURABLE, MIXED] if FULL else [MIXED])
def test_power_cuts_at_random_moments_lose_and_double_nothing(drive: Disk, sync: str) -> None:
    seed = seeded()
    dice = random.Random(f"{seed}/{drive.kind}/{sync}")
    lives = Lives(drive, seed, sync, small_journal=dice.random() < 0.7)
    for _ in range(CUTS):
        fault = fault_of(dice)
        delay_s = LONGEST_LIFE_S if fault else dice.uniform(0.0, 0.6)
        lives.live(fault, delay_s)
    lives.judge()
    assert lives.ledger.heard["acked"] > CUTS


def test_power_cuts_amid_many_lose_and_double_nothing(drive: Disk, tmp_path: Path) -> None:
    """Blocks of messages, some of them taken, given back or acknowledged, and snapshots amid it, as in
    test_kill_many."""
    seed, looked_at, ledger = seeded(), 0, WatchingLedger()
    dice = random.Random(f"{seed}/{drive.kind}/many")
    lives = Lives(drive, seed, MIXED, small_journal=False, ledger=ledger)
    lives.child = SUPPORT / "many_child.py"
    definitions_file.write_definitions(lives.space, DEFINED + SMALL_JOURNAL * (dice.random() < 0.7))
    os.sync()
    for number in range(CUTS_AMID_MANY):
        is_quiet = number % 3 == 2  # long enough for a snapshot
        fault = "" if is_quiet else fault_of(dice)
        lives.live(fault, LONGEST_LIFE_S if fault else dice.uniform(0.4 if is_quiet else 0.0, 0.9))
        faults = ledger.judge_newest(lives.space, tmp_path / "restored", times=lives.times)
        assert not faults
        looked_at += faults is not None
    lives.judge()
    sys.stdout.write(f"{looked_at} snapshots\n")
    assert ledger.heard["acked"] > CUTS_AMID_MANY
    assert looked_at


@pytest.mark.parametrize("sync", DURABLE)
def test_a_power_cut_at_each_sync_of_a_step(drive: Disk, sync: str) -> None:
    """One thread, so that the calls come in the same order: the same sync is met before and after."""
    seed = seeded()
    lives = Lives(drive, seed, sync, small_journal=True)
    numbers = range(1, EACH_SYNC) if FULL else sorted(random.Random(seed).sample(range(1, EACH_SYNC), 2))
    stopped = 0
    for number in numbers:
        for when in ("before", "after"):
            stopped += lives.live(f"sync:{number}:{when}", LONGEST_LIFE_S, threads=1)
    lives.judge()
    assert stopped >= len(numbers)
