"""No kill and no power loss makes the image of a range lie: it is written, made untrue by a try, and written again."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import pytest

from support.crash_level import LAGGING, NONE, STRICT, Level, ready
from support.crash_story import EMPTY
from support.index_images import opened, put_in, seen, take_from
from xaqueue.errors import ResourceFailed
from xaqueue.space.engine import range_images
from xaqueue.space.engine.session import Session
from xaqueue.space.model import layout
from xaqueue.space.model.layout import RANGE_SIZE, Watermark
from xaqueue.tools.torture.forgetful import Crashed, ForgetfulFileSystem, Tree

IMAGE = layout.range_image_path("q", 0)
BEFORE = layout.format_watermark(Watermark(RANGE_SIZE - 4, RANGE_SIZE - 4))
START = Tree({**EMPTY.nodes, layout.queue_path("q"): None, layout.watermark_path("q"): BEFORE})
TREES = 24
"""Outcomes of a power loss that are looked at, for each call."""


@pytest.fixture(autouse=True)
def every_range_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_images, "WORTH", 1)
    monkeypatch.setattr(range_images, "PAUSE_S", 0.0)


def worked(fs: ForgetfulFileSystem) -> None:
    """Three messages fill a range, and one comes behind it. Then one is tried, one consumed, and one tried again."""
    space = opened(fs, 2, LAGGING)
    session = Session(space)
    put_in(session, 1, 2, 3, 4)
    range_images.checkpoint(space)
    take_from(session, commit=False)
    put_in(session, 5)
    range_images.checkpoint(space)
    take_from(session, commit=True)
    take_from(session, commit=False)
    range_images.checkpoint(space)


def cut_off(calls: int | None) -> ForgetfulFileSystem:
    fs = ready(START, LAGGING).open(calls)
    with suppress(Crashed, ResourceFailed):
        worked(fs)
    return fs


def without_image(tree: Tree) -> Tree:
    return Tree({name: content for name, content in tree.nodes.items() if name != IMAGE})


def first_image() -> int:
    """After so many calls there is one."""
    return next(calls for calls in count() if IMAGE in cut_off(calls).tree_after_kill().nodes)


def tried_again(tree: Tree, level: Level) -> Tree:
    """What the next owner leaves, who is killed when it has counted a try."""
    fs = tree.open()
    with suppress(Crashed, ResourceFailed):
        take_from(Session(opened(fs, 3, level)), commit=False)
    return fs.tree_after_kill()


def test_no_crash_at_any_call_makes_it_lie() -> None:
    found = 0
    for calls in count(first_image() - 1):
        fs = cut_off(calls)
        for tree in (fs.tree_after_kill(), *fs.trees_after_crash(TREES)):
            found += bool(tree.nodes.get(IMAGE))
            assert seen(tree, 3, LAGGING) == seen(without_image(tree), 3, LAGGING)
        if not fs.crashed:
            break
    assert found


def test_no_kill_makes_it_lie_to_the_owner_after_the_next() -> None:
    found = 0
    for calls in count(first_image() - 1):
        fs = cut_off(calls)
        tree = tried_again(fs.tree_after_kill(), LAGGING)
        found += bool(tree.nodes.get(IMAGE))
        assert seen(tree, 4, LAGGING) == seen(without_image(tree), 4, LAGGING)
        if not fs.crashed:
            break
    assert not found, "a try voids it, and the next checkpoint is another owner's"


@pytest.mark.parametrize("level", [NONE, STRICT], ids=str)
def test_no_crash_brings_it_back_behind_an_owner_without_a_journal(level: Level) -> None:
    start = cut_off(first_image()).tree_after_kill()
    found = 0
    for calls in count():
        fs = start.open(calls)
        with suppress(Crashed, ResourceFailed):
            take_from(Session(opened(fs, 3, level)), commit=False)
        for tree in (fs.tree_after_kill(), *fs.trees_after_crash(TREES)):
            found += bool(tree.nodes.get(IMAGE))
            assert seen(tree, 4, LAGGING) == seen(without_image(tree), 4, LAGGING)
        if not fs.crashed:
            break
    assert found
