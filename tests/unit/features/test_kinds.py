"""A feature that nobody has written keeps notes on queues in a directory of its own: an open, a check, the status, a
snapshot and a restore come to them over the list of kinds, and by nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.forgetful import Tree
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout, options
from xaqueue.core.model.block import NO_MESSAGE, Block, Kind, decode, encode
from xaqueue.core.model.block_files import listed, read_checked
from xaqueue.core.model.change import CoreStep
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.model.format import read_format, signs_of
from xaqueue.core.model.record_kinds import Advice, Looking, Opening, RecordKind
from xaqueue.core.recovery.recover import open_space
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.hardening import Hardening
from xaqueue.errors import DamagedBlock, SpaceError
from xaqueue.features.kinds import KINDS
from xaqueue.features.opening import Whole, attach
from xaqueue.features.snapshots import restore, take
from xaqueue.message import Properties
from xaqueue.offline import inspect
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity

NOTES = "notes"
ANY = Definitions(default=QueueDefinition())


class NoteKind(RecordKind):
    directory = NOTES
    names = re.compile("[a-z]+")
    others = signs = copied = ("notes.index",)

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.hard: list[str] = []
        self.said = Advice()

    def find(self, opening: Opening) -> None:
        fs = opening.space.fs
        self.found = {}
        for name in listed(fs, NOTES):
            try:
                self.found[name] = read(fs, name)
            except DamagedBlock as damage:
                opening.set_aside(f"{NOTES}/{name}", str(damage))

    def hardened(self, space: Any) -> list[str]:
        self.hard = [f"{NOTES}/{name}" for name in self.found]
        return self.hard

    def advice(self, root: Path) -> Advice:
        return self.said

    def check(self, look: Looking, name: str, path: str) -> None:
        try:
            read(look.fs, name)
        except DamagedBlock as damage:
            look.damaged(path, f"the note: {damage}")

    def bring(self, newer: Any) -> None:
        newer.bring_all(NOTES)

    def view_queue(self, fs: FileSystem, queue: str) -> dict[str, Any]:
        return {"stuck": read(fs, queue)} if queue in listed(fs, NOTES) else {}

    def queues(self, fs: FileSystem) -> list[str]:
        return listed(fs, NOTES)


def read(fs: FileSystem, name: str) -> str:
    return decode(read_checked(fs, f"{NOTES}/{name}")).body.decode()


def content(text: str) -> tuple[bytes, bytes]:
    head, body = encode(Block(Kind.BRANCH, NO_MESSAGE, Properties(""), text.encode()))
    return head, body


def write(space: Space, name: str, text: str) -> None:
    space.put(CoreStep.EXPIRY, name, f"{NOTES}/{name}", *content(text))


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> NoteKind:
    made = NoteKind()
    known = options.everything()._replace(kinds=lambda: (*KINDS, made))
    monkeypatch.setattr(options, "everything", lambda: known)
    monkeypatch.setattr(inspect, "KINDS", (*KINDS, made))
    return made


def features_with(kind: NoteKind) -> Whole:
    whole = Whole()
    whole.kinds = (*KINDS, kind)
    return whole


def opened(path: Path, kind: NoteKind) -> Any:
    return attach(path, features=features_with(kind), create_missing=True, watch=False)


@pytest.mark.parametrize("flags", ["JOURNAL", "FDATASYNC;DSYNC"])
def test_a_note_outlives_a_kill_and_a_power_loss(kind: NoteKind, flags: str) -> None:
    features, hardening = features_with(kind), Hardening.parse(flags)
    fs = Tree(dict.fromkeys(layout.directories())).open()
    write(open_space(fs, ANY, features=features, hardening=hardening), "orders", "closed on Monday")
    for tree in (fs.tree_after_kill(), *fs.trees_after_crash()):
        left = tree.open()
        open_space(left, ANY, features=features, hardening=hardening)
        assert kind.found == {"orders": "closed on Monday"}
        assert kind.hard == ["notes/orders"]


def test_what_an_open_has_found_outlives_a_power_loss(kind: NoteKind) -> None:
    fs = Tree(dict.fromkeys(layout.directories())).open()
    fs.create("notes/orders", content("closed on Monday"))  # by an owner that was killed before it was synced
    features = features_with(kind)
    open_space(fs, ANY, features=features, hardening=Hardening.parse("FDATASYNC;DSYNC"))
    assert [tree for tree in fs.trees_after_crash() if "notes/orders" not in tree.nodes] == []


def test_what_a_kind_has_at_the_top_is_copied_and_is_a_sign_of_an_owner(kind: NoteKind, tmp_path: Path) -> None:
    session = opened(tmp_path, kind)
    (tmp_path / "notes.index").write_text("orders")
    snapshot = take.take(session.space).number
    session.close()
    assert (tmp_path / f"snapshots/{snapshot}/notes.index").read_text() == "orders"
    assert [finding for finding in check(tmp_path) if "notes.index" in str(finding)] == []
    assert "notes.index" in signs_of(tmp_path)
    assert not layout.is_recorded("notes.index")


def test_no_record_may_name_what_is_no_note() -> None:
    assert not layout.is_recorded("notes/orders")


def test_who_only_reads_is_told_of_a_lost_format(tmp_path: Path) -> None:
    attach(tmp_path, create_missing=True, watch=False).close()
    (tmp_path / "FORMAT").unlink()
    with pytest.raises(SpaceError, match="was a queue space"):
        read_format(tmp_path)


def test_a_kind_has_the_first_word_on_what_to_do(kind: NoteKind, tmp_path: Path) -> None:
    attach(tmp_path, create_missing=True, watch=False).close()
    (tmp_path / "FORMAT").unlink()
    kind.said = Advice(copy="`notes back` brings it")
    with pytest.raises(SpaceError, match="from a copy, or `notes back` brings it, or `xaqueue reconstruct"):
        read_format(tmp_path)
    kind.said = Advice("Notes were cut off: `notes` finishes them")
    with pytest.raises(SpaceError, match=r"nothing was changed. Notes were cut off: `notes` finishes them$"):
        read_format(tmp_path)


def test_what_is_no_note_is_told_and_set_aside(kind: NoteKind, tmp_path: Path) -> None:
    opened(tmp_path, kind).close()
    (tmp_path / NOTES / "orders").write_text("no block")
    (tmp_path / NOTES / "Z").write_text("no block")
    (finding, _) = check(tmp_path, kinds=(*KINDS, kind))
    assert (finding.severity, finding.path) == (Severity.DAMAGE, "notes/Z")
    session = opened(tmp_path, kind)
    assert sorted(session.space.report.quarantined)[1].startswith("notes/orders: ")
    session.close()
    assert [one.severity for one in check(tmp_path, kinds=(*KINDS, kind))] == [Severity.NOTE] * 2


def test_the_status_has_it(kind: NoteKind, tmp_path: Path) -> None:
    session = opened(tmp_path, kind)
    write(session.space, "orders", "closed on Monday")
    session.close()
    (queue,) = inspect.queue_list(tmp_path)
    assert (queue.name, queue.stuck) == ("orders", "closed on Monday")


def test_a_snapshot_has_it_and_a_restore_brings_what_came_since(kind: NoteKind, tmp_path: Path) -> None:
    session = opened(tmp_path, kind)
    write(session.space, "orders", "closed on Monday")
    taken = take.take(session.space)
    write(session.space, "bills", "closed on Sunday")
    session.close()
    assert (tmp_path / "snapshots" / str(taken.number) / NOTES / "orders").exists()
    (tmp_path / NOTES / "orders").unlink()
    fs = DirectoryFileSystem(tmp_path, keep_unsynced=False)
    done = restore.restore(fs, restore.Wanted(), session.space.now_us(), kinds=(*KINDS, kind))
    fs.close()
    assert (tmp_path / done.removed / NOTES / "bills").exists()
    opened(tmp_path, kind).close()
    assert kind.found == {"orders": "closed on Monday", "bills": "closed on Sunday"}
