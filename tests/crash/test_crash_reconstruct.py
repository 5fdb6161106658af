"""Messages come back out of quarantine, dead at any call: each is in its queue once, and no file is lost."""

from __future__ import annotations

import itertools

import pytest

from support.crash_cases import EXTREMES, trees_of
from support.crash_level import JOURNAL, NOON_US, STRICT, Level, follow, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from xaqueue.core.model import layout
from xaqueue.core.model.block import Block, Kind, encode
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.errors import ResourceFailed
from xaqueue.features.session import Session
from xaqueue.message import MessageId, Properties
from xaqueue.offline.plan import LEFT, Plan
from xaqueue.offline.reconstruct import bring_back

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("quiet")]

ANY = Definitions(default=QueueDefinition())
IDS = [MessageId(bytes([number]) * 16) for number in (1, 2)]


def start(level: Level) -> Tree:
    """Two whole messages stand in quarantine."""
    nodes: dict[str, bytes | None] = {**ready(EMPTY, level).nodes, layout.QUARANTINE: None}
    for number, message_id in enumerate(IDS):
        block = Block(Kind.ENQUEUE, message_id, Properties("a", enqueued_at=NOON_US), b"body")
        path = f"{layout.QUARANTINE}/a.stray{number}"
        nodes[path] = b"".join(encode(block))
        nodes[path + ".reason"] = f"a strange name\nstood at {layout.queue_path('a')}/stray{number}\n".encode()
    return Tree(nodes)


def bring(fs: ForgetfulFileSystem, level: Level) -> Plan:
    done = Plan()
    space = open_space(fs, level, goes_on=True, definitions=ANY)
    bring_back(Session(space), done)
    follow(space, level, "back")
    space.close()
    return done


@pytest.mark.parametrize("level", [STRICT, JOURNAL], ids=str)
def test_each_is_there_once(level: Level) -> None:
    begin, ends = start(level), set()
    for crash_after in itertools.count():
        fs = begin.open(crash_after)
        try:
            assert bring(fs, level).back == {"a": 2}
        except (Crashed, ResourceFailed):
            if not fs.crashed:
                raise
        for tree in [*trees_of(fs, level, EXTREMES), fs.tree_after_kill()]:
            after = tree.open()
            done = bring(after, level)
            assert done.texts(LEFT) == []
            ends.add(done.back.get("a", 0))
            space = open_space(after, level, definitions=ANY)
            assert sorted(one.message_id for one in Session(space).browse("a")) == IDS
            names = [name for name in after.list(layout.QUARANTINE) if not name.endswith(".reason")]
            assert [name for name in names if not name.startswith("resolved.")] == []
            assert len(names) >= 2
        if not fs.crashed:
            break
    assert ends == {0, 1, 2}
    assert crash_after > 10
