"""A space is put back as it was at a moment between its snapshots."""

from __future__ import annotations

import json
import random
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from typer.testing import CliRunner

import xaqueue
from xaqueue.cli.main import app
from xaqueue.core.model import definitions
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.journal import time_entry
from xaqueue.core.storage.journal_format import record_of, records_in
from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.features.snapshots.chores import TakeSnapshots
from xaqueue.features.snapshots.manifest import KEPT_JOURNAL
from xaqueue.features.snapshots.restoring import restore
from xaqueue.features.snapshots.store import prune_journal
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity

KEEPS = '[default]\n[space]\nsync = "JOURNAL"\njournal_segment_bytes = 65536\n[snapshots]\n'
QUEUES = ("a", "b")
LARGE = 1_200_000
"""More than a branch keeps in memory: its block goes to active/."""

State = dict[str, list[bytes]]


def now_us() -> int:
    return time.time_ns() // 1000


def seen(connection: xaqueue.Connection) -> State:
    return {queue: sorted(bytes(one.body) for one in connection.browse(queue)) for queue in QUEUES}


@dataclass
class History:
    """What a space held, by the moments between which that was so for certain."""

    root: Path
    model: dict[str, list[bytes]] = field(default_factory=lambda: {queue: [] for queue in QUEUES})
    states: list[tuple[int, State]] = field(default_factory=list)
    """From when on it was so: at that moment nothing was under way."""
    steps: int = 0

    def note(self) -> None:
        time.sleep(0.0002)
        self.states.append((now_us(), {queue: sorted(bodies) for queue, bodies in self.model.items()}))
        time.sleep(0.0002)

    def step(self, connection: xaqueue.Connection, draw: random.Random) -> None:
        self.steps += 1
        queue = draw.choice(QUEUES)
        size = LARGE if self.steps % 17 == 0 else draw.choice((10, 3000))
        body = (b"%d " % self.steps).ljust(size, b".")
        is_prepared = self.steps % 2 == 0
        if is_prepared:
            connection.tpc_begin(connection.xid(1, f"step {self.steps}", "b"))
        if draw.random() < 0.4:
            taken = connection.dequeue(queue)
            if taken is not None:
                self.model[queue].remove(bytes(taken.body))
        connection.enqueue(queue, body)
        self.model[queue].append(body)
        if is_prepared:
            connection.tpc_prepare()
            connection.tpc_commit()
        else:
            connection.commit()
        self.note()


def recorded(root: Path) -> History:
    """Of four openings, with a snapshot in each but the last two."""
    history, draw = History(root), random.Random(16)
    for life in range(4):
        with xaqueue.connect(root, create=True, sync="JOURNAL") as connection:
            for number in range(25):
                history.step(connection, draw)
                if number == 12 and life < 2:
                    connection.snapshot()
                    history.note()
    return history


@pytest.fixture(scope="module", autouse=True)
def none_by_itself() -> Iterator[None]:
    """Snapshots are taken where a test says so."""
    with mock.patch.object(TakeSnapshots, "left_of_interval_s", return_value=threading.TIMEOUT_MAX):
        yield


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    root = tmp_path_factory.mktemp("history") / "space"
    root.mkdir()
    (root / "queues.toml").write_text(KEEPS)
    return recorded(root)


def test_it_is_what_it_was_at_twenty_moments(history: History) -> None:
    """One after the other, each from the same space: who has chosen the wrong moment chooses another one."""
    first = history.states[13][0]
    last = history.states[-1]
    moments = [last, *random.Random(7).sample([one for one in history.states if one[0] > first], 20), last]
    for at_us, state in moments:
        done = restore(history.root, at_us=at_us)
        assert (done.at, done.newer) == (at_us, 0)
        assert done.messages == sum(map(len, state.values()))
        assert not [finding for finding in check(history.root) if finding.severity is Severity.DAMAGE]
        with xaqueue.connect(history.root) as connection:
            assert seen(connection) == state
            assert all(one.possible_duplicate for queue in QUEUES for one in connection.browse(queue))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "space"
    path.mkdir()
    (path / "queues.toml").write_text(KEEPS)
    return path


