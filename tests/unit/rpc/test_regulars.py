"""For whom a round waits in a server, where a sync takes milliseconds: those of the last two, and not for long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest

from support.log_owner import LogOwner
from xaqueue.core.engine.log import Log
from xaqueue.core.storage.group_commit import GroupCommit, Step
from xaqueue.rpc.server import regulars as rules
from xaqueue.rpc.server import scheduler
from xaqueue.rpc.server.regulars import Regulars
from xaqueue.rpc.server.scheduler import Awaiting, Scheduler

SYNC_S = 0.005


class Loop:
    """Timers go off by themselves only when that is said."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], object]] = []
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def call_soon(self, call: Callable[..., object], *given: Any) -> None:
        self._soon.append(partial(call, *given))

    def call_later(self, delay: float, call: Callable[..., object], *given: Any) -> Any:
        timer = (delay, partial(call, *given))
        self.timers.append(timer)
        return type("Timer", (), {"cancel": lambda _: self.timers.remove(timer)})()

    def turn(self) -> None:
        while self._soon:
            self._soon.pop(0)()

    def time_out(self) -> None:
        self.timers.pop(0)[1]()


class Served:
    """A scheduler over a log whose rounds take so long."""

    def __init__(self, sync_s: float = SYNC_S) -> None:
        self.loop = Loop()
        self.scheduler = Scheduler(cast(asyncio.AbstractEventLoop, self.loop))
        self.sizes: list[int] = []

        self.interrupt: BaseException | None = None

        class Slow(GroupCommit):
            def _harden(_, group: Sequence[Step]) -> None:
                self.sizes.append(len(group))
                if self.interrupt is not None:
                    raise self.interrupt
                self.scheduler.syncs.total_s += sync_s

        self.log = cast(Log, Slow(threading.Lock(), LogOwner(lambda _: None), waiting=self.scheduler))

    def come(self, *clients: Client) -> None:
        for client in clients:
            client.step = Step()
            self.scheduler.gather(client)
        self.loop.turn()

    def client(self) -> Client:
        return Client(self.scheduler, self.log)


class Client(Awaiting):
    def __init__(self, scheduler: Scheduler, log: Log) -> None:
        super().__init__(scheduler, log)
        self.answered = set[Step]()

    @property
    def answers(self) -> int:
        return len(self.answered)

    def go_on(self) -> None:
        assert self.step.done
        self.answered.add(self.step)

    def break_off(self) -> None:
        raise AssertionError


@pytest.fixture
def served() -> Served:
    made = Served()
    made.come(made.client())  # now it is known how long a sync takes
    made.sizes.clear()
    return made


def test_a_round_waits_for_who_was_in_the_last_one_until_the_last_of_them_is_back(served: Served) -> None:
    first, second, other = served.client(), served.client(), served.client()
    served.come(first, second)
    assert served.sizes == [2]
    served.come(first)
    assert [delay for delay, _ in served.loop.timers] == [pytest.approx(rules.SYNC_SHARE * SYNC_S)]
    assert served.sizes == [2]
    served.come(second, other)
    assert served.sizes == [2, 3]
    assert served.loop.timers == []
    assert (first.answers, second.answers, other.answers) == (2, 2, 1)


def test_who_is_in_a_round_that_is_interrupted_is_told_and_so_is_who_comes_later(served: Served) -> None:
    told = list[Client]()

    class Told(Client):
        def go_on(self) -> None:
            told.append(self)

    first, second, later = (Told(served.scheduler, served.log) for _ in range(3))
    served.interrupt = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        served.come(first, second)
    served.loop.turn()
    assert {*told} == {first, second}
    served.come(later)
    assert told[-1] is later


def test_it_begins_without_them_when_that_takes_too_long(served: Served) -> None:
    first, second, third = served.client(), served.client(), served.client()
    served.come(first, second, third)
    served.come(first)
    served.come(third)
    served.loop.time_out()
    served.loop.turn()
    assert served.sizes == [3, 2]
    assert (first.answers, second.answers, third.answers) == (2, 1, 2)


def test_behind_a_short_sync_nobody_is_waited_for() -> None:
    served = Served(scheduler.LONG_SYNC_S / 2)
    first, second = served.client(), served.client()
    served.come(first, second)
    served.come(second)
    served.come(first)
    assert served.sizes == [2, 1, 1]


def clients(count: int) -> list[Client]:
    return [Served().client() for _ in range(count)]


def rounds(regulars: Regulars, *here: Awaiting, waited: bool = False) -> float:
    """The seconds that these would wait for others, and then their round begins."""
    for client in here:
        regulars.here[client] = None
    wait_s = regulars.wait_s(SYNC_S)
    regulars.begin(waited=waited and wait_s > 0)
    return wait_s


def test_two_groups_become_one() -> None:
    """Who was in the last round but one is missed, too, and who was in none of the two is not."""
    regulars, first, second, third = Regulars(), *clients(3)
    assert rounds(regulars, third) == 0
    assert rounds(regulars, first) > 0
    assert rounds(regulars, second) > 0
    assert rounds(regulars, second) > 0
    assert rounds(regulars, second) == 0
    assert rounds(regulars, first, second) == 0


def test_behind_a_wait_to_which_nobody_came_some_rounds_begin_at_once() -> None:
    regulars, first, second = Regulars(), *clients(2)
    rounds(regulars, first, second)
    assert rounds(regulars, first, waited=True) > 0
    for turn in range(rules.ROUNDS_AT_ONCE):
        assert rounds(regulars, (second, first)[turn % 2]) == 0
    assert rounds(regulars, second) > 0


def test_behind_one_to_which_somebody_came_others_are_waited_for_again() -> None:
    regulars, first, second, third = Regulars(), *clients(3)
    rounds(regulars, first, second, third)
    regulars.here[first] = None
    assert regulars.wait_s(SYNC_S) > 0
    regulars.here[second] = None
    regulars.begin(waited=True)
    assert rounds(regulars, first) > 0
