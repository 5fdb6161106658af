"""A record, a page or a manifest that came from elsewhere may name files of a space, whatever else it says."""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from zlib import crc32

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from xaqueue.core.model import change, layout
from xaqueue.core.model.block import Block, Kind, encode
from xaqueue.core.model.change import DROP, MOVE, PUT, SAME
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.journal_format import EPOCH_BITS, SECTOR_BYTES, Entry, Record, record_of
from xaqueue.errors import SpaceError
from xaqueue.features.batches.record import batch_path
from xaqueue.features.carry import carrier_note
from xaqueue.features.dedup import dedup
from xaqueue.features.replica.journal_copy import Diverged, JournalCopy
from xaqueue.features.replica.shipping import Piece
from xaqueue.features.snapshots import manifest, restore
from xaqueue.features.snapshots.manifest import MANIFEST
from xaqueue.features.streams.record import archived_path, stream_path
from xaqueue.message import QUEUE_NAME, MessageId, Properties
from xaqueue.xid import Xid

ID = MessageId(bytes(range(16)))
MESSAGE = layout.message_path("q", 7, ID)
HEAD, BODY = encode(Block(Kind.ENQUEUE, ID, Properties("q"), b"body"))
QUEUES = st.from_regex(QUEUE_NAME.pattern, fullmatch=True)
XIDS = st.builds(Xid, st.integers(0, 2**31 - 1), st.binary(max_size=64), st.binary(max_size=64)).map(str)
NUMBERS = st.integers(0, layout.LAST_SEQ)
IDS = st.binary(min_size=16, max_size=16)
OURS = st.one_of(
    st.builds(layout.message_path, QUEUES, NUMBERS, IDS, st.sampled_from(["", ".e5.n7", ".c0123456789abcdef.p9"])),
    st.builds(layout.message_path, QUEUES, NUMBERS, IDS).map(archived_path),
    st.builds(layout.retry_path, QUEUES, NUMBERS, IDS),
    st.builds(dedup.key_path, QUEUES, NUMBERS, IDS, IDS),
    st.builds(stream_path, QUEUES),
    st.builds(batch_path, IDS.map(bytes.hex), NUMBERS),
    st.just(carrier_note.carrier_path("0123456789abcdef.postgres%2F1")),
    st.builds(layout.block_path, st.sampled_from(["active", "prepared"]), XIDS, st.sampled_from(["000", "commit"])),
    st.builds("heuristic/{}".format, XIDS),
)
PARTS = [
    "..",
    ".",
    "",
    "\0",
    "home",
    "committed",
    "queue=q",
    "range=0000000000000",
    "x" * 300,
    "caf\u00e9",
    "\u0660" * 13,
]
TOPS = [
    "lock",
    "FORMAT",
    "owner",
    "owner.new",
    "replication",
    ".restoring/READY",
    "queues.toml",
    "snapshots/1/MANIFEST",
]
HOSTILE = st.one_of(
    st.sampled_from(
        ["", "/", "/etc/passwd", *TOPS, *layout.directories(), "journal/x", "socket", "removed/x", "heartbeat"]
    ),
    st.lists(st.sampled_from([*PARTS, *MESSAGE.split("/")]), max_size=7).map("/".join),
    st.builds(
        "{}{}".format, OURS, st.sampled_from(["/", "/x", "/..", "\n", "\0", " ", ".", "\u0661", ".." + "/x" * 99])
    ),
    st.builds("{}{}".format, st.sampled_from(["/", "./", "../", "x/", " ", "committed/", "\0"]), OURS),
    st.builds(lambda path, at: path[:at], OURS, st.integers(0, 40)),
    OURS.map(lambda path: path.replace("/", "//", 1)),
    OURS.map(lambda path: path.replace("/", "/../x/", 1)),
    st.text(max_size=60),
)


def stays_inside(path: str) -> bool:
    """Said another way than the layout says it."""
    parts = path.split("/")
    is_plain = posixpath.normpath(path) == path and not path.startswith(("/", "..")) and path.isprintable()
    is_deep_enough = len(parts) == (4 if parts[0] in ("committed", "archive") else 2)
    return is_plain and parts[0] in (*layout.directories(), "archive") and is_deep_enough and max(map(len, parts)) < 256


@given(OURS)
def test_what_steps_name_may_be_named(path: str) -> None:
    assert layout.is_recorded(path)
    assert stays_inside(path)
    assert manifest.is_copied(path)


@given(HOSTILE)
@example("committed/queue=q/range=0000000000000/0000000000000007." + "0" * 32 + ".a" + "1" * 300)
@example("committed/queue=q/range=0000000000001/0000000000000007." + "0" * 32)
def test_what_leads_elsewhere_may_not_be_named(path: str) -> None:
    if layout.is_recorded(path):
        assert stays_inside(path)
    if manifest.is_copied(path):
        is_of_top = path in manifest.copied() or path.startswith("quarantine/") or path.endswith("/.watermark")
        assert stays_inside(path) or is_of_top
        assert not {"..", "."} & set(path.split("/"))
        assert not path.startswith("/")
        assert "\0" not in path


ANYTHING = st.recursive(
    st.one_of(st.none(), st.integers(-(2**63), 2**64 - 1), st.binary(max_size=60), HOSTILE, st.floats()),
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(st.integers(0, 5), inner, max_size=3)),
    max_leaves=12,
)


def record(content: object) -> Record:
    return Record(4096, 1, msgpack.packb(content, unicode_errors="surrogatepass"), memoryview(BODY))


