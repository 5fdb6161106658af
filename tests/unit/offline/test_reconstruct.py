"""What an open cannot do without is made again from what is left, and whole messages come back out of quarantine."""

from __future__ import annotations

import itertools
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

import xaqueue
from support.block_space import body_of, id_of, put_block, put_message
from support.forgetful import Crashed, Tree
from xaqueue.core.engine import quarantine
from xaqueue.core.model import layout
from xaqueue.core.model.format import read_format
from xaqueue.errors import SpaceError, SpaceInUse
from xaqueue.features.opening import create
from xaqueue.offline.check import check
from xaqueue.offline.plan import BROUGHT_BACK, LEFT, MADE_AGAIN
from xaqueue.offline.reconstruct import make_definitions, make_format, reconstruct, remake

TOML = '[queues.orders]\norder = "lifo"\n[queues.more]\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three messages in orders, one in more, closed cleanly."""
    root = tmp_path / "space"
    create(root, sync="NONE")
    (root / layout.QUEUES).write_text(TOML + '[space]\nsync = "NONE"\n')
    with xaqueue.connect(root) as connection:
        for body in (b"first", b"second", b"third"):
            connection.enqueue("orders", body, headers={"kind": body.decode()})
        connection.enqueue("more", b"fourth")
    return root


def bodies(root: Path, queue: str = "orders") -> set[bytes]:
    with xaqueue.connect(root) as connection:
        return {message.body for message in connection.browse(queue)}


def message(root: Path, body: bytes) -> Path:
    return next(path for path in (root / layout.COMMITTED).rglob("*") if path.is_file() and body in path.read_bytes())


def test_format_as_the_last_owner_says(root: Path) -> None:
    was = read_format(root)
    path = root / layout.FORMAT
    for content in (None, b"\xff", b"x"):
        path.unlink()
        if content:
            path.write_bytes(content)
        (made,) = remake(root)
        assert made.how.endswith("as its last owner says")
        assert read_format(root) == was
    assert remake(root) == []
    assert {path.stem for path in (root / layout.QUARANTINE).iterdir()} == {"FORMAT", "FORMAT~2"}


def test_a_new_id_where_nobody_knows(root: Path) -> None:
    was = read_format(root)
    (root / layout.FORMAT).unlink()
    (root / layout.OWNER).unlink()
    (made,) = remake(root)
    assert "with a new id" in made.how
    assert read_format(root).name == "space"
    assert read_format(root).id != was.id


def test_what_says_what_it_is_stays(root: Path, tmp_path: Path) -> None:
    (root / layout.FORMAT).write_text("xaqueue 99 space id\n")
    with pytest.raises(SpaceError, match="use a newer one"):
        remake(root)
    (tmp_path / "photos").mkdir()
    with pytest.raises(SpaceError, match="was no queue space"):
        remake(tmp_path / "photos")
    assert list((tmp_path / "photos").iterdir()) == []


def test_a_space_in_use(root: Path) -> None:
    with xaqueue.connect(root), pytest.raises(SpaceInUse):
        remake(root)


def test_definitions_from_the_copy_or_from_the_queues(root: Path) -> None:
    was = (root / layout.QUEUES).read_text()
    (root / layout.QUEUES).write_text("[")
    (made,) = remake(root)
    assert str(made).startswith("made again: queues.toml: from its last good copy; queues.toml is no TOML: ")
    assert (root / layout.QUEUES).read_text() == was
    (root / layout.GOOD_QUEUES).unlink()
    for text in ("[", None):
        (root / layout.QUEUES).unlink()
        if text:
            (root / layout.QUEUES).write_text(text)
        (made,) = remake(root)
        assert "anew, with more, orders" in made.how
        assert remake(root) == []
    assert bodies(root) == {b"first", b"second", b"third"}
    assert (root / layout.QUARANTINE / "queues.toml").read_text() == "["


def test_a_file_with_a_strange_name_comes_back(root: Path) -> None:
    """With its id and its properties, and under a new number; a damaged one stays."""
    path = message(root, b"first")
    path.rename(path.with_name("photo.jpg"))
    message(root, b"second").write_bytes(b"X")
    done = reconstruct(root)
    assert (done.texts(MADE_AGAIN), done.back) == ([], {"orders": 1})
    assert len(done.texts(LEFT)) == 1
    assert bodies(root) == {b"first", b"third"}
    with xaqueue.connect(root) as connection:
        (back,) = (one for one in connection.browse("orders") if one.body == b"first")
        assert (back.message_id.hex(), back.headers) == (path.name[17:], {"kind": "first"})
        assert back.seq > 3
    assert [finding for finding in check(root) if finding.severity == "damage"] == []
    assert reconstruct(root).back == {}


def test_of_one_queue_only(root: Path) -> None:
    for body in (b"first", b"fourth"):
        path = message(root, body)
        path.rename(path.with_name("photo.jpg"))
    assert reconstruct(root, "more").back == {"more": 1}
    assert bodies(root, "more") == {b"fourth"}
    assert bodies(root) == {b"second", b"third"}
    assert reconstruct(root).back == {"orders": 1}


def test_a_message_that_stands_twice_comes_back_never(root: Path) -> None:
    path = message(root, b"first")
    shutil.copy(path, path.with_name("0" * 15 + "9" + path.name[16:]))
    assert (done := reconstruct(root)).back == {}
    assert "stands in its queue twice" in done.texts(LEFT)[0]
    with xaqueue.connect(root) as connection:
        while connection.dequeue("orders") is not None:
            pass
    assert reconstruct(root).back == {}
    assert bodies(root) == set()


