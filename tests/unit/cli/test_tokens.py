"""``xaqueue token``: the file has a token that holds at every moment, whatever is killed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

import xaqueue
from support.doubtful import fails
from xaqueue.access import Identity, token_name
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import app
from xaqueue.core.model import definitions
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.core.storage.directory_fs import DirectoryFileSystem

TEXT = """\
[queues.orders]
[access.roles.shop]   # who sells
members = ["user:1000", "token:{}"]
produce = ["*"]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    xaqueue.connect(tmp_path / "s", create=True).close()
    write_definitions(tmp_path / "s", TEXT.format("0" * 64))
    return tmp_path / "s"


def token(place: Path, *words: object) -> int:
    return CliRunner().invoke(app, ["token", *map(str, words), "--space", str(place)]).exit_code


def members(place: Path) -> tuple[str, ...]:
    (role,) = definitions.parse((place / "queues.toml").read_text()).access.roles or ()
    return role.members


def holds(place: Path, file: Path) -> bool:
    """Whether the token of the file may do something."""
    identity = Identity().with_token(file.read_text().strip(), trusted=False)
    return not definitions.parse((place / "queues.toml").read_text()).access.rights_of(identity).refusal


def test_a_role_gets_a_token_and_loses_the_others(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert token(place, "shop", file) == 0
    first = file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert members(place) == ("user:1000", f"token:{'0' * 64}", token_name(first))
    assert "# who sells" in (place / "queues.toml").read_text()
    assert token(place, "shop", file, "--only") == 0
    assert file.read_text().strip() == first, "clients have it"
    assert members(place) == ("user:1000", token_name(first))
    assert token(place, "shop", file) == 0
    assert len(members(place)) == 3
    file.write_text("a token that the role does not know\n")
    assert token(place, "shop", file, "--only") == 0
    assert members(place) == ("user:1000", token_name(file.read_text().strip()))


def test_a_role_that_is_not_there_is_refused_and_nothing_is_written(place: Path, tmp_path: Path) -> None:
    before = (place / "queues.toml").read_text()
    assert token(place, "nobody", tmp_path / "token") == 2
    told = fails("token", "shp", tmp_path / "token", "--space", place, code=ExitCode.USAGE)
    assert "no role 'shp' (it has shop): did you mean 'shop'? Write a table [access.roles.shp]" in told
    assert not (tmp_path / "token").exists()
    assert token(place, "shop", tmp_path / "none" / "token") == 3
    assert members(place)[:2] == ("user:1000", f"token:{'0' * 64}")
    assert before.splitlines()[0] == "[queues.orders]"


@pytest.mark.parametrize(("words", "dies_at"), [((), 1), ((), 2), (("--only",), 1), (("--only",), 2), (("--only",), 3)])
def test_a_rotation_that_is_cut_off_leaves_a_token_that_holds(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], dies_at: int
) -> None:
    file, calls = tmp_path / "token", 0
    assert token(place, "shop", file) == 0
    rename, replace = DirectoryFileSystem.rename, Path.replace

    def dying(call: object) -> object:
        def called(*given: object) -> object:
            nonlocal calls
            calls += 1
            if calls >= dies_at:
                raise KeyboardInterrupt
            return call(*given)  # type: ignore[operator]

        return called

    with monkeypatch.context() as killed:
        killed.setattr(DirectoryFileSystem, "rename", dying(rename))
        killed.setattr(Path, "replace", dying(replace))
        if words and dies_at > 1:  # else the token of the file is kept, which is one step
            killed.setattr("xaqueue.cli.tokens._held", lambda *_: None)
        assert token(place, "shop", file, *words) != 0
    assert calls == dies_at
    assert holds(place, file)
    assert token(place, "shop", file, "--only") == 0
    assert holds(place, file)
    assert len(members(place)) == 2


def test_where_the_file_cannot_be_written_the_role_gets_none(place: Path, tmp_path: Path) -> None:
    before = members(place)
    assert token(place, "shop", tmp_path / "missing" / "token") == ExitCode.SPACE
    assert members(place) == before


def test_where_the_role_cannot_be_written_the_file_is_as_it_was(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    monkeypatch.setattr(os, "writev", full)
    told = fails("token", "shop", file, "--space", place, code=ExitCode.ERROR)
    assert f"{place / 'queues.toml'}: cannot be written: No space left" in told
    assert file.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


def full(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
