"""Whatever mends a space may be killed before any of its changes, and does the rest when it runs again; nothing that
stood there is destroyed. A dry run in between changes nothing."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.harms import blocks, garbled, harmed, littered, replaceable, torn
from xaqueue.core.model import layout
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import write_then_sync
from xaqueue.errors import SpaceError
from xaqueue.features.snapshots.restored import REMOVED
from xaqueue.features.snapshots.restoring import restore
from xaqueue.offline import aside
from xaqueue.offline.check import check, repair
from xaqueue.offline.findings import Severity
from xaqueue.offline.plan import Rehearsal, Site
from xaqueue.offline.reconstruct import reconstruct
from xaqueue.offline.salvage import salvage
from xaqueue.testing.crashing import CHANGES, Crashed

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("quiet")]

YEAR_S = 365 * 86_400
KEPT = (layout.COMMITTED, layout.PREPARED, layout.HEURISTIC, layout.QUARANTINE, REMOVED, layout.JOURNAL)


class Killed(DirectoryFileSystem):
    """Its process is killed before it changes the names or the content of files once more."""

    write_synced = write_then_sync

    def __init__(self, root: Path, after: int) -> None:
        super().__init__(root, keep_unsynced=False)
        self.left = after
        self.is_dead = False


def dying(name: str) -> Callable[..., Any]:
    def call(fs: Killed, *arguments: Any) -> Any:
        if fs.is_dead or (fs.left == 0 and not name.startswith("sync")):
            fs.is_dead = True
            raise Crashed(name)
        fs.left -= not name.startswith("sync")
        return getattr(DirectoryFileSystem, name)(fs, *arguments)

    return call


for _name in CHANGES:
    setattr(Killed, _name, dying(_name))


class OnDisk(Rehearsal):
    """In earnest, on files of which a test can be the killer; without a lock, and without threads."""

    def __init__(self, root: Path, fs: Killed) -> None:
        super().__init__(root)
        self._fs = fs  # type: ignore[assignment]

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        yield


def salvaged(site: Site) -> None:
    with suppress(SpaceError):  # "is sound": it was killed when that was done
        salvage(site)


DOORS: dict[str, tuple[Callable[[Path], Path], Callable[[Site], object]]] = {
    "check": (harmed, repair),
    "reconstruct": (garbled, reconstruct),
    "salvage-journal": (torn, salvaged),
    "restore": (replaceable, restore),
    "clean": (littered, lambda site: aside.clean(site, YEAR_S)),
}


def contents(root: Path) -> set[bytes]:
    """Of messages, blocks and definitions, wherever they stand; a segment that is written to is none of these."""
    paths = [root / layout.FORMAT, root / layout.QUEUES, *(path for name in KEPT for path in (root / name).rglob("*"))]
    files = [path for path in paths if path.is_file() and path.suffix not in (".reason", ".log")]
    return {path.read_bytes() for path in files if path.name not in (".watermark", "old")}


def tree(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in root.rglob("*")}


def state(root: Path) -> tuple[object, ...]:
    assert [found for found in check(root) if found.severity is Severity.DAMAGE and found.movable] == []
    with xaqueue.connect(root) as connection:
        bodies = sorted(message.body for message in connection.browse("orders"))
        return (
            bodies,
            sorted(connection.tpc_recover(), key=str),
            sorted(path.name for path in root.glob("removed/mine")),
        )


@pytest.mark.parametrize(("make", "mend"), DOORS.values(), ids=DOORS)
def test_it_goes_on(tmp_path: Path, make: Callable[[Path], Path], mend: Callable[[Site], object]) -> None:
    begin = make(tmp_path / "begin")
    done = shutil.copytree(begin, tmp_path / "done")
    mend(Site(done))
    wanted = state(done)
    for after in itertools.count():
        root = shutil.copytree(begin, tmp_path / "killed")
        before = contents(root)
        fs = Killed(root, after)
        with suppress(Crashed):
            mend(OnDisk(root, fs))
        fs.close()
        left = tree(root)
        mend(Rehearsal(root))
        assert tree(root) == left
        mend(Site(root))
        assert before <= contents(root)
        assert state(root) == wanted
        shutil.rmtree(root)
        if not fs.is_dead:
            break
    assert after > 10


def test_blocks_are_mended_again(tmp_path: Path) -> None:
    """What their tables were is nowhere kept: of each the other one says all of it."""
    begin = blocks(tmp_path / "begin")
    done = shutil.copytree(begin, tmp_path / "done")
    repair(Site(done))
    wanted = state(done)
    assert [found for found in check(done) if found.severity is Severity.DAMAGE] == []
    for after in itertools.count():
        root = shutil.copytree(begin, tmp_path / "killed")
        fs = Killed(root, after)
        with suppress(Crashed):
            repair(OnDisk(root, fs))
        fs.close()
        repair(Site(root))
        assert state(root) == wanted
        assert [found for found in check(root) if found.severity in (Severity.DAMAGE, Severity.LEFTOVER)] == []
        aside = {path.name.partition("~")[0] for path in (root / layout.QUARANTINE).iterdir()}
        assert aside == {path.name for path in (done / layout.QUARANTINE).iterdir()}
        shutil.rmtree(root)
        if not fs.is_dead:
            break
    assert after > 10
