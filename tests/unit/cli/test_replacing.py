"""A file that a command writes is the old one, or the new one as a whole."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

import xaqueue
from xaqueue.cli import copies
from xaqueue.cli.main import app
from xaqueue.cli.replacing import replacing


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with xaqueue.connect(tmp_path / "s", create=True) as connection:
        for number in range(3):
            connection.enqueue("orders", b"%d" % number)
    return tmp_path / "s"


def export(place: Path, file: Path) -> int:
    return CliRunner().invoke(app, ["export", "orders", "-o", str(file), "--space", str(place)]).exit_code


def test_an_export_that_fails_leaves_the_one_before(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.jsonl"
    assert export(place, file) == 0
    before = file.read_bytes()
    assert len(before.splitlines()) == 3
    file.chmod(0o640)

    def fails(*_: object) -> object:
        raise xaqueue.ConnectionLost("gone")

    with monkeypatch.context() as broken:
        broken.setattr(copies, "some", fails)
        assert export(place, file) == 3
    assert file.read_bytes() == before
    assert export(place, tmp_path / "none" / "x.jsonl") == 3
    assert export(place, tmp_path) == 3
    assert sorted(one.name for one in tmp_path.iterdir()) == ["s", "x.jsonl"]
    assert export(place, file) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_what_a_killed_command_has_left_goes_with_the_next(place: Path, tmp_path: Path) -> None:
    file, left = tmp_path / "x.jsonl", tmp_path / ".x.jsonl.new"
    left.write_text("half of")
    left.chmod(0o666)
    assert export(place, file) == 0
    assert len(file.read_bytes().splitlines()) == 3
    assert sorted(one.name for one in tmp_path.iterdir()) == ["s", "x.jsonl"]
    left.symlink_to(tmp_path / "elsewhere")
    assert export(place, file) == 3
    assert not (tmp_path / "elsewhere").exists()


def test_two_commands_do_not_write_the_same_file(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    with replacing(file) as made:
        made.write(b"one\n")
        assert export(place, file) == 3
    assert file.read_bytes() == b"one\n"
    assert export(place, file) == 0


def test_a_new_file_outlives_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[bool, bool]]()
    sync = os.fsync

    def watched(descriptor: int) -> None:
        seen.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), (tmp_path / "x").exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    with replacing(tmp_path / "x") as made:
        made.write(b"one")
    assert seen == [(False, False), (True, True)]


def test_a_link_is_followed_and_a_pipe_is_written(place: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("there")
    assert export(place, tmp_path / "link") == 0
    assert len((tmp_path / "there").read_bytes().splitlines()) == 3
    assert (tmp_path / "link").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_bytes()), name="reader")
    reader.start()
    assert export(place, tmp_path / "pipe") == 0
    reader.join()
    assert len(found[0].splitlines()) == 3


def test_what_was_replaced_stays_so_over_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A role's old token is taken away once the new one is in its file: that must not bring the old one back."""
    synced: list[tuple[int, bytes]] = []
    file = tmp_path / "token"
    file.write_bytes(b"old")

    def sync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, file.read_bytes()))

    monkeypatch.setattr(os, "fsync", sync)
    with replacing(file) as made:
        made.write(b"new")
    assert synced == [(file.stat().st_ino, b"old"), (tmp_path.stat().st_ino, b"new")]
