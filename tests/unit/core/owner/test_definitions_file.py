"""queues.toml that cannot be used: the last good copy holds, with a warning, and an edit loses nothing."""

from __future__ import annotations

import errno
import fcntl
import itertools
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import xaqueue
from support.bare_space import bare_space, wall_clock
from support.forgetful import Crashed, Tree
from xaqueue.core.model import layout
from xaqueue.core.owner import definitions_file, open
from xaqueue.core.owner.definitions_file import keep_good, usable_definitions
from xaqueue.core.storage.owner_file import FileLock
from xaqueue.errors import InvalidArgument, RetryLater
from xaqueue.features import opening
from xaqueue.features.defining import queues_file
from xaqueue.features.opening import attach
from xaqueue.offline import inspect

TEXT = '[queues.orders]\norder = "lifo"\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A space that was open once, with one queue and a message."""
    root = tmp_path / "space"
    opening.create(root, sync="NONE")
    definitions_file.write_definitions(root, TEXT)
    with xaqueue.connect(root, sync="NONE") as connection:
        connection.enqueue("orders", b"first")
    return root


def no_toml(path: Path) -> None:
    path.write_text("[queues.orders")


def gone(path: Path) -> None:
    path.unlink()


def a_wrong_key(path: Path) -> None:
    path.write_text("[queues.orders]\ncolour = 3\n")


def a_wrong_value(path: Path) -> None:
    path.write_text('[space]\ncheckpoint_s = "often"\n')


def a_level_that_it_has_not(path: Path) -> None:
    path.write_text(f'{TEXT}sync = "FSYNC"\n')


def an_unknown_group(path: Path) -> None:
    path.write_text(f'{TEXT}[access]\ngroup = "no-such-group"\n')


DAMAGES = [no_toml, gone, a_wrong_key, a_wrong_value, a_level_that_it_has_not, an_unknown_group]


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_last_good_copy_holds(root: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture) -> None:
    """STD-18: whatever is wrong with queues.toml keeps no space shut."""
    damage(root / layout.QUEUES)
    with caplog.at_level(logging.WARNING, "xaqueue"), xaqueue.connect(root, sync="NONE") as connection:
        message = connection.dequeue("orders")
        assert message is not None
        assert message.body == b"first"
        connection.rollback()
    assert "its last good copy holds" in caplog.text
    if damage not in DAMAGES[-2:]:  # of which only who opens it knows
        assert "its last good copy holds" in inspect.status(root).complaint
    assert (root / layout.GOOD_QUEUES).read_text() == TEXT
    definitions_file.write_definitions(root, "[queues.other]\n")
    assert list(usable_definitions(root)[0].queues) == ["other"]


