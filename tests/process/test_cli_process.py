"""The command line as a program: pipes, terminals, signals, a full disk behind its output, and other owners."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD
from typing import IO, Any

import pytest

import xaqueue
from support import ROOT
from support.doubtful import RUN, named_space, run
from xaqueue.cli.exit_codes import ExitCode

PATIENCE_S = 60.0


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return named_space(tmp_path / "space", monkeypatch)


def process(words: Sequence[object], **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*RUN, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_tail_follows_a_space_that_another_process_owns(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        connection.enqueue("orders", b"before")
        connection.commit()
        with process(["tail", "orders", "--from", "earliest", "--json"]) as tailing:
            assert tailing.stdout is not None
            assert json.loads(tailing.stdout.readline())["body"] == "before"
            connection.enqueue("orders", b"after")
            connection.commit()
            assert json.loads(tailing.stdout.readline())["body"] == "after"
            tailing.send_signal(signal.SIGINT)
            assert tailing.wait(PATIENCE_S) == ExitCode.INTERRUPTED
            assert tailing.stderr is not None
            assert tailing.stderr.read() == b""


def test_the_installed_program_puts_and_gets(space: Path) -> None:
    with process(["put", "orders"], stdin=subprocess.PIPE) as putting:
        out, err = putting.communicate(b"\x00body\n", PATIENCE_S)
    assert (putting.returncode, len(out), err) == (0, 33, b"")
    with process(["get", "orders"]) as getting:
        out, err = getting.communicate(timeout=PATIENCE_S)
    assert (getting.returncode, out, err) == (0, b"\x00body\n", b"")


def test_a_space_in_use_names_its_owner(space: Path) -> None:
    with xaqueue.connect(space), process(["put", "orders", "x"]) as putting:
        out, err = putting.communicate(timeout=PATIENCE_S)
    assert (putting.returncode, out) == (ExitCode.SPACE, b"")
    assert f"is in use by process {os.getpid()} on ".encode() in err
    assert err.count(b"\n") == 1


COUNTED = """
import runpy, signal, sys
calls = 0
def count(frame, event, arg):
    global calls
    calls += 1
    if calls == {at}:
        signal.raise_signal(signal.SIGINT)
sys.argv = ["xaqueue", "queues", "--space", {space!r}]
main = runpy.run_path({command!r})["main"]
sys.setprofile(count)
try:
    main()
finally:
    sys.setprofile(None)
    print(calls, file=sys.stderr)
