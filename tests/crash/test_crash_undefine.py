"""A queue's definition is taken away, and a message that has had tries comes back, dead at any call."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from support.crash_cases import EXTREMES, trees_of
from support.crash_level import CHECKPOINTS, JOURNAL, LAGGING, NONE, STRICT, Level, follow, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import Definitions, QueueDefinition, parse
from xaqueue.core.owner import definitions_file
from xaqueue.errors import ResourceFailed, RetryLater
from xaqueue.features.defining import queues_file
from xaqueue.features.session import Session
from xaqueue.message import Message, MessageId, Properties
from xaqueue.xid import Xid

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("quiet")]

TEXT = '# mine\n[queues.a]\norder = "lifo"\n# others\n[queues.b]\n'
AFTER = "# mine\n# others\n[queues.b]\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """What is read of the directory is there; what is written goes to the file system that the test has."""
    (tmp_path / layout.QUEUES).write_text(TEXT)
    return tmp_path


def opened() -> Space:
    return open_space(ready(EMPTY, NONE).open_for_good(), NONE, definitions=parse(TEXT))


def undefine(root: Path, fs: ForgetfulFileSystem, space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(definitions_file, "DirectoryFileSystem", lambda _: fs)
        queues_file.QueuesFile(root, space).undefine("a")


def test_the_file_is_the_old_one_or_the_new_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, space = set(), opened()
    for crash_after in itertools.count():
        fs = Tree({layout.QUEUES: TEXT.encode()}).open(crash_after)
        space.redefine(parse(TEXT))
        try:
            undefine(root, fs, space, monkeypatch)
        except Crashed:
            left = [*fs.trees_after_crash(), fs.tree_after_kill()]
            found = {tree.nodes[layout.QUEUES] for tree in left}
            assert found <= {TEXT.encode(), AFTER.encode()}
            seen |= found
            assert space.definitions == parse(TEXT), "nobody was told that it was done"
        else:
            break
    assert seen == {TEXT.encode(), AFTER.encode()}
    assert {tree.nodes[layout.QUEUES] for tree in fs.trees_after_crash()} == {AFTER.encode()}
    assert list(space.definitions.queues) == ["b"]
    assert crash_after > 3


def test_a_disk_that_fails_leaves_the_definition(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs, space = Tree({layout.QUEUES: TEXT.encode()}).open(), opened()
    fs.fail_after = 0
    with pytest.raises(RetryLater, match=r"queues.toml cannot be changed"):
        undefine(root, fs, space, monkeypatch)
    assert list(space.definitions.queues) == ["a", "b"]
    undefine(root, fs, space, monkeypatch)
    assert list(space.definitions.queues) == ["b"]


BACK = Message(MessageId(b"back".ljust(16)), "a", 0, b"body", Properties("a", tries=2, origin="moved"))
ANY = Definitions(default=QueueDefinition())


def bring_back(level: Level, crash_after: int | None = None) -> tuple[ForgetfulFileSystem, bool]:
    """In a two-phase transaction; and takes it, which fails. Whether its commit was acknowledged."""
    fs, committed = ready(EMPTY, level).open(crash_after), False
    try:
        space = open_space(fs, level, goes_on=True, definitions=ANY)
        session, xid = Session(space), Xid(1, b"back", b"")
        session.start(xid)
        assert session.restore("a", [BACK]) == [True]
        session.end(xid)
        session.prepare(xid)
        follow(space, level, "prepare")
        session.commit(xid)
        committed = True
        follow(space, level, "commit")
        session.start(xid)
        assert session.dequeue("a") is not None
        session.end(xid)
        session.rollback(xid)
        follow(space, level, "rollback")
        space.close()
    except (Crashed, ResourceFailed):
        if not fs.crashed:
            raise
    return fs, committed


@pytest.mark.parametrize("level", [STRICT, LAGGING, JOURNAL, CHECKPOINTS], ids=str)
def test_it_is_there_once_with_its_tries(level: Level) -> None:
    ends = set()
    for crash_after in itertools.count():
        fs, committed = bring_back(level, crash_after)
        for tree in [*trees_of(fs, level, EXTREMES), fs.tree_after_kill()]:
            space = open_space(tree.open(), level, definitions=ANY)
            for xid in list(space.branches):
                Session(space).commit(xid)
            found = [(one.message_id, one.body, one.properties.origin) for one in Session(space).browse("a")]
            assert found in ([(BACK.message_id, b"body", "moved")], [] if not committed else None)
            tries = [one.tries for one in Session(space).browse("a")]
            assert tries in ([], [2], [3], [4]), "a try is counted twice where its block came back, and no oftener"
            ends.add(tuple(tries))
        if not fs.crashed:
            break
    assert ends - {(4,)} == {(), (2,), (3,)}
