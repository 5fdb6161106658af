"""A queue as a table of Arrow's, by its files and by its server."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.archive_space import Space
from support.patience import PATIENCE_S, eventually
from support.served import serving
from support.spark_space import FabricatedSpace, body, message_id
from xaqueue.core.owner import threads
from xaqueue.errors import InvalidArgument, NotSupportedError, SpaceError, UnknownQueue
from xaqueue.features.opening import create

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa

from xaqueue import lake
from xaqueue.lake import batches
from xaqueue.lake.archive import archive
from xaqueue.offline import redo_view


@pytest.fixture
def space(tmp_path: Path) -> FabricatedSpace:
    made = FabricatedSpace(tmp_path / "space")
    made.fill("orders", range(1, 21))
    return made


def seqs(space: object, **options: Any) -> list[int]:
    found: list[int] = lake.scan(str(space), "orders", ["seq"], **options).read_all()["seq"].to_pylist()
    return found


def test_it_has_each_message_with_its_columns(space: FabricatedSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_ROWS", 3)
    space.put("orders", 21, b"late", headers={"k": "v"}, tries=2, group="g")
    space.publish("orders", 21)
    reader = lake.scan(space.root, "orders")
    table = reader.read_all()
    assert table["seq"].to_pylist() == list(range(1, 22))
    assert table["body"].to_pylist() == [*map(body, range(1, 21)), b"late"]
    assert table["message_id"].to_pylist() == [*map(message_id, range(1, 22))]
    last = table.slice(20).to_pylist()[0]
    assert (last["headers"], last["tries"], last["queue"], last["space"]) == (
        [("k", "v")],
        2,
        "orders",
        str(space.root),
    )
    named = lake.scan(space.root, "orders", ["group", "seq"]).read_all()
    assert named.column_names == ["group", "seq"]
    assert named["group"].to_pylist() == [None] * 20 + ["g"]


@pytest.mark.parametrize("by", ["files", "url"])
def test_what_was_committed_before_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """Though the files come behind the journal; where nobody brings them, that is said."""
    monkeypatch.setattr(threads, "LAG_S", 0.3)
    root = tmp_path / "space"
    create(root)
    (root / "queues.toml").write_text("[default]\n")
    with serving(root) as server:
        place = root if by == "files" else server.url
        with xaqueue.connect(server.url) as connection:
            for number in range(1, 4):
                connection.enqueue("orders", b"")
                connection.commit()
                assert seqs(place) == list(range(1, number + 1))


def test_where_nobody_brings_what_the_files_lack_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a kill, which a copy stands for here."""
    monkeypatch.setattr(threads, "LAG_S", 2 * PATIENCE_S)
    root, left = tmp_path / "space", tmp_path / "left"
    create(root)
    (root / "queues.toml").write_text("[default]\n")
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"")
        connection.commit()
        shutil.copytree(root, left)
    monkeypatch.setitem(redo_view.FOLLOW_S, False, 0.05)
    with pytest.raises(SpaceError, match="nobody has it open: open it once"):
        seqs(left)
    xaqueue.connect(left).close()
    assert seqs(left) == [1]


@pytest.mark.parametrize("by", ["files", "url"])
def test_a_slip_of_the_pen_is_no_empty_table(tmp_path: Path, by: str) -> None:
    root = tmp_path / "space"
    create(root)
    (root / "queues.toml").write_text("[default]\n[queues.orders]\n")
    with serving(root) as server:
        place = root if by == "files" else server.url
        assert seqs(place) == [], "it is defined, and had none yet"
        with pytest.raises(UnknownQueue, match=r"has no queue odrers: did you mean 'orders'\?; it has orders\. "):
            lake.scan(str(place), "odrers")


