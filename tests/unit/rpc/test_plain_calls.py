"""A session's plain calls, without its socket and the loop: when what is told of a step leads it, or answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgpack
import pytest

from support.bare_space import BareSpace, bare_space
from xaqueue.core.model.definitions import parse
from xaqueue.core.storage.group_commit import Step
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import ResourceFailed
from xaqueue.features.session import Session
from xaqueue.rpc.server.calls import PlainCalls
from xaqueue.rpc.server.peer import Caller
from xaqueue.rpc.server.scheduler import Awaiting, Scheduler


class Calls(PlainCalls):
    def __init__(self, scheduler: Scheduler, bare: BareSpace) -> None:
        super().__init__(scheduler, bare.space)
        self.session = Session(bare.space)
        self.caller = cast(Caller, SimpleNamespace(identity=SimpleNamespace(owner=True)))
        self.told: list[Any] = []

    def answered(self, frame: bytes) -> None:
        self.told.append(msgpack.unpackb(frame))

    def carry_out(self, number: int, call: Callable[[], Any]) -> None:
        self.told.append((number, call))


class Gathers:
    """In place of the scheduler: steps gather behind one that is being synced."""

    pack = staticmethod(msgpack.packb)

    def __init__(self) -> None:
        self.led: list[Step] = []

    def gather(self, one: Awaiting) -> None:
        one.step.waiter = one
        one.log.gather(one.step)

    def lead(self, one: Awaiting) -> None:
        one.step.waiter = None
        self.led.append(one.step)

    def tell(self, one: Awaiting) -> None:
        one.go_on()


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path, "JOURNAL", definitions=parse("[queues.orders]\n")) as space:
        space.put("orders", b"first")
        space.space.log.gather(Step())  # it leads, and those that come now wait for it
        yield space


def begun(bare: BareSpace) -> tuple[Calls, Gathers]:
    gathers = Gathers()
    calls = Calls(cast(Scheduler, gathers), bare)
    work = [[7, b"x", b""], True, [["orders", b"body", fresh_id()]], "prepare"]
    assert calls.begin_plain((0, 5, "work", work))
    return calls, gathers


def test_it_leads_once_and_answers_once_however_often_it_is_told(bare: BareSpace) -> None:
    calls, gathers = begun(bare)
    step = calls.step
    calls.go_on()  # of the step before
    assert (gathers.led, calls.told) == ([], [])
    step.round = [step]
    calls.go_on()
    calls.go_on()
    assert (gathers.led, calls.told) == ([step], [])
    bare.space.log.run_rounds(step)
    calls.go_on()
    calls.go_on()
    assert (gathers.led, calls.told) == ([step], [[1, 5, None, "ok"]])


def test_what_fails_is_carried_out_by_the_greenlet_once(bare: BareSpace) -> None:
    calls, gathers = begun(bare)
    bare.space.log.fail(OSError("the disk is gone"))
    calls.go_on()
    calls.go_on()
    ((number, call),) = calls.told
    assert (number, gathers.led) == (5, [])
    with pytest.raises(ResourceFailed, match="fenced"):
        call()


def test_what_is_no_work_is_not_begun(bare: BareSpace) -> None:
    calls, _ = begun(bare)
    assert not calls.begin_plain((0, 6, "work", [[7, b"y", b""], True, [["orders", b"", b"short"]], "prepare"]))
    assert not calls.begin_plain((0, 6, "commit", [[7, b"y", b""], 0]))
    assert calls.told == []
