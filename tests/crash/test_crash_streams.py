"""What no world of ``tests/sim`` loses of streams: what was consumed at a level that syncs nothing, an archive of
which a checkpoint tells, and what was consumed of a block in which a stream ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import pytest

from support.careless_log import careless
from support.crash_cases import EXTREMES, FULL, trees_of
from support.crash_level import CHECKPOINTS, JOURNAL, LAGGING, NONE, STRICT, Level, follow, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from support.stream_story import BEFORE, FOUR, NEVER_KEPT, TWO, crashes, judge, play
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.block import decode_message
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.core.model.message_block import decode_gone, decode_table
from xaqueue.core.model.message_name import parse_any
from xaqueue.errors import DamagedBlock, ResourceFailed
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.features.streams.record import archived_path
from xaqueue.xa import Flag
from xaqueue.xid import Xid

pytestmark = pytest.mark.usefixtures("quiet")


def raised_level() -> None:
    """The next owner has a higher level than the one that consumed, and clears; and the power goes."""
    fs, promised = play([("reserve", (TWO,)), ("consume", (TWO,))], NONE)
    promised.kept_above = NEVER_KEPT
    fs.survive_kill()
    cleanup.clear(open_space(fs, STRICT, closed_well=True))
    for tree in trees_of(fs, STRICT, EXTREMES):
        judge(tree, promised, STRICT)


def archived() -> None:
    acts = [
        *(("reserve", (FOUR,)), ("consume", (TWO, True)), ("put", (4,)), ("clear", ())),
        *(("consume", (FOUR, True)), ("clear", ())),
    ]
    for fs, promised in crashes(acts, CHECKPOINTS):
        promised.kept_above = BEFORE
        for tree in trees_of(fs, CHECKPOINTS, EXTREMES):
            judge(tree, promised, CHECKPOINTS)


@pytest.mark.parametrize(
    ("story", "kind"),
    [(raised_level, "_harden: content stream record"), (archived, "_harden_archive: all root")],
)
def test_what_is_synced_is_there(story: Callable[[], None], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    story()
    with careless(monkeypatch, kind) as care, pytest.raises(AssertionError):
        story()
    assert kind in care.asked


MANY_EACH = Definitions(default=QueueDefinition(blocks=MANY))
BODIES = [b"%d" % number for number in range(18)]
CUT = 4


def cut(level: Level, crash_after: int | None) -> tuple[ForgetfulFileSystem, bool, bool]:
    """A stream keeps what it consumes, and ends inside a block. Whether consume was acknowledged, and release begun."""
    fs = ready(EMPTY, level).open(None)
    space = open_space(fs, level, goes_on=True, definitions=MANY_EACH)
    session, xid = Session(space), Xid(1, b"put", b"")
    session.start(xid)
    session.enqueue_many("q", BODIES)
    session.end(xid)
    session.commit(xid, Flag.ONEPHASE)
    session.reserve("q", "query#1", 0, len(BODIES))
    consumed = released = False
    fs.crash_after = crash_after if crash_after is None else fs.calls + crash_after
    try:
        session.consume("q", "query#1", CUT, True)
        consumed = released = True  # the latter perhaps, from here on
        session.release("q")
        space.close()
    except (Crashed, ResourceFailed):
        if not fs.crashed:
            raise
    return fs, consumed, released


def judge_cut(tree: Tree, level: Level, consumed: bool, released: bool) -> None:
    """Whatever is left, the stream or its next one consumes the rest, and each message is in the archive once."""
    space = open_space(tree.open(), level, definitions=MANY_EACH)
    session = Session(space)
    found = next(iter(session.reservations()), None)
    assert found is not None or released
    assert found is None or found.consumed >= CUT * consumed
    after = CUT if found is None else found.consumed
    consume_all(session, "query#2" if found is None else "query#1", after, len(BODIES))
    assert in_archive(space) == BODIES
    space.log.end(OSError("killed"))


def consume_all(session: Session, stream: str, after: int, upto: int) -> None:
    session.reserve("q", stream, after, upto)
    session.consume("q", stream, upto, True)
    cleanup.clear(session.space)
    session.release("q")


def in_archive(space: Space) -> list[bytes]:
    """The bodies of the messages of its first range."""
    fs, directory, kept = space.fs, archived_path(layout.range_path("q", 1)), list[bytes]()
    for name in listed(fs, directory):
        named = parse_any(name)
        assert named is not None
        data = fs.read(f"{directory}/{name}")
        if named.is_block:
            bitmap = archived_path(layout.gone_path("q", named))
            gone = decode_gone(fs.read(bitmap), "q", named) if fs.exists(bitmap) else 0
            table = decode_table(data)
            kept += [table.body(data, index) for index in table.left(gone)]
        else:
            kept.append(decode_message(data)[2])
    return sorted(kept, key=int)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("level", [CHECKPOINTS, STRICT], ids=str)
def test_a_block_in_which_a_stream_ends(level: Level) -> None:
    for crash_after in count(0, 3):
        fs, consumed, released = cut(level, crash_after)
        for tree in (fs.tree_after_kill(), *trees_of(fs, level, EXTREMES)):
            judge_cut(tree, level, consumed, released)
        if not fs.crashed:
            return


TWO_BLOCKS = [b"%d" % number for number in range(36)]
TAKEN, UNKEPT, STOPS = (0, 7, 20, 35), 2, (4, 27, 36)
"""By place what sessions take before; through which the stream keeps nothing; and where it looks up."""


def archive_blocks(level: Level, stops: Sequence[int], crash_after: int) -> tuple[ForgetfulFileSystem, int]:
    """A stream goes through two blocks of which some is gone. Through which number that was acknowledged."""
    fs = ready(EMPTY, level).open(None)
    space = open_space(fs, level, goes_on=True, definitions=MANY_EACH)
    session = Session(space)
    for number, bodies in enumerate((TWO_BLOCKS[:18], TWO_BLOCKS[18:])):
        xid = Xid(1, b"put%d" % number, b"")
        session.start(xid)
        ids = session.enqueue_many("q", bodies)
        for place in [place % 18 for place in TAKEN if place // 18 == number]:
            session.end(xid)
            session.commit(xid, Flag.ONEPHASE)
            session.start(xid)
            assert session.dequeue("q", message_id=ids[place])
        session.end(xid)
        session.commit(xid, Flag.ONEPHASE)
    session.reserve("q", "query#1", 0, len(TWO_BLOCKS))
    session.consume("q", "query#1", UNKEPT)
    follow(space, level, "commit")
    fs.crash_after, consumed = fs.calls + crash_after, UNKEPT
    try:
        for upto in stops:
            session.consume("q", "query#1", upto, True)
            consumed = upto
            follow(space, level, "commit")
            cleanup.clear(space)
        space.close()
    except (Crashed, ResourceFailed):
        if not fs.crashed:
            raise
    return fs, consumed


def judge_archive(tree: Tree, level: Level, consumed: int) -> None:
    space = open_space(tree.open(), level, definitions=MANY_EACH)
    session, left = Session(space), [body for at, body in enumerate(TWO_BLOCKS) if at not in TAKEN]
    (found,) = session.reservations()
    assert found.consumed >= consumed
    assert [one.body for one in session.browse("q")] == [body for body in left if int(body) >= found.consumed]
    consume_all(session, "query#1", found.consumed, len(TWO_BLOCKS))
    assert in_archive(space) == [body for body in left if int(body) >= UNKEPT]
    space.log.end(OSError("killed"))


def blocks_archived(level: Level = CHECKPOINTS, stops: Sequence[int] = STOPS[1:2], every: int = 1) -> None:
    seen, is_drawn = set[object](), level in (JOURNAL, LAGGING)  # with all that these have not synced
    for crash_after in count(0, every):
        fs, consumed = archive_blocks(level, stops, crash_after)
        trees = trees_of(fs, level, EXTREMES) if is_drawn else fs.trees_after_crash(EXTREMES)
        for tree in (fs.tree_after_kill(), *trees):
            if (key := (tree.key(), consumed)) not in seen:
                seen.add(key)
                judge_archive(tree, level, consumed)
        if not fs.crashed:
            return


@pytest.mark.parametrize(("level", "every"), [(CHECKPOINTS, 1), (JOURNAL, 9), (LAGGING, 9), (STRICT, 2)], ids=str)
def test_blocks_that_a_stream_goes_through(level: Level, every: int) -> None:
    blocks_archived(level, STOPS, 1 if FULL else every)


@pytest.mark.parametrize("what", ["content bitmap", "names bitmaps", "names queue"])
def test_what_is_gone_of_a_block_is_in_the_archive_before_it(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks_archived()
    with careless(monkeypatch, f"keep_gone: {what}") as care, pytest.raises((AssertionError, DamagedBlock)):
        blocks_archived()
    assert f"keep_gone: {what}" in care.asked
