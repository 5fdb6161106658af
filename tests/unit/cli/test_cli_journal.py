"""The operator's way out of a damaged journal, and what the other verbs say of one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from typer.testing import CliRunner

import xaqueue
from support import broken_journal
from support.bare_space import bare_space
from support.broken_journal import STEPS, damage, files, lose_directories
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import app
from xaqueue.core.model import layout
from xaqueue.core.storage.journal_format import name_of


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Killed, its third record damaged."""
    made = broken_journal.make(tmp_path / "space")
    damage(made, 2)
    monkeypatch.setenv("XAQUEUE_SPACE", str(made))
    monkeypatch.delenv("XAQUEUE_FLAGS", raising=False)
    return made


def run(*words: str, code: int = 0) -> tuple[str, str]:
    """stdout and stderr."""
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout, result.stderr


def parsed(*words: str, code: int = 0) -> dict[str, Any]:
    out, _ = run(*words, "--json", code=code)
    return dict(json.loads(out))


def test_without_yes_it_only_shows(root: Path) -> None:
    before = files(root)
    out, complaint = run("salvage-journal", code=ExitCode.NOTHING)
    assert files(root) == before
    assert complaint == "xaqueue: nothing was done: with --yes it is done without a question\n"
    lines = out.splitlines()
    assert lines[0].startswith("journal/ is damaged: the record at LSN 0x440")
    assert lines[2] == f"lost: from LSN 0x440 to 0x610, 464 bytes ({name_of(0)})"
    assert "2 steps can be read before the loss:" in lines
    assert "4 steps can be read behind the loss:" in lines
    assert any(line.split() == ["0x6d8", "decision", str(broken_journal.DECIDED)] for line in lines)
    assert any(line.split() == ["0x200", "one", "phase", "of", "one", "session", "orders"] for line in lines)
    for said in ("may be missing", "may be delivered again", "may be in doubt once more", "managers are not told"):
        assert said in " ".join(lines)


def test_with_yes_it_goes_on(root: Path) -> None:
    lose_directories(root)
    out, _ = run("salvage-journal", "--yes")
    assert f"{len(STEPS) - 1} steps done again; a new journal begins" in out
    assert f"kept: journal/{name_of(0)}.archive" in out
    assert "opened: 4 messages" in out
    assert run("salvage-journal") == ("the journal is sound: nothing was done\n", "")
    assert parsed("salvage-journal") == {"damage": None}
    assert "no damage" in run("check")[0]
    bodies = [json.loads(line)["body"] for line in run("browse", "orders", "--json")[0].splitlines()]
    assert bodies == ["first", "second", "fourth", "fifth"]


def test_for_programs(root: Path) -> None:
    shown = parsed("salvage-journal", code=ExitCode.NOTHING)
    assert shown["lost"] == [{"from": 0x440, "to": 0x610, "segment": name_of(0)}]
    assert [step["kind"] for step in shown["steps"]] == STEPS[:2] + STEPS[3:]
    assert shown["steps"][2] == {
        "lsn": 0x610,
        "kind": "prepare",
        "xid": str(broken_journal.DECIDED),
        "queues": ["orders"],
        "behind": True,
    }
    assert shown["done"] is None
    told = parsed("salvage-journal", "--yes")
    assert told["steps"] == shown["steps"]
    assert told["done"]["steps"] == len(STEPS) - 1
    assert told["done"]["archives"][0] == f"journal/{name_of(0)}.archive"
    assert told["opened"].startswith("4 messages")


def test_many_steps_are_shown_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "many"
    with bare_space(root, sync="JOURNAL") as bare:
        bare.put("orders", *(b"%d" % number for number in range(60)))
    broken_journal.killed(root)
    damage(root, 25)
    monkeypatch.setenv("XAQUEUE_SPACE", str(root))
    out, _ = run("salvage-journal", code=ExitCode.NOTHING)
    assert "25 steps can be read before the loss, of which 20 are shown (all with --json):" in out
    assert "34 steps can be read behind the loss, of which 20 are shown (all with --json):" in out
    assert sum("one phase" in line for line in out.splitlines()) == 40
    assert len(parsed("salvage-journal", code=ExitCode.NOTHING)["steps"]) == 59


