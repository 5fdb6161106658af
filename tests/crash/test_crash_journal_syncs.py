"""Every sync of a space with a journal is there for a crash, as ``test_crash_syncs`` shows for one without.

On a full disk a round makes room by a checkpoint of its own (``JournalLog._relieve_journal``), in no crash test here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from support.careless_log import careless
from support.crash_cases import EXTREMES, FULL, JOURNALS, ONE_BRANCH, STORIES, sample, trees_of
from support.crash_jury import Jury
from support.crash_level import CHECKPOINTS, CYCLING, FILLING, JOURNAL, LAGGING, MOVING, SWITCHING, Level, open_space
from support.crash_story import ALL, Sample, crashes
from support.crash_ways import (
    committed_at_once,
    judge_later,
    kill_then_power_loss,
    next_owner,
    power_loss,
    recovery_cut_off,
)
from support.journal_story import judge_every_crash, judge_two_openings
from xaqueue.errors import JournalDamaged
from xaqueue.features.session import Session

pytestmark = pytest.mark.usefixtures("quiet")

Way = Callable[[str, Level], None]
Sampled = Callable[[str, Level, Sample, set[object]], None]


def opened_again(name: str, level: Level, calls: Sample = ALL, judged: set[object] | None = None) -> None:
    """The power goes at any call, the next owner recovers, and the power goes."""
    jury = Jury(STORIES[name], level, judged)
    for fs, record in crashes(STORIES[name], level, calls):
        for tree in trees_of(fs, level, EXTREMES):
            if jury.is_new(tree, record, "opened again"):
                judge_later(jury, tree.open(), record)


def writer(name: str, level: Level) -> None:
    """The journal alone, with many more rounds and segments than a story has."""
    judge_every_crash(0)


def two_openings(name: str, level: Level) -> None:
    """The journal alone, begun anew behind a kill of who began it anew."""
    judge_two_openings(60)


LONG = "put decided_commit, take forgotten_rollback, take two_phase"

NOTICED: dict[str, tuple[Way, Level, str]] = {
    "write: content segment": (power_loss, LAGGING, "put: one_phase"),
    "write_checkpoint: content segment": (writer, JOURNAL, ""),
    "_make_room: content segment": (power_loss, SWITCHING, "put one_phase, take two_phase"),
    "make_segment: content new segment": (power_loss, FILLING, LONG),
    "make_segment: names journal": (power_loss, FILLING, LONG),
    "_recycled: content segment": (writer, JOURNAL, ""),
    "_recycled: names journal": (writer, JOURNAL, ""),
    "harden: content segment": (recovery_cut_off, LAGGING, "puts in new queues: one_phase"),
    "harden: names journal": (two_openings, JOURNAL, ""),
    "open_journal: all root": (recovery_cut_off, LAGGING, "put: one_phase"),
    "checkpoint: all root": (power_loss, CHECKPOINTS, "put: one_phase"),
    "prepare: all root": (power_loss, MOVING, "put: prepared"),
    "harden_unprepared: all root": (power_loss, MOVING, "put: one_phase"),
    "_sync_directories: all root": (committed_at_once, JOURNAL, "put: prepared"),
}
"""For each kind the way, the level and the story by which its loss is noticed."""

NO_CRASH = "for damaged files: no crash leaves one"
COVERED = "the sync of everything that follows covers it; its own tells of a lost write-back"
SYNCED = "what was replayed is synced as a whole before, and what is older by the checkpoint behind it"

REDUNDANT = {
    "start: names root": "recovery syncs the root before anybody is answered",
    "_archive: content archive": "a torn tail is kept for people: nothing reads it",
    "_archive: names journal": "a torn tail is kept for people: nothing reads it",
    "_archive: content segment": "the next record's sync covers it; until then a tail that is back is cut off again",
    "_begin_anew: names journal": "a gap between old segments would only have one of them kept as .archive",
    "_publish: all root": SYNCED,
    "_publish: content watermark": SYNCED,
    "_harden: content block": COVERED,
    "_harden: content first block": COVERED,
    "resolve_damage: all root": NO_CRASH,
    "_tell: content operators.log": COVERED,
}
"""Kinds whose loss no crash test notices, and why they are kept. ``xaqueue-operating.7`` says it too."""

ELSEWHERE = {"_tell: all root": "test_operators"}
"""Kinds that another module has in its tables."""

WAYS: tuple[Sampled, ...] = (power_loss, kill_then_power_loss, opened_again, *((next_owner,) if FULL else ()))
SAMPLE = ["first: decided_commit", "put and take: one_phase", "put and take: decided_commit"]
KINDS = ONE_BRANCH if FULL else [name for name in ONE_BRANCH if name.startswith(("first in", "take at", "several"))]


def test_every_kind_of_sync_is_in_one_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    with careless(monkeypatch) as care:
        for level in JOURNALS if FULL else (LAGGING, MOVING, CYCLING):
            for name in KINDS:
                for fs, _ in crashes(STORIES[name], level):
                    fs.survive_kill()
                    Session(open_space(fs, level)).close()
        opened_again("several: two_phase", LAGGING)
    assert care.asked == NOTICED.keys() | REDUNDANT.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("kind", NOTICED)
def test_a_sync_left_out_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is seen, or by a journal or a directory with which nobody can go on."""
    way, level, story = NOTICED[kind]
    way(story, level)
    with careless(monkeypatch, kind), pytest.raises((AssertionError, JournalDamaged, FileExistsError)):
        way(story, level)


@pytest.mark.parametrize("level", JOURNALS if FULL else [LAGGING, MOVING], ids=str)
@pytest.mark.parametrize("kind", REDUNDANT)
def test_a_redundant_sync_left_out_is_not_noticed(kind: str, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this fails, the sync is needed after all: move it to the other table."""
    turn, judged = list(REDUNDANT).index(kind), set[object]()
    for name, way in itertools.product(STORIES if FULL else SAMPLE, WAYS):
        with careless(monkeypatch, kind):
            way(name, level, sample(8, name, level, turn), judged)
