"""Flag strings have one grammar, every refusal shows it, and it is clear which of several strings holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from xaqueue.core.owner.definitions_file import FLAGS_VARIABLE, write_definitions
from xaqueue.core.storage.hardening import DEFAULT, GRAMMAR, Hardening
from xaqueue.errors import InvalidArgument
from xaqueue.features.opening import create
from xaqueue.features.session import attach


@pytest.mark.parametrize(
    ("text", "content", "directories", "shown"),
    [
        ("FSYNC", "FSYNC", False, "FSYNC"),
        ("FDATASYNC", "FDATASYNC", False, "FDATASYNC"),
        ("DSYNC", "", True, "DSYNC"),
        ("FSYNC;DSYNC", "FSYNC", True, "FSYNC;DSYNC"),
        ("FDATASYNC;DSYNC", "FDATASYNC", True, "FDATASYNC;DSYNC"),
        ("JOURNAL", "FDATASYNC", True, "JOURNAL"),
        ("journal", "FDATASYNC", True, "JOURNAL"),
        ("DSYNC;FSYNC", "FSYNC", True, "FSYNC;DSYNC"),
        (" fsync ; dsync ", "FSYNC", True, "FSYNC;DSYNC"),
        ("NONE", "", False, "NONE"),
        ("none", "", False, "NONE"),
        ("", "", False, "NONE"),
        ("  ", "", False, "NONE"),
    ],
)
def test_the_grammar(text: str, content: str, directories: bool, shown: str) -> None:
    """XAQ-05."""
    parsed = Hardening.parse(text)
    assert parsed == Hardening(content, directories, journal=shown == "JOURNAL")
    assert str(parsed) == shown
    assert Hardening.parse(str(parsed)) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "FSYNC;FDATASYNC",
        "JOURNAL;DSYNC",
        "FSYNC;JOURNAL",
        "FSYNC;FSYNC",
        "DSYNC;DSYNC",
        "NONE;DSYNC",
        "NONE;NONE",
        "FSYNC,DSYNC",
        "FSYNC DSYNC",
        "FSYNC;",
        ";",
        "SYNC",
        "JOURNAL;FSYNC",
        "0",
    ],
)
def test_anything_else_is_refused_and_shown_the_grammar(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Hardening.parse(text)
    assert repr(text) in str(refused.value)
    assert GRAMMAR in str(refused.value)


def test_the_default_is_durable() -> None:
    assert str(DEFAULT) == "JOURNAL"
    assert DEFAULT.promise == "survives power loss"


def test_only_the_default_and_its_like_promise_power_loss() -> None:
    for text in ("FSYNC", "DSYNC", "NONE"):
        assert Hardening.parse(text).promise.startswith("survives a killed process; after power loss")


@pytest.mark.parametrize(
    ("sync", "variable", "written", "expected"),
    [
        ("FSYNC", "DSYNC", "NONE", "FSYNC"),
        (None, "DSYNC", "NONE", "DSYNC"),
        (None, "", "FSYNC", "NONE"),
        (None, None, "NONE", "NONE"),
        (None, None, None, "JOURNAL"),
        ("", "DSYNC", "FSYNC", "NONE"),
    ],
)
def test_argument_before_variable_before_file_before_default(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sync: str | None,
    variable: str | None,
    written: str | None,
    expected: str,
) -> None:
    create(tmp_path / "s")
    if written is not None:
        write_definitions(tmp_path / "s", f'[space]\nsync = "{written}"\n')
    set_flags(monkeypatch, variable)
    session = attach(tmp_path / "s", sync=sync, watch=False)
    assert str(session.space.hardening) == expected
    session.close()


def set_flags(monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    if variable is None:
        monkeypatch.delenv(FLAGS_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(FLAGS_VARIABLE, variable)


@pytest.mark.parametrize(("sync", "variable"), [("SYNC", None), (None, "SYNC")])
def test_a_bad_flag_keeps_the_space_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str | None, variable: str | None
) -> None:
    create(tmp_path / "s")
    set_flags(monkeypatch, variable)
    with pytest.raises(InvalidArgument, match="FDATASYNC"):
        attach(tmp_path / "s", sync=sync, watch=False)
    set_flags(monkeypatch, None)
    attach(tmp_path / "s", watch=False).close()


def test_other_flags_than_those_it_is_open_with_are_refused(tmp_path: Path) -> None:
    session = attach(tmp_path / "s", create_missing=True, sync="FSYNC", watch=False)
    with pytest.raises(InvalidArgument, match="open with FSYNC in this process, not DSYNC"):
        attach(tmp_path / "s", sync="DSYNC", watch=False)
    attach(tmp_path / "s", sync="fsync", watch=False).close()
    attach(tmp_path / "s", watch=False).close()
    session.close()


def test_flags_given_at_creation_are_kept_in_the_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach(tmp_path / "s", create_missing=True, sync="dsync;fsync", watch=False).close()
    set_flags(monkeypatch, None)
    again = attach(tmp_path / "s", watch=False)
    assert str(again.space.hardening) == "FSYNC;DSYNC"
    again.close()