def test_what_a_branch_may_need_stays(root: Path) -> None:
    with xaqueue.connect(root) as connection:
        connection.tpc_begin(connection.xid(1, "gtrid", "bqual"))
        taken = connection.dequeue("orders")
        assert taken is not None
        assert connection.tpc_prepare()
    path = message(root, taken.body)
    elsewhere = path.parent.with_name("range=000000000000f")
    elsewhere.mkdir()
    path.rename(elsewhere / path.name)
    assert (done := reconstruct(root)).back == {}
    assert "may name it" in done.texts(LEFT)[0]


@pytest.mark.parametrize("name", [layout.FORMAT, layout.QUEUES])
@pytest.mark.parametrize("is_known", [True, False])
def test_it_may_be_cut_off_at_any_call(root: Path, name: str, *, is_known: bool) -> None:
    """Run again it makes the same, and what was damaged is kept."""
    if not is_known:
        (root / layout.OWNER).unlink()
        (root / layout.GOOD_QUEUES).unlink()
    wanted = (root / name).read_bytes() if is_known else None
    start = Tree({name: b"\xff", layout.QUARANTINE: None, layout.COMMITTED: None, layout.queue_path("orders"): None})
    make = make_format if name == layout.FORMAT else make_definitions
    for crash_after in itertools.count():
        (root / name).write_bytes(b"\xff")
        fs = start.open(crash_after)
        with suppress(Crashed):
            make(fs, root)
        for tree in (*fs.trees_after_crash(), fs.tree_after_kill()):
            left = tree.nodes.get(name)
            (root / name).unlink(missing_ok=True)
            if left is not None:
                (root / name).write_bytes(left)
            after = tree.open()
            make(after, root)
            nodes = after.tree_after_kill().nodes
            assert nodes[name] not in (b"\xff", b"")
            assert wanted in (None, nodes[name])
            assert list(nodes.values()).count(b"\xff") >= 1
        if not fs.crashed:
            break
    assert crash_after > 5


def test_one_that_was_consumed_before_its_file_was_marked_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is cut off, the space is used, and the command comes again."""
    message(root, b"fourth").rename(root / "committed/queue=more/photo.jpg")

    def cut_off(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(quarantine, "mark", cut_off)
        with pytest.raises(KeyboardInterrupt):
            reconstruct(root)
    for back in (None, {"more": 1}):
        assert back is None or reconstruct(root).back == back
        with xaqueue.connect(root) as connection:
            delivered = connection.dequeue("more")
            assert delivered is not None
            assert delivered.possible_duplicate
            connection.commit()


def test_messages_of_a_block_come_back_each_by_itself(tmp_path: Path) -> None:
    """It was renamed by hand; one of them is there already, and nobody knows any more what was gone."""
    create(root := tmp_path / "space")
    (root / layout.QUEUES).write_text("[queues.orders]\n")
    made = put_block(root, 10, 20, gone=0b1, ids=[id_of(10), id_of(40), *map(id_of, range(12, 30))])
    made.file.rename(made.file.with_name(f"{10:016x}+010.{id_of(10).hex()}"))
    put_message(root, 40)
    plan = reconstruct(root)
    assert plan.back == {"orders": 19}
    with xaqueue.connect(root) as connection:
        found = {message.message_id: message for message in connection.browse("orders")}
    assert {message_id: one.body for message_id, one in found.items()} == {
        id_of(seq): body_of(seq) for seq in (10, *range(12, 30), 40)
    }
    assert [one.seq for one in found.values() if not one.possible_duplicate] == [40]
    assert reconstruct(root).back == {}


def test_a_damaged_message_of_a_block_takes_none_along(tmp_path: Path) -> None:
    create(root := tmp_path / "space")
    (root / layout.QUEUES).write_text("[queues.orders]\n")
    made = put_block(root, 10, 20)
    made.harm_body(3)
    made.file.rename(made.file.with_name(f"{10:016x}+010.{id_of(10).hex()}"))
    plan = reconstruct(root)
    assert plan.back == {"orders": 19}
    (item,) = (item for item in plan.items if item.action == BROUGHT_BACK)
    assert item.lost == f"message {id_of(13).hex()}: checksum does not match"
    with xaqueue.connect(root) as connection:
        found = {message.message_id for message in connection.browse("orders")}
    assert found == {id_of(seq) for seq in range(10, 30) if seq != 13}
    assert (root / item.path.replace("quarantine/", "quarantine/resolved.")).exists()
    assert reconstruct(root).back == {}


def test_a_block_of_which_all_is_damaged_stays_where_it_was_set_aside(tmp_path: Path) -> None:
    create(root := tmp_path / "space")
    (root / layout.QUEUES).write_text("[queues.orders]\n")
    made = put_block(root, 10, 20)
    for index in range(20):
        made.harm_body(index)
    made.file.rename(made.file.with_name(f"{10:016x}+010.{id_of(10).hex()}"))
    plan = reconstruct(root)
    assert plan.back == {}
    assert [(item.action, item.how) for item in plan.items if item.action == LEFT] == [
        (LEFT, f"message {id_of(10).hex()}: checksum does not match")
    ]
