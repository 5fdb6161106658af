"""No power loss makes an index image lie: before the clean close has ended, after it, and when its successor works."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import pytest

from support.crash_level import LAGGING, NONE, STRICT, Level, level_of, ready
from support.crash_story import EMPTY
from support.index_images import opened, put_in, seen, take_from
from xaqueue.errors import ResourceFailed
from xaqueue.space.engine import image
from xaqueue.space.engine.session import Session
from xaqueue.space.model import layout
from xaqueue.tools.torture.forgetful import Crashed, ForgetfulFileSystem, Tree


@pytest.fixture(autouse=True)
def every_queue_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "WORTH", 1)


def worked(level: Level) -> tuple[ForgetfulFileSystem, int]:
    """Opened, closed cleanly, opened again, at work, and how many calls were made until the close had returned."""
    fs = ready(EMPTY, level).open()
    owner = opened(fs, 2, level)
    put_in(Session(owner), 1, 2, 3)
    owner.close()
    closed = fs.calls
    session = Session(opened(fs, 3, level))
    take_from(session, commit=True)
    put_in(session, 4)
    take_from(session, commit=False)
    return fs, closed


def cut_off(level: Level, calls: int) -> ForgetfulFileSystem:
    """The same, until the power goes after so many calls."""
    fs = ready(EMPTY, level).open(calls)
    with suppress(Crashed, ResourceFailed):
        owner = opened(fs, 2, level)
        put_in(Session(owner), 1, 2, 3)
        owner.close()
    return fs


every_level = pytest.mark.parametrize("level", [NONE, level_of("FDATASYNC"), STRICT, LAGGING], ids=str)


def without_image(tree: Tree) -> Tree:
    return Tree({name: content for name, content in tree.nodes.items() if name != layout.image_path("q")})


@every_level
def test_no_power_loss_after_a_clean_close_makes_an_image_lie(level: Level) -> None:
    """Nor one before its end, from where the image begins to be written."""
    _, closed = worked(level)
    found = 0
    for calls in range(closed - 6, closed + 1):
        for tree in cut_off(level, calls).trees_after_crash():
            found += bool(tree.nodes.get(layout.image_path("q")))
            assert seen(tree, 3, level) == seen(without_image(tree), 3, level)
    assert found


@every_level
def test_an_image_that_a_power_loss_brings_back_changes_nothing(level: Level) -> None:
    """It was removed by an owner who worked after it."""
    fs, _ = worked(level)
    found = 0
    for tree in fs.trees_after_crash():
        found += bool(tree.nodes.get(layout.image_path("q")))
        assert seen(tree, 4, level) == seen(without_image(tree), 4, level)
    assert found or level is STRICT or level is LAGGING


def test_an_opening_that_is_killed_leaves_the_image_or_nothing_of_it() -> None:
    fs = EMPTY.open()
    owner = opened(fs, 2, STRICT)
    put_in(Session(owner), 1, 2, 3)
    owner.close()
    start = fs.tree_after_kill()
    for calls in count():
        again = start.open(calls)
        with suppress(Crashed, ResourceFailed):
            opened(again, 3, STRICT)
        assert [one[0] for one in seen(again.tree_after_kill(), 4, STRICT)[0]] == [1, 2, 3]
        if not again.crashed:
            break