def test_large_bodies_stand_between_small_ones_and_are_not_copied(space: FabricatedSpace) -> None:
    large = bytes(range(256)) * 8192
    space.put("orders", 21, large)
    space.put("orders", 22, b"small")
    space.put("orders", 23, large[::-1], headers={"k": "v"})
    space.publish("orders", 23)
    found = lake.scan(space.root, "orders", ["body", "seq", "headers", "message_id"], after=19).read_all().to_pylist()
    assert [row["body"] for row in found] == [body(20), large, b"small", large[::-1]]
    assert [row["message_id"] for row in found] == [*map(message_id, range(20, 24))]
    (batch,) = lake.scan(space.root, "orders", ["body"], after=22)
    assert pa.ipc.read_record_batch(batch.serialize(), batch.schema).column(0).to_pylist() == [large[::-1]]


def test_it_begins_and_ends_where_it_is_told_to(space: FabricatedSpace) -> None:
    for seq in range(1, 21):
        when = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=seq)
        os.utime(space.path("orders", seq), (when.timestamp(), when.timestamp()))
    five, nine = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (5, 9))
    assert seqs(space.root, after=15) == list(range(16, 21))
    assert seqs(space.root, between=(five, nine)) == [5, 6, 7, 8]
    assert seqs(space.root, between=(None, five)) == [1, 2, 3, 4]
    assert seqs(space.root, between=(nine, None), after=11) == list(range(12, 21))


def test_what_a_stream_has_consumed_is_not_there(space: FabricatedSpace) -> None:
    space.keep("orders", "stream", consumed=7)
    assert seqs(space.root) == list(range(8, 21))


def test_by_a_server_it_is_the_same(tmp_path: Path) -> None:
    root = tmp_path / "space"
    create(root, any_queue=True)
    with serving(root) as server:
        with xaqueue.connect(server.url) as queues:
            queues.enqueue_many("orders", [b"%d" % one for one in range(100)])
            queues.commit()
        eventually(lambda: seqs(root) == list(range(1, 101)))
        by_files, by_server = (lake.scan(place, "orders").read_all() for place in (root, server.url))
        assert by_server.drop_columns("space").equals(by_files.drop_columns("space"))
        assert seqs(server.url, after=90) == list(range(91, 101))


def test_what_is_wrong_is_said(space: FabricatedSpace, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no column 'sequence'"):
        lake.scan(space.root, "orders", ["sequence"])
    with pytest.raises(InvalidArgument, match="zone"):
        lake.scan(space.root, "orders", between=(datetime(2026, 1, 1), None))
    with pytest.raises(SpaceError, match="no queue space"):
        lake.scan(tmp_path / "nowhere", "orders")


def test_a_server_has_what_left_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there, files of messages, and Parquet, in pages: as it is in the directory."""
    made = Space(tmp_path / "kept", "JOURNAL")
    made.put(b"a" * 1_500_000, b"b", b"c")  # a page of the server
    made.put(*(b"%d" % at for at in range(40)), many=True)
    made.take(3)
    made.settle()
    archive(made.root)
    made.take(40)
    made.put(b"d", b"e")
    made.take(1)
    made.stop()
    with serving(made.root) as server:

        def rows(place: object, *columns: str) -> list[dict[str, Any]]:
            return list(lake.scan(str(place), "q", columns or None, archived=True).read_all().to_pylist())

        here = [{**row, "space": server.url} for row in rows(made.root)]
        assert rows(server.url) == here
        assert len(here) == 45
        assert rows(server.url, "body", "taken_by") == [
            {"body": row["body"], "taken_by": row["taken_by"]} for row in here
        ]
        between = datetime.now(UTC) - timedelta(days=1), None
        found = lake.scan(server.url, "q", ["seq"], archived=True, after=10, between=between).read_all()
        assert found["seq"].to_pylist() == list(range(11, 46))
        monkeypatch.setattr("xaqueue.rpc.methods.pages.find_spec", lambda name: None)
        with pytest.raises(NotSupportedError, match="server has no PyArrow"):
            rows(server.url)
