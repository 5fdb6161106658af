"""Who may read what a space or a decision log makes: its user alone, whatever the umask, or the group of [access]."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

import xaqueue
from support.contract_batches import batch, prepared
from support.patience import eventually
from xaqueue.cli.main import app
from xaqueue.core.engine import heuristics
from xaqueue.core.model import layout
from xaqueue.core.owner import definitions_file, open
from xaqueue.core.storage import modes as modes_of
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.modes import BY_UMASK, PRIVATE, Modes, for_group, heir_of
from xaqueue.errors import InvalidArgument
from xaqueue.features import opening
from xaqueue.features.counters.values import COUNTERS
from xaqueue.features.retries.register import TRIES
from xaqueue.features.session import Session, attach
from xaqueue.offline import inspect
from xaqueue.offline.check import check
from xaqueue.offline.reader import QueueReader
from xaqueue.offline.salvage import salvage
from xaqueue.tm.log_directory import open_log
from xaqueue.tm.manager import TransactionManager
from xaqueue.xid import Xid

NOBODY = 65534
GROUP = 60
"""Any that the tests' own user does not have as its first; only root may give files to it."""
FRESH_S = 0.05
STREAM = "query#8c1"
BRANCH = Xid(7, b"one", b"of two phases")
STRICT, JOURNAL = "FSYNC;DSYNC", "JOURNAL"
ALWAYS = {layout.FORMAT, layout.LOCK, layout.OWNER, layout.QUEUES, layout.RESERVE, layout.ARCHIVE, layout.OPERATORS}
ALWAYS |= set(layout.directories())
MADE = {STRICT: ALWAYS, JOURNAL: ALWAYS | {layout.JOURNAL, TRIES}}
"""The names at the top of a space that has lived."""

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture(params=[STRICT, JOURNAL])
def sync(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that others can go through, unlike pytest's."""
    made = Path(tempfile.mkdtemp(prefix="xaqueue-modes-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


under = pytest.mark.parametrize("umask", [0, 0o022, 0o077], indirect=True, ids=oct)


class Seen:
    """The rights of everything that ever stood in a directory while somebody looked."""

    def __init__(self, root: Path, shared: int = 0) -> None:
        """shared: a right that all get, and what a thread is making gets last, however long that thread sleeps."""
        self.root, self.shared = root, shared
        self.files: dict[str, int] = {}
        self.directories: dict[str, int] = {}
        self.groups: set[int] = set()

    def look(self) -> None:
        for directory, _, names in os.walk(self.root):
            for path in (Path(directory), *(Path(directory, name) for name in names)):
                with suppress(FileNotFoundError):
                    found = path.lstat()
                    if time.time() - found.st_ctime < FRESH_S:  # a thread is making it, and its owner comes last
                        time.sleep(FRESH_S)
                    with suppress(AssertionError):
                        eventually(partial(self._is_shared, path))
                    found = path.lstat()
                    told = self.directories if stat.S_ISDIR(found.st_mode) else self.files
                    told[str(path.relative_to(self.root))] = stat.S_IMODE(found.st_mode)
                    self.groups.add(found.st_gid)

    def _is_shared(self, path: Path) -> bool:
        return path.lstat().st_mode & self.shared == self.shared

    def odd(self, file: int, directory: int) -> dict[str, str]:
        """Everything with other rights than these."""
        odd = {name: mode for name, mode in self.files.items() if mode != file}
        odd |= {name: mode for name, mode in self.directories.items() if mode != directory}
        return {name: oct(mode) for name, mode in odd.items()}


def live(root: Path, sync: str, file: int, *, full: bool = False) -> Seen:
    """A life with all that a space makes; ``file``: the rights of a foreign file. full: with a range that is full."""
    seen = Seen(root, file & 0o070)
    session = attach(root, create_missing=True, sync=sync)
    seen.look()
    _branches(session, seen, layout.RANGE_SIZE if full else 5)
    _batches(session, seen)
    _stream(session, seen)
    session.close()
    seen.look()
    foreign = root / layout.COMMITTED / "foreign"
    foreign.touch()
    foreign.chmod(file)
    os.chown(foreign, -1, root.stat().st_gid)
    attach(root).close()
    seen.look()
    assert {name.partition("/")[0] for name in (*seen.files, *seen.directories)} >= MADE[sync]
    assert [name for name in seen.files if name.startswith(f"{layout.QUARANTINE}/") and name.endswith(".reason")]
    return seen


def _branches(session: Session, seen: Seen, messages: int) -> None:
    for name in (b"one", b"two"):
        xid = Xid(7, name, b"")
        session.start(xid)
        for _ in range(messages if name == b"one" else 5):
            session.enqueue("orders", b"x")
        seen.look()
        session.end(xid)
        session.prepare(xid)
        seen.look()
        session.commit(xid)
        seen.look()
    session.start(BRANCH)
    session.dequeue("orders")
    session.enqueue("bills", b"x")
    session.end(BRANCH)
    session.prepare(BRANCH)
    seen.look()
    heuristics.decide(session.space, BRANCH, True, "me@here", "why")
    seen.look()
    session.forget_by_hand(BRANCH, "me@here", "told")


def _batches(session: Session, seen: Seen) -> None:
    session.commit_all(batch(), [prepared(session, "a", batch()), prepared(session, "b", batch())])
    seen.look()


def _stream(session: Session, seen: Seen) -> None:
    session.reserve("bills", STREAM, 0, 1)
    session.consume("bills", STREAM, 1, archive=True)
    seen.look()
    eventually(lambda: any((seen.root / layout.ARCHIVE).glob("queue=bills/range=*/*")))
    seen.look()


@under
def test_a_space_is_private(tmp_path: Path, sync: str, umask: int) -> None:
    seen = live(tmp_path / "space", sync, 0o600, full=sync == JOURNAL and umask == 0)
    assert seen.odd(0o600, 0o700) == {}


@root_only
@under
def test_a_space_is_open_to_its_group(tmp_path: Path, sync: str, umask: int) -> None:
    root = tmp_path / "space"
    opening.create(root)
    definitions_file.write_definitions(root, f"{open.ANY_QUEUE}\n[access]\ngroup = '{GROUP}'\n")
    seen = live(root, sync, 0o640, full=sync == JOURNAL and umask == 0o077)
    assert seen.odd(0o640, 0o2750) == {}
    assert seen.groups == {GROUP}


@root_only
def test_a_space_that_is_defined_before_it_is_made_is_its_groups(tmp_path: Path) -> None:
    root = tmp_path / "space"
    root.mkdir()
    (root / layout.QUEUES).write_text(f"{open.ANY_QUEUE}\n[access]\ngroup = '{GROUP}'\n")
    xaqueue.connect(root, create=True).close()
    seen = Seen(root)
    seen.look()
    assert seen.groups == {GROUP}
    assert {name: mode for name, mode in seen.files.items() if mode & 0o040 == 0} == {}
    assert {name: mode for name, mode in seen.directories.items() if mode & 0o2050 != 0o2050} == {}


@under
def test_init_makes_a_private_space(tmp_path: Path, umask: int) -> None:
    assert CliRunner().invoke(app, ["init", str(tmp_path / "space")]).exit_code == 0
    seen = Seen(tmp_path / "space")
    seen.look()
    assert set(seen.files) == {layout.FORMAT, layout.QUEUES, COUNTERS}
    assert seen.odd(0o600, 0o700) == {}


@under
def test_a_decision_log_is_private_and_what_leads_to_it_is_not(tmp_path: Path, umask: int) -> None:
    root = tmp_path / "below" / "log"
    with TransactionManager(root, {"a": lambda: None}):
        seen = Seen(root)
        seen.look()
    seen.look()
    assert {"NODE", "lock", "owner"} < set(seen.files)
    assert seen.odd(0o600, 0o700) == {}
    assert stat.S_IMODE(root.parent.stat().st_mode) == 0o755 & ~umask


def test_what_is_there_keeps_its_rights(tmp_path: Path) -> None:
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True) as connection:
        connection.enqueue("orders", b"x")
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with xaqueue.connect(root) as connection:
        connection.enqueue("new", b"x")
    assert stat.S_IMODE(root.stat().st_mode) == 0o755
    assert [oct(path.stat().st_mode & 0o777) for path in root.glob("committed/queue=orders/range=*/*")] == ["0o644"]
    assert [oct(path.stat().st_mode & 0o777) for path in root.glob("committed/queue=new/range=*/*")] == ["0o600"]


def test_an_edit_keeps_the_rights_of_the_definitions(tmp_path: Path) -> None:
    root = tmp_path / "space"
    opening.create(root)
    (root / layout.QUEUES).chmod(0o664)
    if os.geteuid() == 0:
        os.chown(root / layout.QUEUES, NOBODY, GROUP)
    before = (root / layout.QUEUES).stat()
    assert CliRunner().invoke(app, ["define", "orders", "--space", str(root)]).exit_code == 0
    after = (root / layout.QUEUES).stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino


# The group


def as_nobody(group: int, call: Callable[[], object]) -> str:
    """What a call says that another user, with this group and no other, makes."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            told = repr(call())
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(write, told.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


def browsed(root: Path) -> list[bytes]:
    return [message.body for message in inspect.browse(root, "orders", lambda *_: None)]


def streamed(root: Path) -> int:
    reader = QueueReader(root, "orders", even_behind=True)
    return len(list(reader.read(0, reader.watermark())))


@root_only
@pytest.mark.parametrize("umask", [0o077], indirect=True, ids=oct)
def test_who_is_of_the_group_reads_and_nobody_else(place: Path, sync: str, umask: int) -> None:
    root = place / "space"
    opening.create(root, sync=sync, any_queue=True)
    with (root / layout.QUEUES).open("a") as definitions:
        definitions.write(f"\n[access]\ngroup = '{GROUP}'\n")
    browsed(root)  # and has loaded what it needs
    with closing(xaqueue.connect(root)) as connection:
        for number in range(3):
            connection.enqueue("orders", b"%d" % number)
        connection.commit()
        eventually(lambda: streamed(root) == 3)  # a journal is ahead of the directories
        assert as_nobody(GROUP, lambda: browsed(root)) == "[b'0', b'1', b'2']"
        assert as_nobody(GROUP, lambda: streamed(root)) == "3"
        assert as_nobody(GROUP, lambda: open.is_owned(root)) == "True"
        assert as_nobody(GROUP, lambda: (root / layout.QUEUES).open("a")).startswith("PermissionError")
        assert "Permission denied" in as_nobody(NOBODY, lambda: browsed(root))
    assert as_nobody(GROUP, lambda: len(list(check(root)))) == "0"


@pytest.mark.parametrize("name", ["no-such-group", "no such group", "4294967295", "99999999999999999999"])
def test_a_group_that_does_not_exist_is_told_at_open(tmp_path: Path, name: str) -> None:
    root = tmp_path / "space"
    opening.create(root)
    (root / layout.QUEUES).write_text(f"[access]\ngroup = '{name}'\n")
    with pytest.raises(
        InvalidArgument, match=rf"queues.toml: \[access\] group = '{name}': this host has no such group"
    ):
        xaqueue.connect(root)
    with pytest.raises(InvalidArgument, match=r"\[access\] group"):
        salvage(root)
    assert not (root / layout.LOCK).exists()


@root_only
def test_a_group_that_one_is_no_member_of_is_told_at_open(place: Path) -> None:
    root = place / "space"
    opening.create(root)
    (root / layout.QUEUES).write_text("[access]\ngroup = 'games'\n")
    for path in (root, *root.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    told = as_nobody(NOBODY, lambda: xaqueue.connect(root))
    assert told.startswith("InvalidArgument: queues.toml: [access] group = 'games': this process is no member of it")
    assert "make user 65534 one (usermod -aG)" in told
    assert as_nobody(GROUP, lambda: xaqueue.connect(root).close()) == "None"
    assert (root.stat().st_gid, stat.S_IMODE(root.stat().st_mode)) == (GROUP, 0o2750)


@root_only
def test_a_directory_of_another_user_is_told_with_the_key(place: Path) -> None:
    root = place / "space"
    opening.create(root)
    (root / layout.QUEUES).write_text(f"[access]\ngroup = '{GROUP}'\n")
    for path in root.rglob("*"):
        os.chown(path, NOBODY, NOBODY)
    os.chown(root, 0, GROUP)
    root.chmod(0o770)
    told = as_nobody(GROUP, lambda: xaqueue.connect(root))
    assert told.startswith(f"SpaceError: {root} cannot be given to the group of [access] in queues.toml (Operation not")
    root.chmod(0o2770)
    assert as_nobody(GROUP, lambda: xaqueue.connect(root).close()) == "None", "there was nothing to give"


@root_only
def test_links_and_what_has_more_rights_are_left_as_they_are(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "space", tmp_path / "queues"
    opening.create(root)
    elsewhere.write_text(f"[access]\ngroup = '{GROUP}'\n")
    elsewhere.chmod(0o600)
    (root / layout.QUEUES).unlink()
    (root / layout.QUEUES).symlink_to(elsewhere)
    (root / layout.FORMAT).chmod(0o664)
    (root / layout.FORMAT).with_name("others").touch(0o600)
    xaqueue.connect(root).close()
    assert (stat.S_IMODE(elsewhere.stat().st_mode), elsewhere.stat().st_gid) == (0o600, os.getegid())
    assert stat.S_IMODE((root / layout.FORMAT).stat().st_mode) == 0o664
    assert stat.S_IMODE((root / "others").stat().st_mode) == 0o600, "it is none of the space's"


# Root in a directory of another user's


def given(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        os.chown(path, NOBODY, NOBODY)


@root_only
def test_what_root_makes_in_another_users_space_is_that_users(tmp_path: Path, sync: str) -> None:
    root = tmp_path / "space"
    root.mkdir()
    os.chown(root, NOBODY, NOBODY)
    live(root, sync, 0o600)
    os.chown(root / layout.QUARANTINE / "committed.foreign", NOBODY, NOBODY)
    assert {path for path in root.rglob("*") if path.stat().st_uid != NOBODY} == set()


@root_only
def test_what_root_did_does_not_shut_the_user_out(place: Path) -> None:
    root = place / "space"
    opening.create(root, any_queue=True)
    given(root)
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"by root")
    told = as_nobody(NOBODY, lambda: xaqueue.connect(root).dequeue("orders").body)  # type: ignore[union-attr]
    assert told == repr(b"by root")


@root_only
def test_what_root_makes_in_another_users_decision_log_is_that_users(tmp_path: Path) -> None:
    root = tmp_path / "log"
    root.mkdir()
    os.chown(root, NOBODY, NOBODY)
    open_log(root).close()
    assert {path for path in root.rglob("*") if path.stat().st_uid != NOBODY} == set()


@root_only
def test_a_file_of_another_users_is_named_with_what_to_do(place: Path) -> None:
    root = place / "space"
    opening.create(root)
    given(root)
    (root / layout.OWNER).touch(0o600)
    told = as_nobody(NOBODY, lambda: xaqueue.connect(root))
    assert told.endswith(f"{root}/owner Permission denied: run this as the user that the space belongs to")


# The port


def calls_of(monkeypatch: pytest.MonkeyPatch, fs: DirectoryFileSystem) -> list[str]:
    """Which calls that set rights were made, for one of each that makes something."""
    made: list[str] = []

    def counted(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            made.append(name)
            return real(*arguments)

        return call

    for name in ("fchmod", "fchown", "chmod", "chown", "umask", "geteuid"):
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    fs.create("file", [b"x"])
    fs.write_at("place", 0, [b"x"])
    fs.make_dir("directory")
    fs.close()
    return made


@pytest.mark.parametrize("umask", [0o022], indirect=True)
@pytest.mark.parametrize("modes", [lambda: PRIVATE, lambda: BY_UMASK, for_group])
def test_rights_cost_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int, modes: Callable[[], Modes]
) -> None:
    fs = DirectoryFileSystem(tmp_path, modes=modes())
    assert calls_of(monkeypatch, fs) == []


@pytest.mark.parametrize("umask", [0o077], indirect=True)
def test_rights_that_the_umask_takes_cost_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int) -> None:
    fs = DirectoryFileSystem(tmp_path, modes=for_group())
    assert calls_of(monkeypatch, fs) == ["fchmod"] * 3


@pytest.mark.parametrize(
    ("umask", "masked"), [(0, False), (0o022, False), (0o027, False), (0o077, True), (0o700, True)], indirect=["umask"]
)
def test_the_umask_is_told_without_being_set(umask: int, masked: bool) -> None:
    assert for_group() == Modes(0o640, 0o2750, masked)
    assert os.umask(umask) == umask


def test_without_a_system_that_tells_the_umask_all_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes_of, "Path", lambda _: Path("/no/such/file"))
    assert for_group().masked


def test_only_root_has_heirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert heir_of(tmp_path / "missing") is None
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert heir_of("/") is None
