"""A changed queues.toml holds at once; a bad edit keeps the old definitions and says why."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from watchdog.events import FileCreatedEvent, FileModifiedEvent
from watchdog.observers.api import EventQueue, ObservedWatch
from watchdog.observers.inotify import InotifyEmitter

from support.bare_space import BareSpace
from xaqueue.core.model import definitions, layout
from xaqueue.core.model.order import Order
from xaqueue.core.owner import open as attach_room
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.core.owner.watches import DefinitionsWatch
from xaqueue.errors import UnknownQueue
from xaqueue.features.session import Session, attach
from xaqueue.xa import Flag
from xaqueue.xid import Xid

PATIENCE_S = 30.0


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    attach_room.create(tmp_path / "s", sync="NONE")
    write_definitions(tmp_path / "s", "[queues.orders]\n")
    opened = attach(tmp_path / "s", sync="NONE")
    yield opened
    opened.close()


def watch_of(root: Path) -> DefinitionsWatch:
    watch = attach_room._attached[root.resolve()].watch
    assert watch is not None
    return watch


def becomes(condition: Callable[[], bool]) -> bool:
    """Whether the condition holds before patience ends."""
    pause = threading.Event()
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.005)
    return True


def in_place(path: Path, text: str) -> None:
    path.write_text(text)


def from_elsewhere(path: Path, text: str) -> None:
    """Moved in from a directory that is not watched."""
    (path.parent.parent / "made elsewhere").write_text(text)
    (path.parent.parent / "made elsewhere").rename(path)


def by_replacement(path: Path, text: str) -> None:
    """As most editors and ``xaqueue define`` do it."""
    path.with_name(".queues.toml.new").write_text(text)
    path.with_name(".queues.toml.new").rename(path)


@pytest.mark.parametrize("edit", [in_place, by_replacement, from_elsewhere])
def test_a_good_edit_is_taken(session: Session, tmp_path: Path, edit: Callable[[Path, str], None]) -> None:
    edit(tmp_path / "s" / "queues.toml", "[queues.orders]\n[queues.replies]\n[space]\nmax_body_bytes = 10\n")
    assert becomes(lambda: "replies" in session.space.definitions.queues)
    assert becomes(lambda: session.space.definitions.max_body_bytes == 10)
    assert watch_of(tmp_path / "s").complaint == ""


@pytest.mark.parametrize("edit", [in_place, by_replacement, from_elsewhere])
def test_a_bad_edit_keeps_the_old_definitions_and_says_why(
    session: Session,
    tmp_path: Path,
    edit: Callable[[Path, str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "xaqueue")
    old = session.space.definitions
    watch = watch_of(tmp_path / "s")
    edit(tmp_path / "s" / "queues.toml", "[queues.orders]\norder = 'random'\n")
    assert becomes(lambda: "fifo, lifo or priority is wanted" in watch.complaint)
    assert session.space.definitions is old
    assert becomes(lambda: "the old definitions hold" in caplog.text)
    edit(tmp_path / "s" / "queues.toml", "[queues.orders]\norder = 'lifo'\n")
    assert becomes(lambda: session.space.definitions.queues["orders"].order is Order.LIFO)
    assert becomes(lambda: watch.complaint == "")


def test_a_file_that_is_being_written_is_not_read_yet(session: Session, tmp_path: Path) -> None:
    """Or an edit in place would define nothing for a moment, and for good where the edit is a bad one."""
    old = session.space.definitions
    path = tmp_path / "s" / "queues.toml"
    watch = watch_of(tmp_path / "s")
    with path.open("w") as half_written:
        for event in (FileModifiedEvent(str(path)), FileCreatedEvent(str(path))):
            watch.on_any_event(event)
        assert session.space.definitions is old
        half_written.write("[queues.whole]\n")
    assert becomes(lambda: list(session.space.definitions.queues) == ["whole"])


def test_a_removed_file_keeps_the_old_definitions(session: Session, tmp_path: Path) -> None:
    old = session.space.definitions
    (tmp_path / "s" / "queues.toml").unlink()
    watch = watch_of(tmp_path / "s")
    watch.reload()
    assert session.space.definitions is old
    assert "queues.toml" in watch.complaint


def test_a_reading_that_is_older_undoes_no_definition(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever defines a queue while the file is being read again has it from then on."""
    watch = watch_of(tmp_path / "s")
    watch.stop()
    definer = threading.Thread(target=session.define, args=("later", {"order": "lifo"}))
    read = definitions.read

    def read_and_wait(space: Path) -> str:
        text = read(space)
        if threading.current_thread() is threading.main_thread():
            definer.start()
            definer.join(0.2)
        return text

    monkeypatch.setattr(definitions, "read", read_and_wait)
    watch.reload()
    definer.join(PATIENCE_S)
    assert session.space.definitions.queues["later"].order is Order.LIFO


