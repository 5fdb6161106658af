"""A torture finds what an engine or a mount loses, expects what the flags do not promise, and leaves nothing behind."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support.forgetful import Survivors
from support.patience import eventually
from support.torn import TornContent
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import app
from xaqueue.core.owner import open
from xaqueue.core.storage.fs import FileSystem
from xaqueue.errors import DiskFull
from xaqueue.features import opening
from xaqueue.features.session import Session
from xaqueue.testing.forgetful import ForgetfulFileSystem, Tree
from xaqueue.tools.torture import power, run
from xaqueue.tools.torture.ledger import CrashTally, Ledger
from xaqueue.tools.torture.power import LosingFileSystem, PowerLost, laid_out, tree_in
from xaqueue.tools.torture.run import Child, ChildRun, LifeFailed, Result
from xaqueue.tools.torture.work import reopened

DURABLE = ("JOURNAL", "FSYNC;DSYNC", "FDATASYNC;DSYNC")
TRIES = 60
"""Power losses after which at least one has lost something, where something is to be lost."""

pytestmark = pytest.mark.crash


def until_a_fault(directory: Path, flags: str) -> CrashTally:
    for number in range(TRIES):
        outcome = power.survive_power_losses(directory, flags, 0.0, f"{number}")
        if outcome.faults:
            return outcome
    return CrashTally()


# Power


@pytest.mark.parametrize("flags", DURABLE)
def test_the_durable_levels_lose_nothing_by_the_rules(tmp_path: Path, flags: str) -> None:
    seed = f"{random.SystemRandom().randrange(10**9)}"
    sys.stdout.write(f"seed {seed}\n")
    outcome = power.survive_power_losses(tmp_path, flags, 1.5, seed)
    assert outcome.faults == []
    assert outcome.tries > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flags", ["NONE", "FSYNC", "DSYNC"])
def test_the_others_lose_by_the_rules(tmp_path: Path, flags: str) -> None:
    assert until_a_fault(tmp_path, flags).faulty


@pytest.mark.parametrize("call", ["sync_data", "sync_dir"])
@pytest.mark.parametrize("flags", ["JOURNAL", "FDATASYNC;DSYNC"])
def test_a_sync_that_lies_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, call: str) -> None:
    monkeypatch.setattr(LosingFileSystem, call, lambda fs, path: None)
    if call == "sync_dir":
        monkeypatch.setattr(LosingFileSystem, "sync_all", lambda fs: None)
    assert until_a_fault(tmp_path, flags).faulty


def test_a_space_that_was_looked_at_is_at_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to the collector, whose thread would close it while its directory is removed."""
    gc.collect()  # what other tests have left
    dropped: list[Session] = []

    def drop(session: Session) -> bool:
        dropped.append(session)
        return False

    monkeypatch.setattr(Session, "drop", drop)
    opening.create(tmp_path / "space", any_queue=True)
    found = reopened(tmp_path / "space", "NONE", set())
    gc.collect()
    assert (found.faults, dropped) == ([], [])
    assert not open.is_owned(tmp_path / "space")


def test_after_so_many_calls_the_power_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ForgetfulFileSystem, "content", TornContent)
    losing = LosingFileSystem()
    port: FileSystem = losing
    port.create("kept", [b"content"])
    port.sync_file("kept")
    port.sync_dir("")
    losing.crash_after = losing.calls + 2
    port.create("lost", [b"con", b"tent"])
    port.rename("kept", "moved")
    assert port.read("moved") == b"content"
    calls: list[Callable[[], object]] = [
        lambda: port.make_dir("a"),
        lambda: port.list(""),
        lambda: port.read("moved"),
        lambda: port.sync_all(),
    ]
    for call in calls:
        with pytest.raises(PowerLost) as gone:
            call()
        assert gone.value.errno == errno.EIO
    left = [tree.nodes for tree in Survivors(losing).trees(1 << 10, 0)]
    assert {"kept": b"content"} in left
    assert {"moved": b"content", "lost": b"content"} in left
    assert not any("kept" not in nodes and "moved" not in nodes for nodes in left)


