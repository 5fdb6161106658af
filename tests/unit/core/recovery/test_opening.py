"""While a space loads its messages, what is in doubt in it can be listed and decided, and all other work waits."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Queue

import pytest

from support import broken_journal
from support.bare_space import DURABLE, BareSpace, FaultyFileSystem, bare_space, identity, lay
from xaqueue.core.engine import heuristics
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.layout import RANGE_SIZE, Watermark
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.scheduling import Condition, Threads
from xaqueue.errors import ResourceFailed, UnknownXid
from xaqueue.features.opening import attach, open_space
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.message import Properties
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.xa import Flag, Outcome
from xaqueue.xid import Xid

PATIENCE_S = 60
SCAN = Flag.STARTRSCAN | Flag.ENDRSCAN
RANGES = 3
LAST = 2 * RANGE_SIZE + 1
Verb = Callable[[Session, Xid], object]
DECISIONS: dict[str, Verb] = {
    "commit": Session.commit,
    "rollback": Session.rollback,
    "decide commit": lambda session, xid: heuristics.decide(session.space, xid, True, "test"),
    "decide rollback": lambda session, xid: heuristics.decide(session.space, xid, False, "test"),
}


every_level = pytest.mark.parametrize("sync", ["NONE", DURABLE, "JOURNAL"])


@contextmanager
def filled(root: Path, sync: str = DURABLE) -> Iterator[BareSpace]:
    """Three ranges of messages in queue q: a few, one, and a few."""
    with bare_space(root, sync) as made:
        for seq in (1, 2, 3, RANGE_SIZE, LAST - 1, LAST):
            lay(made, seq, identity(seq), Properties("q"), b"%d" % seq)
        mark = layout.format_watermark(Watermark(LAST, LAST + 10))
        (root / layout.watermark_path("q")).write_bytes(mark)
        made.reopen()
        yield made


def doubtful(bare: BareSpace, *taken: int) -> Xid:
    """A branch in doubt that takes these messages of q, and adds one to q and one to a queue that is new."""
    xid = Xid(1, b"doubtful", b"")
    session = Session(bare.space)
    session.start(xid)
    for seq in taken:
        assert session.dequeue("q", message_id=identity(seq)) is not None
    session.enqueue("q", b"added", message_id=identity(1 << 40))
    session.enqueue("r", b"new", message_id=identity(1 << 41))
    session.end(xid)
    session.prepare(xid)
    return xid


def reopen(bare: BareSpace, clean: bool, at: int = -1, act: Callable[[Space], object] = lambda _: None) -> Space:
    """Opens it again; at this moment, 0 for as soon as the branches are known, then behind each range, something is
    done.
    """
    if clean:
        bare.space.close()
    else:
        bare.crash()
    bare.fs = FaultyFileSystem(bare.root)
    opening: list[Space] = []
    seen = 0

    def moment() -> None:
        nonlocal seen
        if seen == at:
            act(opening[0])
        seen += 1

    def branches(space: Space) -> None:
        opening.append(space)
        moment()

    bare.space = open_space(
        *(bare.fs, bare.definitions),
        hardening=Hardening.parse(bare.sync),
        progress=lambda *_: moment(),
        on_branches=branches,
    )
    assert seen > at
    return bare.space


State = tuple[dict[str, list[tuple[int, int, str]]], dict[str, dict[int, int]], list[Xid]]


def state(bare: BareSpace) -> State:
    """Number, tries and tags of every message, how many each range holds, and what is in doubt."""
    queues = {name: queue for name, queue in bare.space.queues.items() if len(queue.index)}
    contents = {
        name: sorted((one.seq, one.tries, one.tags) for one in queue.index.entries(-1))
        for name, queue in queues.items()
    }
    ranges = {
        name: {number: count for number, count in queue.ranges.items() if count} for name, queue in queues.items()
    }
    return contents, ranges, bare.in_doubt()


def settled(bare: BareSpace) -> None:
    """The directories say the same, to the checker and to the next owner, and readers see it all."""
    before = state(bare)
    for name, contents in before[0].items():
        assert bare.space.queues[name].published >= contents[-1][0]
    cleanup.clear(bare.space)  # what a consumer has emptied goes behind its commit
    bare.space.close()
    assert [finding for finding in check(bare.root, live=False) if finding.severity is not Severity.NOTE] == []
    bare.fs = FaultyFileSystem(bare.root)
    bare.space = bare._open()
    assert not bare.space.report.quarantined
    assert state(bare) == before


@every_level
@pytest.mark.parametrize("clean", [False, True], ids=["killed", "clean"])
@pytest.mark.parametrize("verb", DECISIONS)
def test_a_decision_at_any_moment_of_an_opening_is_as_good_as_one_after_it(
    tmp_path: Path, sync: str, verb: str, clean: bool
) -> None:
    found = []
    for at in range(-1, RANGES + 1):
        with filled(tmp_path / f"{at}", sync) as bare:
            xid = doubtful(bare, 2, RANGE_SIZE, LAST)
            space = reopen(bare, clean, at, partial(decide, xid, verb))
            if at < 0:
                decide(xid, verb, space)
            assert space.outcome(xid) is (Outcome.ROLLED_BACK if "rollback" in verb else Outcome.COMMITTED)
            assert not space.report.quarantined
            bare.put("q", b"after")
            found.append(state(bare))
            settled(bare)
    assert found[1:] == found[:1] * (RANGES + 1)


def decide(xid: Xid, verb: str, space: Space) -> None:
    DECISIONS[verb](Session(space), xid)


@every_level
def test_branches_are_listed_at_once_and_can_be_forgotten(tmp_path: Path, sync: str) -> None:
    with filled(tmp_path / "space", sync) as bare:
        xid = doubtful(bare, 2)
        decided = bare.prepare("decided", take=["q"])
        heuristics.decide(bare.space, decided, True, "test")
        told: list[object] = []

        def ask(space: Space) -> None:
            session = Session(space)
            told.extend((session.recover(10, SCAN), session.outcome(xid), session.outcome(decided)))
            session.forget(decided)
            told.append(session.recover(10, SCAN))
            with pytest.raises(UnknownXid):
                session.rollback(decided)

        space = reopen(bare, False, 0, ask)
        assert told == [[xid, decided], Outcome.IN_DOUBT, Outcome.COMMITTED, [xid]]
        assert (space.report.in_doubt, space.report.heuristic) == (1, 1)
        settled(bare)


def test_a_second_message_of_an_id_whose_first_is_consumed_meanwhile_is_still_set_aside(tmp_path: Path) -> None:
    with filled(tmp_path / "space") as bare:
        xid = doubtful(bare, 2)
        bare.crash()
        lay(bare, LAST + 1, identity(2), Properties("q"))
        space = reopen(bare, False, 0, partial(decide, xid, "commit"))
        (aside,) = space.report.quarantined
        assert f"{LAST + 1:x}" in aside
        assert "twice" in aside
        assert identity(2) not in space.queues["q"].index
        settled(bare)


class Noting(Threads):
    """Threads, of which it is known when one waits."""

    def __init__(self) -> None:
        self.waits = threading.Semaphore(0)

    def condition(self, lock: threading.Lock) -> Condition:
        waits = self.waits

        class Noted(threading.Condition):
            def wait(self, timeout: float | None = None) -> bool:
                waits.release()
                return super().wait(timeout)

        return Noted(lock)


class Opening(threading.Thread):
    """Opens the space, and stops behind the first range until told to go on."""

    def __init__(self, bare: BareSpace) -> None:
        super().__init__(daemon=True)
        bare.crash()
        bare.fs = FaultyFileSystem(bare.root)
        self.bare = bare
        self.waiting = Noting()
        self.on_branches: Queue[Space] = Queue()
        self.go_on = threading.Event()
        self.error: BaseException | None = None

    def stop(self, done: int, total: int) -> None:
        assert self.go_on.wait(PATIENCE_S)

    def run(self) -> None:
        try:
            self.bare.space = open_space(
                *(self.bare.fs, self.bare.definitions),
                hardening=Hardening.parse(self.bare.sync),
                progress=self.stop,
                on_branches=self.on_branches.put,
                waiting=self.waiting,
            )
        except OSError as error:
            self.error = error


def taking(session: Session) -> list[bytes]:
    session.start(Xid(1, b"take", b""))
    message = session.dequeue("q")
    return [message.body] if message is not None else []


def adding(session: Session) -> list[bytes]:
    session.start(Xid(1, b"add", b""))
    session.enqueue("q", b"waited")
    session.end(Xid(1, b"add", b""))
    session.commit(Xid(1, b"add", b""), Flag.ONEPHASE)
    return []


def looking(session: Session) -> list[bytes]:
    return [message.body for message in session.browse("q")]


WORK: dict[str, Callable[[Session], list[bytes]]] = {"dequeue": taking, "enqueue": adding, "browse": looking}
ALL = [b"1", b"2", b"3", b"%d" % RANGE_SIZE, b"%d" % (LAST - 1), b"%d" % LAST]


@every_level
@pytest.mark.parametrize(("work", "told"), [("dequeue", [b"2"]), ("enqueue", []), ("browse", [*ALL[1:], b"added"])])
def test_work_waits_for_the_messages_and_then_goes_on(tmp_path: Path, sync: str, work: str, told: list[bytes]) -> None:
    with filled(tmp_path / "space", sync) as bare, ThreadPoolExecutor(1) as pool:
        xid = doubtful(bare, 1)
        opening = Opening(bare)
        opening.start()
        space = opening.on_branches.get(timeout=PATIENCE_S)
        try:
            waiting = pool.submit(WORK[work], Session(space))
            assert opening.waiting.waits.acquire(timeout=PATIENCE_S)
            Session(space).commit(xid)
            assert not waiting.done()
        finally:
            opening.go_on.set()
        assert waiting.result(PATIENCE_S) == told
        opening.join(PATIENCE_S)
        assert space is bare.space


def test_an_opening_that_fails_in_the_middle_fails_those_who_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path / "space") as bare, ThreadPoolExecutor(1) as pool:
        xid = doubtful(bare, 1)
        opening = Opening(bare)
        listed = bare.fs.list

        def few(path: str) -> list[str]:
            if path == layout.range_path("q", RANGE_SIZE) and opening.go_on.is_set():
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
            return listed(path)

        monkeypatch.setattr(bare.fs, "list", few)
        opening.start()
        space = opening.on_branches.get(timeout=PATIENCE_S)
        try:
            waiting = pool.submit(looking, Session(space))
            assert opening.waiting.waits.acquire(timeout=PATIENCE_S)
        finally:
            opening.go_on.set()
        with pytest.raises(ResourceFailed, match="open files"):
            waiting.result(PATIENCE_S)
        opening.join(PATIENCE_S)
        assert isinstance(opening.error, OSError)
        with pytest.raises(ResourceFailed):
            Session(space).commit(xid)
        bare.reopen()
        assert bare.in_doubt() == [xid]


def test_whoever_attaches_a_space_is_told_of_its_branches_too(tmp_path: Path) -> None:
    with filled(tmp_path / "space") as bare:
        xid = doubtful(bare, 1)
    told: list[list[Xid]] = []
    attached = attach(tmp_path / "space", on_branches=lambda space: told.append(Session(space).recover(10, SCAN)))
    attached.close()
    assert told == [[xid]]


def test_what_is_open_for_reading_only_answers_for_no_branch(tmp_path: Path) -> None:
    root = broken_journal.make(tmp_path / "space")
    broken_journal.damage(root, 0)
    told: list[Space] = []
    session = attach(root, on_branches=told.append)
    assert session.space.read_only is not None
    assert told == []
    assert b"first" in [message.body for message in session.browse("orders")]
    session.close()


def test_a_watermark_tells_of_no_message_that_the_directories_lack(tmp_path: Path) -> None:
    """What is committed while the space loads stands in the journal only, until the directories follow."""
    ahead: list[int] = []

    class Watched(FaultyFileSystem):
        def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
            super().write_at(path, offset, chunks)
            if path == layout.watermark_path("q"):
                mark = layout.parse_watermark(b"".join(chunks))
                assert mark is not None
                status = [int(file.name.partition(".")[0], 16) for file in bare.messages("q")]
                ahead.extend({mark.published} - {0, *status})

    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        bare.put("q", b"1")
        xid = bare.prepare("doubtful", add=[("q", b"2")])
        bare.space.checkpoint()
        bare.crash()
        bare.fs = Watched(bare.root)
        bare.space = open_space(
            *(bare.fs, bare.definitions),
            hardening=Hardening.parse(bare.sync),
            on_branches=partial(decide, xid, "commit"),
        )
        assert ahead == []
        settled(bare)
        assert ahead == []