def test_bytes_that_are_no_text_are_a_bad_edit(session: Session, tmp_path: Path) -> None:
    old = session.space.definitions
    (tmp_path / "s" / "queues.toml").write_bytes(b"\xff\xfe")
    watch = watch_of(tmp_path / "s")
    assert becomes(lambda: "utf-8" in watch.complaint)
    assert session.space.definitions is old


def test_a_new_order_holds_for_messages_that_are_there(session: Session, tmp_path: Path) -> None:
    for number in range(3):
        xid = Xid(1, b"%d" % number, b"")
        session.start(xid)
        session.enqueue("orders", b"%d" % number)
        session.end(xid)
        session.commit(xid, Flag.ONEPHASE)
    by_replacement(tmp_path / "s" / "queues.toml", "[queues.orders]\norder = 'lifo'\n")
    assert becomes(lambda: session.space.definitions.queues["orders"].order is Order.LIFO)
    assert becomes(lambda: [message.body for message in session.browse("orders")] == [b"2", b"1", b"0"])


def test_a_queue_that_is_no_longer_defined_is_refused(session: Session, tmp_path: Path) -> None:
    by_replacement(tmp_path / "s" / "queues.toml", "[queues.replies]\n")
    assert becomes(lambda: "orders" not in session.space.definitions.queues)
    session.start(Xid(1, b"x", b""))
    with pytest.raises(UnknownQueue):
        session.enqueue("orders", b"")


def test_other_files_in_the_directory_are_of_no_interest(session: Session, tmp_path: Path) -> None:
    (tmp_path / "s" / "queues.toml.swp").write_text("[queues")
    by_replacement(tmp_path / "s" / "queues.toml", "[queues.after]\n")
    assert becomes(lambda: "after" in session.space.definitions.queues)


def test_without_a_watch_the_start_holds_and_a_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class NoWatches:
        daemon = False

        def schedule(self, *_: object, **__: object) -> None:
            raise OSError(24, os.strerror(24))

        def is_alive(self) -> bool:
            return False

    monkeypatch.setattr("xaqueue.core.owner.watches.Observer", NoWatches)
    with caplog.at_level(logging.WARNING, "xaqueue"):
        attach(tmp_path / "s", create_missing=True, sync="NONE").close()
    assert "queues.toml is not watched" in caplog.text


def test_events_that_come_while_the_watch_stops_are_nobodys_concern(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    emitter = InotifyEmitter(EventQueue(), ObservedWatch(str(tmp_path), recursive=False))
    emitter.queue_events(0)  # as it does once it was told to stop
    assert caplog.messages == []


def test_an_edit_before_the_watch_starts_is_taken(strict: BareSpace) -> None:
    (strict.root / layout.QUEUES).write_text('[queues.late]\norder = "lifo"\n')
    watch = DefinitionsWatch(strict.root, strict.space)
    watch.stop()
    assert list(strict.space.definitions.queues) == ["late"]