def test_what_is_laid_out_is_what_was_left(tmp_path: Path) -> None:
    tree = Tree({"a": None, "a/b": b"content", "a/c": b"content", "d": b""}, {"a/c": "a/b"})
    with laid_out(tree, tmp_path / "left") as left:
        assert tree_in(left).key() == tree.key()
        assert (left / "a/b").samefile(left / "a/c")
    assert not left.exists()


# Kills


@pytest.mark.parametrize("flags", ["JOURNAL", "NONE"])
def test_a_kill_loses_nothing(tmp_path: Path, flags: str) -> None:
    opening.create(tmp_path / "space", any_queue=True)
    outcome = run.survive_kills(tmp_path / "space", flags, 1.5, f"{time.time_ns()}")
    assert outcome.faults == []
    assert outcome.tries > 0


def test_a_message_that_a_kill_takes_along_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = tmp_path / "space"

    def kill_and_take(child: Child) -> None:
        child.kill()
        child.wait()
        for path in space.glob("committed/*/*/*"):
            path.unlink()

    monkeypatch.setattr(run, "kill", kill_and_take)
    monkeypatch.setattr(run, "LONGEST_WORK_S", 2.0)
    opening.create(space, any_queue=True)
    outcome = run.survive_kills(space, "NONE", 4.0, "seed")
    assert any(fault.startswith(("lost: ", "it does not open, or does not serve: ")) for fault in outcome.faults)


def test_a_child_that_fails_is_no_kill() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('out of order')"]
    with pytest.raises(LifeFailed, match="out of order") as failed:
        ChildRun(command, lambda child: child.kill(), 30.0).run(Ledger())
    assert failed.value.code == 1


def test_no_room_is_no_fault(tmp_path: Path) -> None:
    opening.create(tmp_path / "space", any_queue=True)
    with (tmp_path / "space" / "queues.toml").open("a") as definitions:
        definitions.write(f"\n[space]\nmin_free_bytes = {1 << 60}\n")
    with pytest.raises(DiskFull, match="no room to work in"):
        run.survive_kills(tmp_path / "space", "NONE", 1.0, "seed")


# The verdict


def test_what_is_promised_and_what_is_not() -> None:
    lossy = CrashTally(20, 100, 4, ["lost: message 1 of red"] * 7)
    sound = CrashTally(20, 100)
    kept = [Result("JOURNAL", sound, sound), Result("NONE", sound, lossy), Result("FSYNC", sound, sound)]
    assert run.is_safe(kept)
    assert list(run.rows(kept)) == [
        ("JOURNAL", "safe (20 kills, 100 branches)", "safe (20 outcomes)"),
        ("NONE", "safe (20 kills, 100 branches)", "loses, as it says (in 4 of 20 outcomes)"),
        ("FSYNC", "safe (20 kills, 100 branches)", "not promised (lost in 0 of 20 outcomes)"),
    ]
    said = "\n".join(run.lines(kept))
    assert "safe here against a kill: JOURNAL, NONE, FSYNC\n" in said
    assert "safe here against power loss, by the rules: JOURNAL\n" in said
    assert "NONE, by the rules of a power loss: for example lost: message 1 of red\n" in said
    broken = [Result("JOURNAL", sound, lossy), Result("NONE", lossy, lossy)]
    assert not run.is_safe(broken)
    journal, none = run.rows(broken)
    assert journal[1:] == ("safe (20 kills, 100 branches)", "LOSES (in 4 of 20 outcomes)")
    assert none[1:] == ("LOSES (20 kills, 100 branches)", "loses, as it says (in 4 of 20 outcomes)")
    said = "\n".join(run.lines(broken))
    assert "JOURNAL breaks its promise after a power loss:\n  lost: message 1 of red\n" in said
    assert "  and 2 more\n" in said
    assert "NONE breaks its promise after a kill:\n" in said
    assert "safe here against a kill: JOURNAL\n" in said
    assert "safe here against power loss, by the rules: none\n" in said