@given(HOSTILE)
def test_a_record_that_names_another_path_is_damage(path: str) -> None:
    for said in operations(path):
        assert change.is_valid(record(["x", said])) is layout.is_recorded(path)


@given(ANYTHING)
def test_whatever_a_record_holds_is_judged(said: object) -> None:
    """And not tripped over."""
    for content in (said, ["x", said], ["x", [said]], ["x", [[PUT, said, HEAD, 4, 0]]], ["x", [[DROP, said]]]):
        made = record(content)
        if change.is_valid(made):
            assert all(map(stays_inside, change.paths_of(made) + change.targets_of(made)))


def operations(path: str) -> list[list[object]]:
    """Records that would do something there."""
    put = [PUT, MESSAGE, HEAD, len(BODY), 0]
    return [
        [[PUT, path, HEAD, len(BODY), 0]],
        [put, [SAME, path, MESSAGE, 0]],
        [put, [MOVE, MESSAGE, path, 0]],
        [put, [MOVE, path, MESSAGE, 0]],
        [put, [DROP, path]],
    ]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Of a replica in ``replica``."""
    for directory in (*layout.directories(), "../home"):
        (tmp_path / "replica" / directory).mkdir(parents=True)
    (tmp_path / "home" / "victim").write_bytes(HEAD + BODY)
    return tmp_path


def shipped(root: Path, said: list[object]) -> JournalCopy:
    """A replica that was sent a record with these operations, with its checksums right."""
    start, size, epoch = 1 << 20, 1 << 20, 5
    lsn = start + SECTOR_BYTES
    entry = Entry(1, msgpack.packb(["x", said]), [BODY])
    data = b"".join(map(bytes, record_of(entry, lsn, lsn, epoch << EPOCH_BITS)))
    with closing(DirectoryFileSystem(root, keep_unsynced=False)) as fs:
        copy = JournalCopy(fs, epoch, lsn)
        copy.take(Piece(epoch, start, size, 0, lsn, data, lsn + len(data), (epoch, lsn + len(data))))
        copy.follow()
    return copy


def tree(root: Path) -> dict[str, bytes]:
    found = (Path(above) / name for above, _, names in os.walk(root) for name in names)
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


@pytest.mark.parametrize(
    "path", ["../home/victim", "../home/new", "lock", "committed/../../home/victim", "ABSOLUTE", ""]
)
@pytest.mark.parametrize("which", range(5))
def test_a_source_writes_nowhere_but_in_its_replica(outside: Path, path: str, which: int) -> None:
    before = tree(outside)
    with pytest.raises(Diverged, match="has come damaged"):
        shipped(outside / "replica", operations(path.replace("ABSOLUTE", str(outside / "home/victim")))[which])
    assert tree(outside) == before


def test_what_is_of_the_space_is_taken(outside: Path) -> None:
    shipped(outside / "replica", operations(layout.message_path("q", 8, ID))[2])
    there = tree(outside / "replica")
    assert there[layout.message_path("q", 8, ID)] == HEAD + BODY


@pytest.mark.parametrize(
    "linked", ["committed", "committed/queue=q", "committed/queue=q/range=0000000000000", "journal"]
)
def test_no_link_leads_out_of_a_replica(outside: Path, linked: str) -> None:
    place = outside / "replica" / linked
    place.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        place.rmdir()
    place.symlink_to(outside / "home")
    before = tree(outside / "home")
    with pytest.raises(SpaceError, match="a link may lead anywhere"):
        shipped(outside / "replica", operations(layout.message_path("q", 8, ID))[4])
    assert tree(outside / "home") == before


@pytest.mark.parametrize(
    "change_it",
    [
        lambda fields: fields["copies"].update({"../../FORMAT": 1}),
        lambda fields: fields["queues"].update({"../x": [1, 1, 1]}),
        lambda fields: fields.update(files="many"),
        lambda fields: fields.update(queues=[]),
        lambda fields: fields.update(space="../.."),
    ],
)
def test_a_manifest_names_nothing_else(tmp_path: Path, change_it: Callable[[dict[str, object]], object]) -> None:
    """Its checksum says only that nobody changed it by accident."""
    fields = {
        **{"number": 1, "space": "xaqueue 1 orders id", "taken_at": 1, "sync": "NONE", "epoch": 1, "lsn": 0},
        **{"queues": {"q": [0, 0, 0]}, "files": 0, "names": 0, "copies": {}, "journal": 0},
    }

    def read() -> manifest.Manifest:
        text = json.dumps({"snapshot": fields, "crc": crc32(json.dumps(fields, sort_keys=True).encode())})
        (tmp_path / MANIFEST).write_text(text)
        with closing(DirectoryFileSystem(tmp_path)) as fs:
            return manifest.read(fs, "")

    assert read().queues == {"q": (0, 0, 0)}
    change_it(fields)
    with pytest.raises(SpaceError, match="is damaged"):
        read()


@pytest.mark.parametrize("removed", ["../home", "/tmp", "removed/../../home", "removed/", 7, None])
def test_a_restore_that_was_cut_off_moves_nothing_elsewhere(outside: Path, removed: object) -> None:
    root = outside / "replica"
    done = {"snapshot": 1, "taken_at": 1, "removed": removed, "messages": 0, "newer": 0, "lost": 0, "branches": []}
    (root / restore.PLACE).mkdir()
    (root / restore.PLACE / layout.FORMAT).write_text("xaqueue 1 orders id")
    (root / restore.READY).write_text(json.dumps(done))
    before = tree(outside)
    with closing(DirectoryFileSystem(root)) as fs, pytest.raises(SpaceError, match="READY is damaged"):
        restore.finish(fs)
    assert tree(outside) == before