def test_a_space_in_use_is_left_alone(root: Path) -> None:
    with xaqueue.connect(root):
        before = files(root)
        _, complaint = run("salvage-journal", "--yes", code=ExitCode.SPACE)
        assert f"is in use by process {os.getpid()} on " in complaint
        assert "stop its owner first" in complaint
        assert files(root) == before


def test_a_newer_journal_is_not_salvaged(root: Path) -> None:
    segment = root / layout.JOURNAL / name_of(0)
    data = bytearray(segment.read_bytes())
    data[4] = 2
    data[32:36] = b"\0" * 4
    data[32:36] = crc32(bytes(data[:32])).to_bytes(4, "little")
    segment.write_bytes(data)
    before = files(root)
    _, complaint = run("salvage-journal", "--yes", code=ExitCode.SPACE)
    assert "use a newer one" in complaint
    assert files(root) == before


# The other verbs


def test_status_and_check_say_so(root: Path) -> None:
    told = run("status")[0]
    assert "state       not open; opens for reading only\n" in told
    assert "journal     journal/ is damaged: the record at LSN 0x440" in told
    assert parsed("status")["journal"]["damage"].startswith("journal/ is damaged")
    out, _ = run("check", code=ExitCode.NOTHING)
    assert "xaqueue salvage-journal" in out
    with xaqueue.connect(root):
        assert "alive, read-only\n" in run("status")[0]
        assert parsed("status")["state"] == "read-only"


def test_status_of_a_sound_journal(root: Path) -> None:
    run("salvage-journal", "--yes")
    told = parsed("status")["journal"]
    assert (told["ahead"], told["damage"], told["segments"]) == (0, "", 2)
    row = next(line for line in run("status")[0].splitlines() if line.startswith("journal"))
    assert f"end at LSN {told['end']:#x}, checkpoint at {told['checkpoint']:#x}, 0 records between; 2 segments" in row
    assert "state          not open\n" in run("status")[0]
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"x")
        connection.commit()
        assert "alive, ready\n" in run("status")[0]
    broken_journal.killed(root)


def test_status_from_outside_does_not_count_what_the_owner_has_in_memory(root: Path) -> None:
    run("salvage-journal", "--yes")
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"small")
        assert "active         0 branches with files\n" in run("status")[0]
        connection.rollback()
    assert "active         0 branches\n" in run("status")[0]


def test_status_from_outside_does_not_count_what_is_in_memory_at_none(tmp_path: Path) -> None:
    where = str(tmp_path / "space")
    with xaqueue.connect(where, create=True, sync="NONE") as connection:
        connection.enqueue("orders", b"small")
        assert "0 branches with files\n" in run("status", "--space", where)[0]
        connection.rollback()
    assert "0 branches\n" in run("status", "--space", where)[0]


def test_status_of_a_killed_space(tmp_path: Path) -> None:
    root = broken_journal.make(tmp_path / "killed")
    told = run("status", "--space", str(root))[0]
    assert "state       not open; the directories may be behind the journal until it is\n" in told


DECIDE = ["indoubt", "commit", str(broken_journal.IN_DOUBT), "--yes", "--reason", "why"]


@pytest.mark.parametrize(
    "words",
    [["put", "orders", "x"], ["get", "orders"], ["check", "--repair"], DECIDE],
    ids=["put", "get", "check", "indoubt"],
)
def test_verbs_that_change_something_say_what_to_do(root: Path, words: list[str]) -> None:
    before = files(root)
    _, complaint = run(*words, code=ExitCode.SPACE)
    assert "open for reading only: journal/ is damaged" in complaint
    assert "xaqueue salvage-journal" in complaint
    assert files(root) == before


def test_verbs_that_only_look_go_on(root: Path) -> None:
    before = files(root)
    assert "second" in run("browse", "orders")[0]
    assert "orders" in run("queues")[0]
    assert str(broken_journal.IN_DOUBT) in run("indoubt", "list")[0]
    assert files(root) == before


def test_browse_shows_what_can_be_read_and_says_so(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The machine went down, and the journal cannot be replayed."""
    owner = json.loads((root / layout.OWNER).read_bytes())
    (root / layout.OWNER).write_text(json.dumps({**owner, "boot": "another", "host": os.uname().nodename}))
    assert "second" in run("browse", "orders")[0]
    assert "journal/ is damaged" in caplog.text
    assert "What is shown may lack what was prepared or committed" in caplog.text
    (queue,) = json.loads(run("queues", "--json")[0])
    assert queue["watermark"] == 4
