"""What a stream has consumed never comes back, and nothing else is lost, wherever a crash cuts its verbs off."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

import pytest

from support.careless_log import careless
from support.crash_cases import EXTREMES, FULL, KILL, POWER_LOSS, TREES, trees_of
from support.crash_level import CHECKPOINTS, CYCLING, JOURNAL, LAGGING, MOVING, NONE, STRICT, Level, open_space
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from support.stream_story import BEFORE, FIVE, FOUR, NEVER_KEPT, ONE, THREE, TWO, Acts, Promised, crashes, judge, play
from xaqueue.errors import ResourceFailed
from xaqueue.features.streams import cleanup

pytestmark = pytest.mark.usefixtures("quiet")


STORIES: dict[str, tuple[Acts, int]] = {
    "consume": ([("reserve", (TWO,)), ("consume", (TWO,)), ("clear", ())], NEVER_KEPT),
    "all, put before it is cleared": (
        [("put", (4,)), ("reserve", (FOUR,)), ("consume", (FOUR,)), ("put", (5,)), ("clear", ())],
        NEVER_KEPT,
    ),
    "again and again": (
        [
            *(("reserve", (THREE,)), ("consume", (ONE,)), ("consume", (THREE,)), ("clear", ())),
            *(("put", (4,)), ("put", (5,)), ("reserve", (FIVE,)), ("consume", (FOUR,)), ("clear", ())),
            *(("consume", (FIVE,)), ("clear", ())),
        ],
        NEVER_KEPT,
    ),
    "archive": (
        [
            *(("reserve", (FOUR,)), ("consume", (TWO, True)), ("put", (4,)), ("clear", ())),
            *(("consume", (FOUR, True)), ("clear", ())),
        ],
        BEFORE,
    ),
    "archive, put behind it": (
        [("put", (4,)), ("reserve", (FOUR,)), ("consume", (FOUR, True)), ("clear", ()), ("put", (5,))],
        BEFORE,
    ),
    "archive from the second on": (
        [("reserve", (THREE,)), ("consume", (ONE,)), ("consume", (THREE, True)), ("clear", ())],
        ONE,
    ),
    "release": (
        [("put", (4,)), ("reserve", (THREE,)), ("consume", (THREE,)), ("release", ()), ("take", ()), ("put", (5,))],
        NEVER_KEPT,
    ),
    "release, archived": (
        [("put", (4,)), ("reserve", (THREE,)), ("consume", (TWO, True)), ("release", ()), ("take", ())],
        BEFORE,
    ),
}


if FULL:
    POWER, KILLED = POWER_LOSS, KILL
else:
    POWER, KILLED = [STRICT, JOURNAL, LAGGING, MOVING, CHECKPOINTS], [STRICT, NONE, LAGGING, CYCLING]
EVERY = 1 if FULL else 3


def cut_off(name: str, level: Level) -> Iterator[tuple[ForgetfulFileSystem, Promised]]:
    """Before one call in so many, by turns, unless in full size."""
    acts, kept_above = STORIES[name]
    turn = list(STORIES).index(name) + KILL.index(level)
    for fs, promised in crashes(acts, level, EVERY, turn):
        promised.kept_above = kept_above
        yield fs, promised


def judge_each(trees: Iterable[Tree], promised: Promised, level: Level, judged: set[object]) -> None:
    for tree in trees:
        key = tree.key(), repr(promised)
        if key not in judged:
            judged.add(key)
            judge(tree, promised, level)


@pytest.mark.parametrize("level", POWER, ids=str)
@pytest.mark.parametrize("name", STORIES)
def test_power_loss(name: str, level: Level) -> None:
    judged: set[object] = set()
    for fs, promised in cut_off(name, level):
        judge_each(trees_of(fs, level, TREES if FULL else EXTREMES), promised, level, judged)


@pytest.mark.parametrize("level", KILLED, ids=str)
@pytest.mark.parametrize("name", STORIES)
def test_a_killed_process(name: str, level: Level) -> None:
    for fs, promised in cut_off(name, level):
        judge(fs.tree_after_kill(), promised, level)


@pytest.mark.parametrize("level", POWER, ids=str)
@pytest.mark.parametrize("name", STORIES)
def test_the_next_owner_is_cut_off_too(name: str, level: Level) -> None:
    """The process is killed, and the power goes while the next one recovers and clears, or behind that."""
    judged: set[object] = set()
    for number, (fs, promised) in enumerate(cut_off(name, level)):
        cut_off_next(fs, level, number * 7 % 40)
        judge_each(trees_of(fs, level, EXTREMES, draw=2), promised, level, judged)


def cut_off_next(fs: ForgetfulFileSystem, level: Level, calls: int | None, *, closed_well: bool = False) -> None:
    """The next owner sees what the killed one did, and what that has not synced is not on disk yet."""
    fs.survive_kill(None if calls is None else fs.calls + calls)
    try:
        cleanup.clear(open_space(fs, level, closed_well=closed_well))
    except (Crashed, ResourceFailed):
        assert fs.crashed


def power_loss(name: str, level: Level) -> None:
    for fs, promised in crashes(STORIES[name][0], level):
        promised.kept_above = STORIES[name][1]
        judge_each(trees_of(fs, level, EXTREMES), promised, level, set())


def kill_then_power_loss(name: str, level: Level) -> None:
    for fs, promised in crashes(STORIES[name][0], level):
        promised.kept_above = STORIES[name][1]
        cut_off_next(fs, level, None)
        judge_each(trees_of(fs, level, EXTREMES), promised, level, set())


def raised_level(name: str, level: Level) -> None:
    """The next owner has a higher level than the one that consumed."""
    fs, promised = play(STORIES[name][0][:-1], NONE)
    promised.kept_above = STORIES[name][1]
    cut_off_next(fs, level, None, closed_well=True)
    judge_each(trees_of(fs, level, EXTREMES), promised, level, set())


NOTICED: dict[str, tuple[Callable[[str, Level], None], Level, str]] = {
    "_write: content stream record": (power_loss, STRICT, "consume"),
    "stream: target streams": (power_loss, STRICT, "consume"),
    "_harden: content stream record": (raised_level, STRICT, "consume"),
    "_sync_directories: names streams": (kill_then_power_loss, STRICT, "consume"),
    "_archive: names queue": (power_loss, STRICT, "archive, put behind it"),
    "_archive: names archive": (power_loss, STRICT, "archive, put behind it"),
    "_archive: names root": (power_loss, STRICT, "archive, put behind it"),
    "stream: target range": (power_loss, STRICT, "archive, put behind it"),
    "_harden_archive: all root": (power_loss, CHECKPOINTS, "archive"),
}
"""For each kind of sync that streams have, the way, the level and the story by which its loss is noticed."""

REDUNDANT = {
    "stream: source range": "so that a round in which others add to the range syncs it behind the archive",
    "_harden_cleared: all root": "the record says what is consumed after it is released, too, and with a journal the "
    "checkpoint behind it syncs all; it tells of a lack of room",
}
"""Kinds whose loss no crash test notices, and why they are kept."""


@pytest.mark.parametrize("kind", NOTICED)
def test_a_sync_left_out_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    way, level, story = NOTICED[kind]
    if FULL:
        way(story, level)
    with careless(monkeypatch, kind) as care, pytest.raises(AssertionError):
        way(story, level)
    assert kind in care.asked


def test_every_kind_of_sync_of_streams_is_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    with careless(monkeypatch) as care:
        for name, closed_well in itertools.product(STORIES, (False, True)):
            fs, _ = play(STORIES[name][0], STRICT)
            cut_off_next(fs, STRICT, None, closed_well=closed_well)
        play(STORIES["archive"][0], CHECKPOINTS)
    by = ("_write:", "_archive:", "_harden_archive:", "_harden_cleared:")
    own = {kind for kind in care.asked if "stream" in kind or kind.startswith(by)}
    assert own == NOTICED.keys() | REDUNDANT.keys()


@pytest.mark.parametrize("level", [STRICT, LAGGING], ids=str)
@pytest.mark.parametrize("kind", REDUNDANT)
def test_a_redundant_sync_left_out_is_not_noticed(kind: str, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    with careless(monkeypatch, kind):
        power_loss("release, archived", level)