def sent(root: Path, *bodies: bytes, snapshot: bool = False) -> int:
    """In an opening of its own; returns a moment behind it."""
    with xaqueue.connect(root, create=True) as connection:
        for body in bodies:
            connection.enqueue("a", body)
            connection.commit()
        if snapshot:
            connection.snapshot()
    time.sleep(0.001)
    return now_us()


def bodies(root: Path) -> list[bytes]:
    with xaqueue.connect(root) as connection:
        return [bytes(one.body) for one in connection.browse("a")]


def without_point_in_time(root: Path) -> None:
    (root / "queues.toml").write_text(KEEPS + "point_in_time = false\n")
    sent(root, b"3")
    (root / "queues.toml").write_text(KEEPS)


def at_another_level(root: Path) -> None:
    (root / "queues.toml").write_text(KEEPS.replace("JOURNAL", "NONE"))
    sent(root, b"3")
    (root / "queues.toml").write_text(KEEPS)


def lost_segment(root: Path) -> None:
    kept = sorted((root / KEPT_JOURNAL).iterdir())
    assert len(kept) > 1
    kept[-1].unlink()


def damaged_segment(root: Path) -> None:
    """Its first record behind the snapshot, with good ones behind it."""
    segment = sorted((root / KEPT_JOURNAL).iterdir())[-1]
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"first", b"FIRST", 1))


def lost_end(root: Path) -> None:
    """All from its first message on."""
    segment = sorted((root / KEPT_JOURNAL).iterdir())[-1]
    data = segment.read_bytes()
    segment.write_bytes(data[: data.index(b"first")].ljust(len(data), b"\0"))


ALL = [b"1", b"first", b"second"]
GAPS: dict[Callable[[Path], None], list[bytes]] = {
    lost_end: [b"1"],
    without_point_in_time: ALL,
    at_another_level: ALL,
    lost_segment: [],
    damaged_segment: [b"1"],
}


@pytest.mark.parametrize("gap", GAPS)
def test_behind_a_gap_nothing_is_told(root: Path, gap: Callable[[Path], None]) -> None:
    """And nothing is changed; up to the moment that the error names it can be."""
    sent(root, b"1", snapshot=True)
    sent(root, b"first", b"second")
    sent(root)
    gap(root)
    behind = sent(root, b"4")
    before = sorted(path.name for path in root.iterdir() if not path.name.startswith("."))
    with pytest.raises(SpaceError, match="is not known") as refused:
        restore(root, at_us=behind)
    assert sorted(path.name for path in root.iterdir() if not path.name.startswith(".")) == before
    match = re.search(r"up to ([^ ]+): restore", str(refused.value))
    assert (match is None) is (not GAPS[gap])
    if match is not None:
        done = CliRunner().invoke(app, ["restore", "--space", str(root), "--yes", "--at", match[1]])
        assert done.exit_code == 0, done.output
        assert bodies(root) == GAPS[gap]


def test_what_cannot_be_is_refused_by_name(root: Path) -> None:
    (root / "queues.toml").write_text(KEEPS.replace("JOURNAL", "NONE"))
    sent(root, b"1", snapshot=True)
    with pytest.raises(SpaceError, match="level NONE"):
        restore(root, at_us=now_us())
    with pytest.raises(SpaceError, match=r"no snapshot of before that.*`xaqueue snapshot list`"):
        restore(root, at_us=1)
    with pytest.raises(InvalidArgument, match="future"):
        restore(root, at_us=now_us() + 10**9)
    with pytest.raises(InvalidArgument, match="leave --snapshot out"):
        restore(root, 1, at_us=now_us())


def test_a_journal_that_is_lost_tells_nothing_behind_what_was_kept(root: Path) -> None:
    sent(root, b"1", snapshot=True)
    moment = sent(root, b"2")
    sent(root)
    late = sent(root, b"3")
    shutil.rmtree(root / "journal")
    with pytest.raises(SpaceError, match="is lost"):
        restore(root, at_us=late)
    assert restore(root, at_us=moment - 500).messages in (1, 2)


