"""What no world of ``tests/sim`` loses of streams: what was consumed at a level that syncs nothing, an archive of
which a checkpoint tells, and what was consumed of a block in which a stream ends.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from support.careless_log import careless
from support.crash_cases import EXTREMES, trees_of
from support.crash_level import CHECKPOINTS, NONE, STRICT, Level, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from support.stream_story import BEFORE, FOUR, NEVER_KEPT, TWO, crashes, judge, play
from xaqueue.core.model import layout
from xaqueue.core.model.block import decode_message
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.core.model.message_block import decode_gone, decode_table
from xaqueue.core.model.message_name import parse_any
from xaqueue.errors import ResourceFailed
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
    """A stream keeps what it consumes, and ends inside a block. Whether consume and release were acknowledged."""
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
        consumed = True
        session.release("q")
        released = True
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
    session.reserve("q", "query#2" if found is None else "query#1", after, len(BODIES))
    session.consume("q", "query#2" if found is None else "query#1", len(BODIES), True)
    cleanup.clear(space)
    session.release("q")
    fs, kept = space.fs, []
    for name in listed(fs, archived_path(layout.range_path("q", 1))):
        named = parse_any(name)
        assert named is not None
        data = fs.read(f"{archived_path(layout.range_path('q', 1))}/{name}")
        if named.is_block:
            bitmap = archived_path(layout.gone_path("q", named))
            gone = decode_gone(fs.read(bitmap), "q", named) if fs.exists(bitmap) else 0
            table = decode_table(data)
            kept += [table.body(data, index) for index in table.left(gone)]
        else:
            kept.append(decode_message(data)[2])
    assert sorted(kept, key=int) == BODIES
    space.log.end(OSError("killed"))


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("level", [CHECKPOINTS, STRICT], ids=str)
def test_a_block_in_which_a_stream_ends(level: Level) -> None:
    for crash_after in count(0, 3):
        fs, consumed, released = cut(level, crash_after)
        for tree in (fs.tree_after_kill(), *trees_of(fs, level, EXTREMES)):
            judge_cut(tree, level, consumed, released)
        if not fs.crashed:
            return