def test_a_few_kills_are_no_verdict() -> None:
    """A fault is one at once; that nothing was lost says something only after as many as are wanted."""
    lossy, few, sound = CrashTally(1, 3, 1, ["lost: message 1 of red"]), CrashTally(19, 100), CrashTally(20, 100)
    for killed, lost in ((few, sound), (sound, few), (few, few)):
        result = Result("JOURNAL", killed, lost)
        assert run.is_safe([result, Result("NONE", sound, sound)]) is None
        said = "\n".join(run.lines([result, Result("NONE", sound, sound)]))
        assert "no verdict on JOURNAL: 20 kills and 20 outcomes of a power loss are wanted" in said
        assert ("safe here against a kill: NONE\n" in said) == (killed is few)
        assert "safe here against power loss, by the rules: none\n" in said
        unsaid = [cell.startswith("no verdict (") for cell in next(run.rows([result]))[1:]]
        assert unsaid == [killed is few, lost is few]
    assert run.is_safe([Result("JOURNAL", lossy, few), Result("NONE", few, few)]) is False


def test_without_a_time_the_kills_go_on_until_there_is_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SECONDS", 0.02)
    monkeypatch.setattr(run, "ENOUGH", 3)
    (result,), _ = run.run(tmp_path, ["NONE"], None, lambda _: None, "7")
    assert result.killed.tries == 3


# The command


def test_the_command_says_which_flags_are_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ENOUGH", 1)
    asked = ["torture", str(tmp_path), "--seconds", "1", "--flags", "JOURNAL", "--flags", "NONE", "--seed", "7"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == ExitCode.OK, result.output
    assert "safe here against a kill: JOURNAL, NONE\n" in result.stdout
    assert "safe here against power loss, by the rules: JOURNAL\n" in result.stdout
    assert result.stdout.endswith("seed 7\n")
    assert list(tmp_path.iterdir()) == []
    result = CliRunner().invoke(app, [*asked, "--json"])
    told = json.loads(result.stdout)
    assert (told["safe"], told["seed"]) == (True, "7")
    assert [level["flags"] for level in told["levels"]] == ["JOURNAL", "NONE"]
    assert [level["promises_power_loss"] for level in told["levels"]] == [True, False]
    assert all(level["kills"]["tries"] > 0 < level["power_losses"]["tries"] for level in told["levels"])


def test_no_verdict_is_exit_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run", lambda *_: ([Result("JOURNAL", CrashTally(3, 20), CrashTally(80, 20))], "7"))
    done = CliRunner().invoke(app, ["torture", str(tmp_path)])
    assert (done.exit_code, "safe (3" in done.stdout) == (ExitCode.NOTHING, False)
    assert json.loads(CliRunner().invoke(app, ["torture", str(tmp_path), "--json"]).stdout)["safe"] is None


def test_a_broken_promise_is_exit_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Result("JOURNAL", CrashTally(3, 20), CrashTally(8, 20, 1, ["lost: message 1 of red"]))
    monkeypatch.setattr(run, "run", lambda *_: ([broken], "7"))
    for more in ([], ["--json"]):
        result = CliRunner().invoke(app, ["torture", str(tmp_path), *more])
        assert result.exit_code == ExitCode.NOTHING
        assert "lost: message 1 of red" in result.stdout


def test_a_directory_that_is_not_there_and_flags_that_are_none(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["torture", str(tmp_path / "missing")]).exit_code == ExitCode.USAGE
    refused = CliRunner().invoke(app, ["torture", str(tmp_path), "--flags", "SYNC"])
    assert refused.exit_code == ExitCode.USAGE
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_that_is_ended_leaves_nothing(tmp_path: Path, number: int) -> None:
    script = "from xaqueue.cli.main import main; main()"
    command = [sys.executable, "-c", script, "torture", str(tmp_path), "--seconds", "60"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as torturing:
        eventually(lambda: list(tmp_path.glob("*/kills/space/committed/*")))
        os.kill(torturing.pid, number)
        assert torturing.wait(60) in (128 + number, ExitCode.INTERRUPTED, ExitCode.NOTHING)
    assert list(tmp_path.iterdir()) == []