@pytest.mark.parametrize("table", ["queues.orders", "default"])
def test_by_a_copy_that_stands_in_nothing_is_too_old(
    tmp_path: Path, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The edit that is refused may have been to keep it. Once the file is mended, what that says holds."""
    root, text = tmp_path / "old", f"[{table}]\nmax_age_s = 50\n"
    with bare_space(root, "NONE", lambda: wall_clock() - 100_000_000) as bare:
        bare.put("orders", b"first")
    definitions_file.write_definitions(root, text)
    keep_good(root)
    a_wrong_value(root / layout.QUEUES)
    with caplog.at_level(logging.WARNING, "xaqueue"):
        assert bodies(root) == [b"first"]
    assert "but for max_age_s and persistent: nothing is removed" in caplog.text
    definitions_file.write_definitions(root, text)
    assert bodies(root) == []


def bodies(root: Path) -> list[bytes]:
    with xaqueue.connect(root, sync="NONE") as connection:
        message = connection.dequeue("orders")
        connection.rollback()
    return [] if message is None else [message.body]


def test_without_a_copy_the_error_names_the_command(root: Path) -> None:
    (root / layout.GOOD_QUEUES).unlink()
    no_toml(root / layout.QUEUES)
    with pytest.raises(InvalidArgument, match=r"`xaqueue reconstruct -m --space "):
        xaqueue.connect(root)
    gone(root / layout.QUEUES)
    assert usable_definitions(root) == (open.read_definitions(root), "")


def test_without_a_copy_what_somebody_wrote_wrong_is_refused(root: Path) -> None:
    (root / layout.GOOD_QUEUES).unlink()
    a_wrong_key(root / layout.QUEUES)
    with pytest.raises(InvalidArgument, match="colour"):
        xaqueue.connect(root)


def test_an_edit_of_what_is_gone_begins_with_the_copy(root: Path) -> None:
    gone(root / layout.QUEUES)
    queues_file.define(root, "more", {})
    assert list(open.read_definitions(root).queues) == ["orders", "more"]


def test_a_copy_that_cannot_be_written_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    definitions_file.write_definitions(root, "[queues.new]\n")
    fs = Tree({layout.GOOD_QUEUES: TEXT.encode()}).open()
    fs.fail_after = 0
    monkeypatch.setattr(definitions_file, "DirectoryFileSystem", lambda *_, **_modes: fs)
    keep_good(root)
    assert "no good copy of queues.toml is kept" in caplog.text


def test_a_crash_leaves_one_copy_or_the_other(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    definitions_file.write_definitions(root, "[queues.new]\n")
    seen = set()
    for crash_after in itertools.count():
        fs = Tree({layout.GOOD_QUEUES: TEXT.encode()}).open(crash_after)
        monkeypatch.setattr(definitions_file, "DirectoryFileSystem", lambda *_, fs=fs, **_modes: fs)
        try:
            keep_good(root)
        except Crashed:
            seen |= {tree.nodes[layout.GOOD_QUEUES] for tree in (*fs.trees_after_crash(), fs.tree_after_kill())}
        else:
            break
    assert seen == {TEXT.encode(), b"[queues.new]\n"}
    assert {tree.nodes[layout.GOOD_QUEUES] for tree in fs.trees_after_crash()} == {b"[queues.new]\n"}


def test_what_is_defined_is_in_the_copy_at_once(root: Path) -> None:
    """Also where nobody watches the file: it may be lost before the next open."""
    session = attach(root, sync="NONE", watch=False)
    session.define("later", {"order": "lifo"})
    assert (root / layout.GOOD_QUEUES).read_text() == (root / layout.QUEUES).read_text()
    session.close()
    gone(root / layout.QUEUES)
    assert list(usable_definitions(root)[0].queues) == ["orders", "later"]


def test_an_edit_waits_for_that_of_another_process(root: Path) -> None:
    other = os.open(root, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    editing = threading.Thread(target=queues_file.define, args=(root, "mine", {}), name="editing")
    editing.start()
    definitions_file.write_definitions(root, f"{TEXT}[queues.theirs]\n")
    os.close(other)
    editing.join()
    assert sorted(open.read_definitions(root).queues) == ["mine", "orders", "theirs"]


def test_no_edit_is_lost_to_another_process(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that read the same text would each write their own: the lock is held from the reading on."""
    other = FileLock(root, create=False)
    assert other.acquire()
    monkeypatch.setattr(queues_file, "EDIT_S", 0.0)
    with xaqueue.connect(root, sync="NONE") as connection:
        for call in (
            lambda: connection.define("later"),
            lambda: connection.undefine("orders"),
            lambda: queues_file.define(root, "later", {}),
            lambda: queues_file.edit_definitions(root, lambda text: text + "\n[queues.later]\n"),
        ):
            with pytest.raises(RetryLater, match="by another process"):
                call()
    assert (root / layout.QUEUES).read_text() == TEXT
    other.release()
    other = FileLock(root, create=False)

    def edit(text: str) -> str:
        assert not other.acquire()
        return text

    queues_file.edit_definitions(root, edit)
    assert other.acquire()
    other.release()


def test_where_no_directory_can_be_locked_it_is_edited(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EBADF, "as NFS")

    monkeypatch.setattr(fcntl, "flock", refused)
    assert list(queues_file.define(root, "later", {}).queues) == ["orders", "later"]
