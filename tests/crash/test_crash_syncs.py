"""Every sync is there for a crash: left out in turn, a crash test notices, or the table says why it is kept.

This is for levels without a journal; ``test_crash_journal_syncs`` has those with one. A kind of sync is named by the
step that asks for it and by what it is for (``careless_log``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from support.careless_log import careless
from support.crash_cases import FULL, LIVES, ONE_BRANCH, STORIES, sample
from support.crash_level import NONE, STRICT, open_space
from support.crash_story import crashes, play
from support.crash_ways import kill_then_power_loss, next_owner, power_loss, raised_level, recovery_cut_off
from xaqueue.core.model import layout
from xaqueue.features.session import Session

pytestmark = pytest.mark.usefixtures("quiet")


def numbers_go_on(name: str) -> None:
    """Whatever a crash leaves of the messages, it leaves the number of the last one that a queue gave out."""
    fs, _ = play(STORIES[name], STRICT)
    for tree in fs.trees_after_crash():
        assert layout.watermark_path("a") in tree.nodes


NOTICED: dict[str, tuple[Callable[[str], None], str]] = {
    "prepare: content block": (power_loss, "put: prepared"),
    "prepare: content first block": (power_loss, "puts in new queues: prepared"),
    "prepare: target prepared": (power_loss, "put: prepared"),
    "harden_unprepared: content block": (power_loss, "put: one_phase"),
    "harden_unprepared: content first block": (next_owner, "puts in new queues: one_phase"),
    "harden_unprepared: names active": (power_loss, "puts in new queues: one_phase"),
    "stage: names prepared": (power_loss, "id again: taken two_phase"),
    "add_branch_block: names prepared": (power_loss, "lives: list, list, undone, two_phase"),
    "commit's point: target prepared": (power_loss, "puts in new queues: two_phase"),
    "commit's point: target committed": (power_loss, "puts in new queues: two_phase"),
    "commit's point: target queue": (power_loss, "puts in new queues: two_phase"),
    "commit's point: content watermark": (power_loss, "lists: put two_phase, take one_phase"),
    "commit: target committed": (power_loss, "first: two_phase"),
    "commit: target queue": (power_loss, "first: two_phase"),
    "commit: target range": (power_loss, "put: two_phase"),
    "commit: content watermark": (power_loss, "put two_phase, take two_phase"),
    "commit: source range": (power_loss, "take: two_phase"),
    "commit: source prepared": (power_loss, "put two_phase, take one_phase"),
    "one_phase's point: target prepared": (power_loss, "puts in new queues: one_phase"),
    "one_phase's point: target committed": (power_loss, "puts in new queues: one_phase"),
    "one_phase's point: target queue": (power_loss, "puts in new queues: one_phase"),
    "one_phase's point: content watermark": (power_loss, "lists: put one_phase, take two_phase"),
    "one_phase: target committed": (power_loss, "first: one_phase"),
    "one_phase: target queue": (power_loss, "first: one_phase"),
    "one_phase: target range": (power_loss, "put: one_phase"),
    "one_phase: content watermark": (power_loss, "put one_phase, take one_phase"),
    "one_phase: source range": (power_loss, "take: one_phase"),
    "rollback: source prepared": (power_loss, "put: undone"),
    "records_of: content try": (power_loss, "take: undone"),
    "_record: content decision": (power_loss, "put: decided_commit"),
    "decision: target heuristic": (power_loss, "put: decided_commit"),
    "forget: source heuristic": (power_loss, "put: forgotten_commit"),
    "_sync_directories: names prepared": (kill_then_power_loss, "put: prepared"),
    "_sync_directories: names heuristic": (kill_then_power_loss, "put: decided_commit"),
    "_sync_directories: names committed": (kill_then_power_loss, "first: one_phase"),
    "_sync_directories: names queue": (recovery_cut_off, "first: two_phase"),
    "_sync_directories: names range": (kill_then_power_loss, "put: one_phase"),
    "_sync_directories: names root": (power_loss, "first in a bare directory: one_phase"),
    "_publish: content watermark": (next_owner, "put: one_phase"),
    "_publish: names queue": (numbers_go_on, "watermark lost: takes one_phase"),
    "rewrite: content block": (kill_then_power_loss, "put: prepared"),
    "_harden: content block": (raised_level, "puts in new queues: prepared"),
    "_harden: content first block": (raised_level, "put: prepared"),
}
"""For each kind the way and the story by which its loss is noticed."""

PRESUMED = "a block that is back in active/ is rolled back at start, whatever became of its branch"
COUNTED = "a try that is lost with the power is not counted, and its message is safe"

REDUNDANT = {
    "prepare: source active": f"the flag promises both directories of every move; {PRESUMED}",
    "one_phase's point: source active": f"the flag promises both directories of every move; {PRESUMED}",
    "one_phase: source active": f"the flag promises both directories of every move; {PRESUMED}",
    "commit: source active": f"the flag promises both directories of every move; {PRESUMED}",
    "rollback: target tries": f"the flag promises both directories of every move; {COUNTED}",
    "records_of: names queue": f"the flag promises the directory of every file; {COUNTED}",
    "_sync_directories: names active": f"a try that recovery counted is not counted again; {PRESUMED}",
    "_sync_directories: names carriers": "notes are written at level JOURNAL, where all is synced at once",
    "_sync_directories: names quarantine": "for damaged files: no crash leaves one",
    "resolve_damage: names quarantine": "for damaged files: no crash leaves one",
    "_write_final_watermarks: content watermark": "numbers go on without a gap; with one they would be right as well",
}
"""Kinds whose loss no crash test notices, and why they are kept. ``xaqueue-operating.7`` says it too."""

ELSEWHERE = {
    "_tell: content operators.log": "test_operators",
    "_tell: names root": "test_operators",
    "_sync_directories: names batches": "sim.mutants",
    "_sync_directories: names streams": "test_crash_streams",
}
"""Kinds that another module has in its tables."""

SAMPLE = [
    f"put and take: {end}" for end in ("rollback", "prepared", "one_phase", "two_phase", "undone", "decided_commit")
]
SAMPLE += ["first: one_phase", "take at the edge: two_phase", "put one_phase, take two_phase"]
SAMPLE += ["put two_phase, take one_phase"]


def test_every_kind_of_sync_is_in_one_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    with careless(monkeypatch) as care:
        for name in ONE_BRANCH:
            for fs, _ in crashes(STORIES[name], STRICT):
                fs.survive_kill()
                Session(open_space(fs, STRICT)).close()
        for name in LIVES:
            play(STORIES[name], STRICT)
        for name in ONE_BRANCH:
            fs, _ = play(STORIES[name], NONE)
            Session(open_space(fs, STRICT, closed_well=True)).close()
    assert care.asked == NOTICED.keys() | REDUNDANT.keys() | ELSEWHERE.keys()


@cache
def assert_kept(way: Callable[[str], None], story: str) -> None:
    way(story)


@pytest.mark.xdist_group("syncs")
@pytest.mark.parametrize("kind", NOTICED)
def test_a_sync_left_out_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    way, story = NOTICED[kind]
    assert_kept(way, story)
    with careless(monkeypatch, kind), pytest.raises(AssertionError):
        way(story)


@pytest.mark.parametrize("kind", REDUNDANT)
def test_a_redundant_sync_left_out_is_not_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this fails, the sync is needed after all: move it to the other table."""
    judged = set[object]()
    for name in STORIES if FULL else SAMPLE:
        calls = sample(8, name, STRICT, list(REDUNDANT).index(kind))
        with careless(monkeypatch, kind) as care:
            kill_then_power_loss(name, STRICT, calls, judged)
            if kind not in care.asked:
                continue
            power_loss(name, STRICT, calls, judged)
            next_owner(name, STRICT, calls, judged)
            if name.endswith(": prepared"):
                raised_level(name)
