"""Chores are done when they are due, one after the other in a thread; who finds much to do lets others go first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.bare_space import BareSpace, bare_space
from support.patience import eventually
from xaqueue.core.engine.state import Space
from xaqueue.core.owner import chores as room
from xaqueue.core.owner.chores import NEVER, Chore, Chores, begin
from xaqueue.errors import ResourceFailed

PATIENCE_S = 30.0


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Space]:
    with bare_space(tmp_path / "space") as bare:
        yield bare.space


class Told(Chore):
    """Due when it is told so, and never by itself."""

    def __init__(self, space: Space, does: Callable[[Chores], float] = lambda _: 0.0) -> None:
        super().__init__(space)
        self.is_due = False
        self.does = does
        self.runs = list[str]()
        self.ran = threading.Event()

    def tell(self) -> None:
        self.is_due = True
        self.wake()

    def left_s(self) -> float:
        return 0.0 if self.is_due else NEVER

    def run(self, turn: Chores) -> float:
        self.is_due = False
        self.runs.append(threading.current_thread().name)
        try:
            return self.does(turn)
        finally:
            self.ran.set()


class Other(Told):
    thread = "other"


def test_a_thread_begins_with_the_first_that_is_due(space: Space) -> None:
    chore = Told(space)
    chores = Chores(space, [chore])
    assert not any(one.name == "xaqueue-chores" for one in threading.enumerate())
    chore.tell()
    assert chore.ran.wait(PATIENCE_S)
    chores.stop()
    assert chore.runs == ["xaqueue-chores"]
    chore.tell()
    assert not any(one.name == "xaqueue-chores" for one in threading.enumerate()), "it begins none behind its stop"


def test_those_of_one_name_share_a_thread_and_others_do_not_wait_for_it(space: Space) -> None:
    goes_on = threading.Event()

    def hang(_: Chores) -> float:
        goes_on.wait(PATIENCE_S)
        return 0.0

    first, second, other = Told(space, hang), Told(space), Other(space)
    threads = begin(space, [first, other, second])
    assert len(threads) == 2
    first.tell()
    eventually(lambda: first.runs)
    second.tell()
    other.tell()
    assert other.ran.wait(PATIENCE_S)
    assert (second.runs, other.runs) == ([], ["xaqueue-other"])
    goes_on.set()
    assert second.ran.wait(PATIENCE_S)
    for thread in threads:
        thread.stop()
    assert second.runs == ["xaqueue-chores"]


@pytest.mark.parametrize("slice_s", [0.0, PATIENCE_S])
def test_who_has_much_to_do_is_broken_off_for_another_one(
    space: Space, monkeypatch: pytest.MonkeyPatch, slice_s: float
) -> None:
    """But not before it had its slice, or it would never come to an end where others are always due."""
    monkeypatch.setattr(room, "SLICE_S", slice_s)
    looks = list[bool]()

    def clear(turn: Chores) -> float:
        looks.append(turn.is_over())
        other.is_due = True
        looks.append(turn.is_over())
        return 0.0

    long, other = Told(space, clear), Told(space)
    chores = Chores(space, [other, long])
    long.tell()
    assert other.ran.wait(PATIENCE_S)
    chores.stop()
    assert looks == [False, slice_s == 0.0]


def test_what_is_held_is_not_run_again_whatever_is_due(space: Space) -> None:
    held, other = Told(space, lambda _: PATIENCE_S), Told(space)
    chores = Chores(space, [held, other])
    held.tell()
    assert held.ran.wait(PATIENCE_S)
    held.tell()
    other.tell()
    assert other.ran.wait(PATIENCE_S)
    chores.stop()
    assert (len(held.runs), held.is_due) == (1, True)


def test_a_stop_ends_a_rest_and_tells_each(space: Space) -> None:
    resting, ended = threading.Event(), list[bool]()

    def read(turn: Chores) -> float:
        turn.began -= PATIENCE_S
        resting.set()
        ended.append(turn.rest())
        return 0.0

    class Last(Told):
        def finish(self) -> None:
            ended.append(bool(self.runs))

    chore = Last(space, read)
    chores = Chores(space, [chore])
    chore.tell()
    assert resting.wait(PATIENCE_S)
    chores.stop()
    assert ended == [True, True]


def test_in_a_space_that_failed_nothing_is_run(space: Space) -> None:
    def fail(_: Chores) -> float:
        raise ResourceFailed("the space is fenced")

    failing, other = Told(space, fail), Told(space)
    chores = Chores(space, [failing, other])
    failing.tell()
    assert failing.ran.wait(PATIENCE_S)
    other.tell()
    chores.stop()
    assert other.runs == []


def test_a_fault_ends_one_and_is_told(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[BaseException | None]()
    monkeypatch.setattr(threading, "excepthook", lambda what: told.append(what.exc_value))
    fault = KeyError("a fault")

    def fail(_: Chores) -> float:
        raise fault

    failing, other = Told(space, fail), Told(space)
    chores = Chores(space, [failing, other])
    failing.tell()
    assert failing.ran.wait(PATIENCE_S)
    failing.tell()
    other.tell()
    assert other.ran.wait(PATIENCE_S)
    chores.stop()
    assert (told, len(failing.runs)) == ([fault], 1)


def test_a_thread_ends_with_a_space_that_is_given_up(tmp_path: Path) -> None:
    """As a killed process leaves it: nobody stops it there."""

    class Always(Told):
        def left_s(self) -> float:
            return 0.0

    with bare_space(tmp_path / "space") as bare:
        chores = chores_of(bare, Always)
        bare.space.closed = True
        eventually(lambda: not any(one.name == "xaqueue-chores" for one in threading.enumerate()))
        bare.space.closed = False
        chores.stop()


def chores_of(bare: BareSpace, kind: type[Told]) -> Chores:
    chore = kind(bare.space)
    made = Chores(bare.space, [chore])
    assert chore.ran.wait(PATIENCE_S)
    return made