"""
"""The command as its script runs it. It gets a SIGINT at that call of a function, and says how many there were."""


def test_an_interrupt_at_any_moment_ends_a_command_quietly(space: Path) -> None:
    """While it is loaded, while its words are read, at work, and behind that."""
    command = str(ROOT / "xaqueue" / "cli" / "command.py")

    def interrupted(at: int) -> tuple[int, bytes]:
        script = COUNTED.format(at=at, space=str(space), command=command)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
        return done.returncode, done.stderr.strip()

    code, said = interrupted(0)
    assert code == 0
    calls = int(said)
    for at in (20, calls // 4, calls // 2, calls * 3 // 4, calls - 300):
        code, said = interrupted(at)
        assert (code, said.replace(b"%d" % at, b"")) == (ExitCode.INTERRUPTED, b""), f"at call {at:,} of {calls:,}"


def _unread_bytes(pipe: IO[bytes]) -> int:
    count = array("i", [0])
    ioctl(pipe, FIONREAD, count)
    return count[0]


def test_what_would_go_with_a_command_is_refused_where_no_server_is(space: Path, tmp_path: Path) -> None:
    """EMS-21."""
    other = tmp_path / "other"
    run("init", other, "--sync", "NONE")
    for words in (["--topic", "all"], ["quick", "persistent=false", "topic=all"], ["log"], ["kept", "topic=all"]):
        run("define", *words)
    run("define", "quick", "persistent=false", "--space", other)
    run("put", "orders", "1")
    exported = tmp_path / "exported"
    line = json.loads(run("export", "orders"))
    exported.write_text(f"{json.dumps(line)}\n{json.dumps(line | {'message_id': '0' * 32, 'persistent': False})}\n")
    for words in (
        ["put", "orders", "2", "--not-persistent"],
        ["put", "all", "2", "--topic", "--not-persistent"],
        ["put", "quick", "2"],
        ["put", "quick", "--lines", "--file", str(exported)],
        ["move", "orders", "quick"],
        ["move", "orders", "quick", "--dry-run"],
        ["import", "log", str(exported)],
        ["import", "log", str(exported), "--dry-run"],
        ["forward", "orders", "--to", "quick", "--until-empty"],
        ["forward", "orders", "--to", str(other), "--queue", "quick", "--until-empty"],
    ):
        refused = subprocess.run([*RUN, *words], capture_output=True, text=True, check=False)
        assert refused.returncode == ExitCode.USAGE, (words, refused)
        assert "is not persistent, and no server has" in refused.stderr, words
        assert "`xaqueue serve --space " in refused.stderr
        assert "not known" not in refused.stderr
    assert [len(run("browse", queue, "--json").splitlines()) for queue in ("orders", "quick", "log")] == [1, 0, 0]
    assert run("put", "all", "3", "--topic"), "one of its queues keeps it"


def test_a_server_s_space_takes_what_is_not_persistent(space: Path, tmp_path: Path) -> None:
    """EMS-21. By its directory, and by its URL; and it is refused again by a space that no server has."""
    other = tmp_path / "other"
    run("init", other, "--sync", "NONE")
    run("define", "orders", "--space", other)
    run("define", "quick", "persistent=false")
    with process(["serve", "--unix", tmp_path / "socket"]) as server, ExitStack() as stack:
        stack.callback(server.terminate)
        assert server.stdout is not None
        assert server.stdout.readline().startswith(b"serving")
        for place in (space, f"xaq+unix://{tmp_path / 'socket'}"):
            run("put", "orders", "1", "--not-persistent", "--space", place)
            run("put", "quick", "2", "--space", place)
            run("move", "quick", "urgent", "--space", place)
            run("move", "urgent", "quick", "--space", place)
        with process(["forward", "orders", "--to", other, "--until-empty"]) as forwarding:
            out, err = forwarding.communicate(timeout=PATIENCE_S)
        assert forwarding.returncode == ExitCode.USAGE, (out, err)
        assert b"a message for queue orders is not persistent, and no server has" in err
        run("forward", "orders", "--to", "quick", "--until-empty")
        found = [json.loads(line)["persistent"] for line in run("browse", "quick", "--json").splitlines()]
        assert found == [True, True, False, False]


def test_interrupted_lines_tell_how_many_are_committed(space: Path) -> None:
    with process(["put", "orders", "--lines", "--count-per-branch", 2], stdin=subprocess.PIPE) as putting:
        assert putting.stdin is not None
        putting.stdin.write(b"a\nb\n")
        putting.stdin.flush()
        while run("tail", "orders", "--no-follow").count("\n") < 2:
            assert putting.poll() is None
        putting.stdin.write(b"c\n")
        putting.stdin.flush()
        while _unread_bytes(putting.stdin):  # else it may still wait for the commit that was seen
            assert putting.poll() is None
            time.sleep(0.01)
        putting.send_signal(signal.SIGINT)
        assert putting.wait(PATIENCE_S) == ExitCode.INTERRUPTED
        assert putting.stderr is not None
        assert b"the first 2 are committed\n" in putting.stderr.read()
    assert run("get", "orders", "--count", 9) == "ab"


def test_a_message_that_nobody_reads_stays(space: Path) -> None:
    run("put", "orders", "x")
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen([*RUN, "get", "orders"], stdout=writer, stderr=subprocess.PIPE) as getting:
        os.close(writer)
        _, err = getting.communicate(timeout=PATIENCE_S)
    assert getting.returncode == ExitCode.PIPE_CLOSED
    assert err.startswith(b"xaqueue: nobody reads stdout: message ")
    assert err.count(b"\n") == 1
    assert run("get", "orders") == "x"


def test_a_full_disk_behind_stdout_leaves_the_message(space: Path) -> None:
    run("put", "orders", "x")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*RUN, "get", "orders"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == ExitCode.ERROR
    assert done.stderr.startswith(b"xaqueue: No space left on device")
    assert run("get", "orders") == "x"


def test_the_start_of_put_loads_nothing_that_it_does_not_need(space: Path) -> None:
    script = (
        "import sys\nfrom xaqueue.cli.main import app\n"
        "app(['put', 'orders', 'x'], standalone_mode=False)\n"
        "print([name for name in ('watchdog', 'tomlkit', 'pyspark', 'rich.table') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["[]"]


def test_a_table_is_drawn_on_a_terminal(space: Path) -> None:
    run("put", "orders", "x")
    terminal, side = pty.openpty()
    drawn = b""
    try:
        environment = {**os.environ, "TERM": "dumb", "COLUMNS": "140", "LINES": "25"}  # without both, dumb is 80 wide
        subprocess.run([*RUN, "queues"], stdout=side, env=environment, check=True)
        while b"at once" not in drawn:
            drawn += os.read(terminal, 4096)
    finally:
        os.close(terminal)
        os.close(side)
    assert "─────".encode() in drawn


@pytest.mark.parametrize("encoding", ["utf-8:strict", "latin-1"])
def test_a_name_that_the_terminal_cannot_show_is_escaped(tmp_path: Path, encoding: str) -> None:
    """As of a directory from another system, or of another language."""
    place = os.fsencode(tmp_path / "odd-\u20ac-") + b"\xff"
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    made = subprocess.run([*RUN, "init", place], capture_output=True, env=environment, check=False)
    assert (made.returncode, made.stderr) == (0, b"")
    assert b"\\udcff is queue space " in made.stdout