def test_what_a_former_owner_writes_late_is_passed_over(root: Path) -> None:
    """It was stopped before that call, and the next owner had taken the space over when it was continued."""
    sent(root, b"1", snapshot=True)
    sent(root, b"2")
    former = max((root / "journal").glob("*.log"), key=lambda path: path.stat().st_mtime_ns)
    former = root / KEPT_JOURNAL / former.name
    moment = sent(root, b"3")
    sent(root, b"4")
    start = int(former.name.split(".")[1], 16)
    *_, last = records_in(former.read_bytes(), start)
    late = b"".join(record_of(time_entry(now_us()), last.end, last.end, last.epoch))
    with former.open("r+b") as segment:
        segment.seek(last.end - start)
        segment.write(late)
    restore(root, at_us=moment)
    assert bodies(root) == [b"1", b"2", b"3"]


def test_a_branch_in_doubt_at_that_moment_is_an_operators(root: Path) -> None:
    sent(root, b"1", snapshot=True)
    with xaqueue.connect(root) as connection:
        xid = connection.xid(7, "in doubt", "b")
        connection.tpc_begin(xid)
        connection.enqueue("a", b"2".ljust(LARGE, b"."))
        connection.tpc_prepare()
        time.sleep(0.001)
        moment = now_us()
        time.sleep(0.001)
        connection.tpc_commit()
    assert len(restore(root, at_us=moment).branches) == 1
    assert bodies(root) == [b"1"]


def test_what_no_snapshot_needs_goes(root: Path) -> None:
    for number in range(4):
        sent(root, *(b"%d" % number for number in range(40)), b"x" * 200_000, snapshot=True)
    kept = sorted(path.name for path in (root / KEPT_JOURNAL).iterdir())
    assert [int(path.name) for path in (root / "snapshots").iterdir() if path.name.isdigit()] != [1]
    manifest = json.loads((root / "snapshots" / "2" / "MANIFEST").read_text())["snapshot"]
    assert kept
    assert all(name.split(".")[0] >= f"{manifest['journal']:016x}" for name in kept)
    done = CliRunner().invoke(app, ["--space", str(root), "snapshot", "rm", "2", "3", "4"])
    assert done.exit_code == 0, done.output
    assert not list((root / KEPT_JOURNAL).iterdir())


class Contested(DirectoryFileSystem):
    """Whenever the journal that is kept was listed, somebody else takes the oldest segment of it away."""

    def list(self, path: str) -> list[str]:
        names = super().list(path)
        if path == KEPT_JOURNAL and names:
            self.unlink(f"{path}/{min(names)}")
        return names


def test_two_may_remove_what_nobody_needs(root: Path) -> None:
    sent(root, *(b"%d" % number for number in range(40)), b"x" * 200_000, snapshot=True)
    sent(root, b"x" * 200_000)
    assert len(list((root / KEPT_JOURNAL).iterdir())) > 1
    prune_journal(Contested(root), for_snapshots=False)
    assert not list((root / KEPT_JOURNAL).iterdir())


def test_of_a_block_each_message_is_as_it_was_then(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of blocks of many messages from before the snapshot and behind it, some taken at each moment, one wholly."""
    monkeypatch.setattr(definitions, "BLOCKS", definitions.MANY)
    model, states = list[bytes](), list[tuple[int, list[bytes]]]()
    with xaqueue.connect(root, create=True) as connection:
        for number in range(12):
            if number == 3:
                connection.snapshot()
            if number % 2 == 0:
                new = [b"%d.%d" % (number, each) for each in range(30)]
                connection.enqueue_many("a", new)
                model += new
            else:
                taken = [bytes(message.body) for message in connection.dequeue_many("a", 3 * number + 4)]
                assert taken == model[: len(taken)]
                del model[: len(taken)]
            connection.commit()
            time.sleep(0.002)
            states.append((now_us(), list(model)))
            time.sleep(0.002)
    assert any("+" in path.name for path in root.glob("snapshots/1/committed/queue=a/range=*/*"))
    assert list(root.glob("snapshots/1/committed/queue=a/.gone/*"))
    for at_us, wanted in states[3:]:
        shutil.copytree(root, copy := tmp_path / f"{at_us}")
        done = restore(copy, at_us=at_us)
        with xaqueue.connect(copy) as connection:
            found = [bytes(message.body) for message in connection.browse("a")]
        assert found == wanted
        assert done.messages == len(wanted)
        assert [one for one in check(copy) if one.severity is Severity.DAMAGE] == []
