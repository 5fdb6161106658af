"""The command line: what each verb does, what it prints for people and for programs, and how errors leave it."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import pytest
import typer
from typer.testing import CliRunner

import xaqueue
from support.doubtful import fails, named_space, run
from support.patience import eventually
from xaqueue.cli import exit_codes, messages, parameters
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.location import SPACE_VARIABLE
from xaqueue.cli.main import EVERY_DAY, GROUPS, OTHER_NAMES, PLACES, _first_sentence, app
from xaqueue.cli.output import counted, moment, preview, progress_bar, size
from xaqueue.connection import Connection
from xaqueue.core.model import layout
from xaqueue.core.owner import definitions_file
from xaqueue.errors import ResourceFailed, RolledBack
from xaqueue.features.snapshots.options import policy_of

PATIENCE_S = 60.0


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return named_space(tmp_path / "space", monkeypatch)


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


# The options before the verb


def test_version() -> None:
    assert run("--version") == f"xaqueue {xaqueue.__version__}\n"


def test_help_tells_the_exit_codes() -> None:
    text = " ".join(run("--help").split())
    assert "Exit codes: 0 done" in text


def test_help_lists_every_verb_by_group_with_the_first_sentence_of_its_own() -> None:
    """Which is read from the source, for the list is shown before half of it would be imported."""
    root: Any = typer.main.get_command(app)
    context = typer.Context(root)
    text = run("--help")
    places = [text.index(f"─ {group} ─") for group in ("Every day", *GROUPS)]
    assert places == sorted(places)
    assert root.list_commands(context)[: len(EVERY_DAY)] == list(EVERY_DAY)
    for verb in root.list_commands(context):
        built = root.get_command(context, verb)
        said = _first_sentence(verb).help or ""
        assert said == (built.help or "").partition("\n\n")[0] != "", verb
        assert re.search(rf"^│ {verb} +{said.split()[0]} ", text, re.MULTILINE), verb


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("list", "queues"),
        ("ls", "queues"),
        ("send", "put"),
        ("Publish", "put --topic"),
        ("consume", "get' or 'work"),
        ("stats", "queues --counters"),
        ("help", "--help"),
        ("topics", "queues"),
        ("history", "show --history"),
        ("resolve", "indoubt"),
        ("orphans", "indoubt list --ask"),
        ("queus", "queues"),
        ("lst", "queues"),
        ("sned", "put"),
    ],
)
def test_a_name_that_others_have_leads_to_ours(word: str, meant: str) -> None:
    assert f"No such command {word!r}. Did you mean '{meant}'? (see `xaqueue --help`)" in fails(word, code=2)


def test_other_names_are_of_one_verb_each() -> None:
    words = " ".join(OTHER_NAMES.values()).split()
    assert len(set(words)) == len(words)
    assert not set(words) & PLACES.keys()
    assert {verb for name in OTHER_NAMES for verb in name.split()[:1] if verb.isalpha()} <= PLACES.keys()


@pytest.mark.parametrize("word", ["restor", "cleann", "releas", "promot"])
def test_what_destroys_is_never_proposed(word: str) -> None:
    """Nor what is like it, such as purge, which others call clear."""
    assert "Did you mean" not in fails(word, code=2)


def test_what_was_moved_nowhere_is_not_requeued_in_silence(tmp_path: Path) -> None:
    """Who names the queue of the work, and not the one of its failures, is told."""
    space = ("--space", str(tmp_path / "space"))
    run("init", tmp_path / "space", "--default", "fifo")
    run("put", "orders", "one", *space)
    for words in ((), ("--dry-run",), ("--where", "tries>=3")):
        result = CliRunner().invoke(app, ["requeue", "orders", *words, *space])
        assert result.exit_code == 0
        assert result.stdout.startswith("0 messages of queue orders ")
        assert "queue orders was moved there from another queue, as into a failure queue" in result.stderr
    run("move", "orders", "orders.failed", *space)
    assert CliRunner().invoke(app, ["requeue", "orders.failed", *space]).stderr == ""


@pytest.mark.parametrize(("number", "way"), [(errno.EROFS, "mount this one for writing"), (errno.EACCES, "`ls -ld`")])
def test_what_the_system_refuses_has_a_way_out(
    number: int, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever was to be opened, by us or as the cause of an error of ours."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number), "there")

    monkeypatch.setattr(os, "mkdir", refuse)
    assert way in fails("init", tmp_path / "other", code=ExitCode.SPACE)
    with pytest.raises(typer.Exit), exit_codes.translated():
        refuse()
    assert way in capsys.readouterr().err


def test_without_a_verb_the_first_steps_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a usage error, for a script; they do what they say, as they stand."""
    result = CliRunner().invoke(app, [])
    assert result.exit_code == ExitCode.USAGE
    assert result.stderr.startswith("Usage: xaqueue COMMAND")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(SPACE_VARIABLE, raising=False)
    steps = re.findall(r"^  xaqueue ((?:init|define|put|get|status)\b.*?)  ", result.stderr, re.MULTILINE)
    assert len(steps) == 5
    assert [run(*step.split()) for step in steps][3] == "first"


def test_the_space_may_stand_before_or_behind_the_verb_or_in_the_environment(
    space: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run("queues")
    monkeypatch.delenv("XAQUEUE_SPACE")
    assert run("--space", space, "queues") == expected
    assert run("queues", "--space", space) == expected
    assert run("--space", "/nowhere", "queues", "--space", space) == expected
    assert run("--space", space, "indoubt", "list") == "no branch is in doubt\n"
    assert run("queues", "--space", f'datadir="{space}",qspace="space"') == expected


def test_without_a_name_it_is_that_of_enduro_x_or_else_the_one_here(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OMS-17."""
    expected = run("queues")
    monkeypatch.delenv("XAQUEUE_SPACE")
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    told = fails("queues", code=ExitCode.USAGE)
    assert "no space is given, and ./queue is none: use --space DIR or URL, or set XAQUEUE_SPACE" in told
    assert "`xaqueue init queue`" in told
    monkeypatch.setenv("NDRX_XA_OPEN_STR", '{"url":"tcp:postgresql://db/shop"}')  # of another resource manager
    assert fails("queues", code=ExitCode.USAGE) == told
    run("init", "queue")
    run("define", "here")
    assert "here" in run("queues")
    monkeypatch.setenv("NDRX_XA_OPEN_STR", f'datadir="{space}",qspace="space"')
    assert run("queues") == expected
    monkeypatch.setenv("NDRX_XA_OPEN_STR", f'datadir="{space}",qspace="other"')
    assert "not 'other'" in fails("queues", code=ExitCode.SPACE)
    monkeypatch.setenv("NDRX_XA_OPEN_STR", f'datdir="{space}",qspace="space"')
    assert "no queue space" in fails("queues", code=ExitCode.SPACE)
    assert "here" in run("queues", "--space", "queue")


@pytest.mark.parametrize(
    "words", [["--space", "", "purge", "here", "--yes"], ["purge", "here", "--yes", "--space", ""]]
)
def test_an_empty_name_is_not_the_space_that_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """A script's variable is unset."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XAQUEUE_SPACE", raising=False)
    run("init", "queue")
    run("define", "here")
    for environment in ({}, {"XAQUEUE_SPACE": "elsewhere"}):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert "--space is empty: is a variable unset?" in fails(*words, code=ExitCode.USAGE)
    monkeypatch.setenv("XAQUEUE_SPACE", "")
    assert "XAQUEUE_SPACE is empty: is a variable unset?" in fails("purge", "here", "--yes", code=ExitCode.USAGE)
    assert "here" in run("queues", "--space", "queue")


def test_an_empty_queue_is_told(space: Path) -> None:
    """All other mistakes are in test_mistakes.py."""
    assert "queue orders is empty" in fails("get", "orders", code=ExitCode.NOTHING)
    assert "/dev/null is no directory" in fails("restore", "--yes", "--space", "/dev/null", code=ExitCode.SPACE)


@pytest.mark.parametrize("url", ["xaq://host:7878", "xaq:/host", "xaq+unix:///run/xaqueue.sock"])
@pytest.mark.parametrize(
    "words",
    [
        ["init"],
        ["restore", "--yes", "--space"],
        ["snapshot", "take", "--to"],
        ["replica", "--from", "xaq://host:1"],
        ["promote", "--yes"],
        ["iotest"],
        ["torture"],
        ["demo", "--directory"],
    ],
)
def test_a_url_is_no_directory(space: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], url: str) -> None:
    """None of that name is made: the path would be xaq:/host, below the directory one is in."""
    monkeypatch.chdir(space.parent)
    before = sorted(space.parent.iterdir())
    told = fails(*words, url, code=ExitCode.USAGE)
    assert "is a URL, and the path of a directory is wanted here" in told
    assert "`xaqueue serve --space DIR`" in told
    assert sorted(space.parent.iterdir()) == before


@pytest.mark.parametrize("asked", ["nobody", "n\n", ""])
@pytest.mark.parametrize(
    ("words", "undone"),
    [
        (["purge", "orders"], "nothing was removed"),
        (["undefine", "orders", "--purge"], "nothing was removed"),
        (["restore", "--space"], "nothing was restored"),
        (["promote"], "nothing was done"),
    ],
)
def test_what_is_not_agreed_to_says_which_option_answers(
    space: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], undone: str, asked: str
) -> None:
    """Without a terminal, and there after a no or Ctrl-D."""
    run("put", "orders", "one")
    monkeypatch.setattr(exit_codes, "may_ask", lambda: asked != "nobody")
    if words[0] in ("restore", "promote"):
        words = [*words, str(space)]
    result = CliRunner().invoke(app, words, input="y\n" if asked == "nobody" else asked)
    assert result.exit_code == ExitCode.NOTHING
    assert f"xaqueue: {undone}: with --yes it is done without a question" in result.stderr
    assert ("? [y/N]:" in result.stderr) is (asked != "nobody")
    assert "Aborted" not in result.output
    assert len(lines(run("browse", "orders", "--json"))) == 1


# init, define, queues, status, check


def test_init_tells_the_level_and_what_it_promises(tmp_path: Path) -> None:
    told = run("init", tmp_path / "a")
    assert "sync JOURNAL: a commit survives power loss" in told
    assert "xaqueue define QUEUE" in told
    assert "left as it is" in run("init", tmp_path / "a")
    assert "killed process" in run("init", tmp_path / "b", "--sync", "NONE", "--name", "other")
    assert run("status", "--space", tmp_path / "b").startswith("space       other (")
    assert "[FSYNC|FDATASYNC][;DSYNC] or NONE" in fails("init", tmp_path / "c", "--sync", "SOON", code=ExitCode.USAGE)
    assert not (tmp_path / "c").exists()


def test_a_space_has_a_snapshot_of_every_day(tmp_path: Path) -> None:
    """STD-25, and STD-37: a week of them."""
    root = tmp_path / "space"
    run("init", root, "--default", "fifo")
    made = policy_of(definitions_file.read_definitions(root))
    assert (made.interval_min, made.keep, made.point_in_time, made.path) == (24 * 60, 7, False, "")
    with xaqueue.connect(root):
        eventually(lambda: (root / "snapshots/1/CHECKED").exists())
    (tmp_path / "other").mkdir()
    (tmp_path / "other/queues.toml").write_text(text := "[queues.mine]\n")
    run("init", tmp_path / "other")
    assert (tmp_path / "other/queues.toml").read_text() == text, "what somebody has defined stays as it is"


def test_init_with_a_default_takes_every_queue(tmp_path: Path) -> None:
    root = tmp_path / "space"
    run("init", root, "--default", "lifo")
    for body in ("a", "b"):
        run("put", "anything", body, "--space", root)
    assert run("get", "anything", "--space", root) == "b"


def test_define_edits_the_definitions_and_keeps_their_comments(space: Path) -> None:
    text = (space / layout.QUEUES).read_text()
    (space / layout.QUEUES).write_text(text + "# a remark\n")
    assert run("define", "orders", "--description", "from the shop") == "queue orders: fifo, from the shop\n"
    assert run("define", "orders", "--order", "lifo") == "queue orders: lifo, from the shop\n"
    assert "# a remark\n" in (space / layout.QUEUES).read_text()


def test_what_others_wrote_moves_no_cursor(space: Path) -> None:
    """A description in queues.toml, a name in an error; a label of the metrics is exact, and is for programs."""
    text = (space / layout.QUEUES).read_text()
    (space / layout.QUEUES).write_text(f'{text}\n[queues.odd]\ndescription = "\u202e\\u001b[2J"\n')
    assert run("define", "odd") == "queue odd: fifo, \\u202e\\x1b[2J\n"
    place = space.parent / "odd\x1b[2J\u202e"
    assert "odd\\x1b[2J\\u202e" in fails("status", "--space", place, code=ExitCode.SPACE)
    run("init", place)
    assert f'xaqueue_epoch{{space="{place}"}} ' in run("metrics", "--space", place)


def test_define_shows_what_holds_then(space: Path) -> None:
    run("define", "failed")
    said = "queue orders: fifo\n  max_tries=5\n  failure_queue=failed\n"
    assert run("define", "orders", "max_tries=5", "failure_queue=failed") == said
    assert run("define", "orders") == said
    assert run("define", "orders", "max_tries=", "failure_queue=") == "queue orders: fifo\n"


@pytest.mark.parametrize(("call", "number"), [("writev", errno.ENOSPC), ("fsync", errno.EIO)])
def test_a_definition_that_cannot_be_written_names_the_file(
    space: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """The calls on a descriptor say nothing of it by themselves."""
    before = (space / "queues.toml").read_bytes()

    def failing(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as full:
        full.setattr(os, call, failing)
        told = fails("define", "more", code=ExitCode.ERROR)
    assert f"{space / 'queues.toml'}: cannot be written: {os.strerror(number)}" in told
    assert (space / "queues.toml").read_bytes() == before


def test_define_while_the_space_is_in_use_is_taken_by_the_owner(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        run("define", "fresh")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                connection.enqueue("fresh", b"x")
                break
            except xaqueue.UnknownQueue:
                assert time.monotonic() < deadline
        connection.commit()
    assert run("get", "fresh") == "x"


def test_queues(space: Path) -> None:
    run("put", "orders", "x")
    headings, orders, urgent = run("queues").splitlines()
    assert " ".join(headings.split()) == (
        "queue messages ready delayed locked in doubt oldest bytes consumers watermark order description"
    )
    assert orders.split()[:6] == ["orders", "1", "1", "0", "0", "0"]
    assert orders.split()[-4:] == ["B", "0", "1", "fifo"]
    assert urgent.split() == ["urgent", *"00000", "0", "B", "0", "0", "priority", "at", "once"]
    shown = lines(run("queues", "--json"))[0][0]
    assert 0 < time.time() - shown.pop("oldest") / 1e6 < PATIENCE_S
    assert 0 < shown.pop("size_bytes") < 200
    assert shown == {
        "name": "orders",
        "order": "fifo",
        "description": "",
        "depth": 1,
        "ready": 1,
        "delayed": 0,
        "held": 0,
        "locked": 0,
        "consumers": 0,
        "is_estimated": False,
        "in_doubt": 0,
        "watermark": 1,
        "stream": "",
        "consumed": 0,
        "in_flight": None,
        "lag": 0,
        "exhausted": 0,
        "stuck": "",
        "full": "",
        "used": 0.0,
        "counters": {
            "enqueued": 1,
            "dequeued": 0,
            "redelivered": 0,
            "expired": 0,
            "dead_lettered": 0,
            "rejected": 0,
            "moved": 0,
        },
    }
    assert run("queues", "--counters").splitlines() == [
        "queue   enqueued  dequeued  redelivered  expired  dead lettered  rejected  moved",
        "orders         1         0            0        0              0         0      0",
        "urgent         0         0            0        0              0         0      0",
    ]
    shown = run("status").splitlines()
    assert shown[-1].split() == ["orders", "1", "0", "0", "0", "0", "0", "0"]
    assert any(line.startswith("counted") and "since" in line and "crash" not in line for line in shown)


def test_a_space_without_queues_says_how_to_make_one(tmp_path: Path) -> None:
    run("init", tmp_path / "space")
    assert "xaqueue define QUEUE" in run("queues", "--space", tmp_path / "space")


def test_status(space: Path) -> None:
    with xaqueue.connect(space):
        told = run("status")
        (parsed,) = lines(run("status", "--json"))
    assert f"owner          process {os.getpid()} on " in told
    assert "sync           NONE: a commit survives a killed process" in told
    assert ["orders", "0", "0", "0", "-", "0", "0", "B", "-", "0", "fifo"] in [
        line.split() for line in told.splitlines()
    ]
    assert (parsed["owned"], parsed["owner"]["pid"], parsed["sync"]) == (True, os.getpid(), "NONE")
    assert "last owner" in run("status")


def test_check_finds_and_repairs_damage(space: Path) -> None:
    assert run("check") == "no damage\n"
    run("put", "orders", "x")
    (path,) = space.glob("committed/queue=orders/range=*/*")
    path.write_bytes(b"")
    told = run("check", code=ExitCode.NOTHING)
    assert "damage" in told
    assert "empty file" in told
    assert "1 finding of damage; `xaqueue check --repair` sets it aside" in told
    (parsed,) = lines(run("check", "--json", code=ExitCode.NOTHING))
    assert parsed["damage"] == 1
    assert parsed["findings"][0]["path"] == str(path.relative_to(space))
    told = run("check", "--repair")
    assert f"set aside: {path.relative_to(space)}: empty file (lost: a message)" in told
    assert told.endswith("no damage\n")
    (parsed,) = lines(run("check", "--repair", "--json"))
    assert parsed["repaired"]["moved"] == []


# put, get, browse, tail


def test_put_prints_the_id_by_which_get_finds_the_message(space: Path) -> None:
    first, second = run("put", "orders", "a").strip(), run("put", "orders", "b").strip()
    assert run("get", "orders", "--message-id", second) == "b"
    assert run("get", "orders", "--message-id", first) == "a"


def test_a_body_comes_from_the_argument_a_file_or_stdin_byte_for_byte(space: Path, tmp_path: Path) -> None:
    body = bytes(range(256)) + b"\r\n\n"
    (tmp_path / "body").write_bytes(body)
    run("put", "orders", "--file", tmp_path / "body")
    run("put", "orders", stdin=body)
    run("put", "orders", "")
    for expected in (body, body, b""):
        assert CliRunner().invoke(app, ["get", "orders"]).stdout_bytes == expected


def test_lines_are_messages_committed_in_branches(space: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a\r\nb\n\nc\xff")
    assert run("put", "orders", "--lines", "--file", tmp_path / "lines") == "4 messages put into orders\n"
    assert run("put", "orders", "--lines", "--count-per-branch", 2, stdin="d\ne\nf\n") == "3 messages put into orders\n"
    assert run("put", "orders", "--lines", stdin="") == "0 messages put into orders\n"
    with xaqueue.connect(space) as connection:
        assert [message.body for message in connection.browse("orders")] == [
            b"a",
            b"b",
            b"",
            b"c\xff",
            b"d",
            b"e",
            b"f",
        ]


def test_a_refused_line_tells_what_is_committed(space: Path) -> None:
    with (space / layout.QUEUES).open("a") as definitions:
        definitions.write("[space]\nmax_body_bytes = 3\n")
    text = (space / layout.QUEUES).read_text().replace('[space]\nsync = "NONE"\n', "")
    (space / layout.QUEUES).write_text(text)
    result = CliRunner().invoke(app, ["put", "orders", "--lines", "--count-per-branch", "1"], input="a\nlong line\n")
    assert result.exit_code == ExitCode.ERROR
    assert "stopped after 2 lines: of these the first 1 are committed" in result.stderr
    assert "over the limit of 3" in result.stderr
    assert run("get", "orders") == "a"


def test_all_properties_go_in_and_come_out(space: Path) -> None:
    words = ["--correlation-id", "42", "--priority", 7, "--group", "g", "--header", "a=b", "--header", "c=d=e"]
    words += ["--dedup-key", "k"]
    run("put", "orders", "x", *words, "--content-type", "text/plain", "--expires-at", "+1h")
    (told,) = lines(run("get", "orders", "--json"))
    assert (told["seq"], told["queue"], told["body"], told["size_bytes"]) == (1, "orders", "x", 1)
    assert (told["correlation_id"], told["priority"], told["content_type"]) == ("42", 7, "text/plain")
    assert (told["group"], told["headers"], told["dedup_key"]) == ("g", {"a": "b", "c": "d=e"}, "k")
    assert 3_590_000_000 < told["expires_at"] - told["enqueued_at"] < 3_610_000_000
    assert run("put", "orders", "y", "--not-before", "2999-01-01T00:00:00")
    fails("get", "orders", code=ExitCode.NOTHING)


def test_what_is_put_again_comes_to_nothing(space: Path) -> None:
    run("define", "orders", "dedup_window_s=60")
    first = run("put", "orders", "x", "--dedup-key", "k")
    assert run("put", "orders", "x again", "--dedup-key", "k") == first
    assert [told["body"] for told in lines(run("browse", "orders", "--json"))] == ["x"]
    assert "dedup_window_s = 0.0.0" in fails("define", "orders", "dedup_window_s=0.0.0", code=ExitCode.USAGE).replace(
        "'", ""
    )
    assert "names one message" in fails(
        "put", "orders", "--lines", "--dedup-key", "k", stdin=b"x\n", code=ExitCode.USAGE
    )


def test_bytes_that_are_no_text_are_base64_for_programs(space: Path) -> None:
    run("put", "orders", stdin=b"\xff\x00")
    (told,) = lines(run("get", "orders", "--json"))
    assert told["body_base64"] == "/wA="
    assert "body" not in told


def test_get_takes_several_and_writes_to_a_file_only_what_is_there(space: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"kept")
    fails("get", "orders", "--output", target, code=ExitCode.NOTHING)
    assert target.read_bytes() == b"kept"
    run("put", "orders", "--lines", stdin="a\nb\nc\n")
    run("get", "orders", "--count", 2, "--output", target)
    assert target.read_bytes() == b"ab"
    assert run("get", "orders", "--count", 5) == "c"


@pytest.mark.parametrize("terminal", [True, False])
def test_several_bodies_are_apart_on_a_terminal(
    space: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, terminal: bool
) -> None:
    for body in ("one", "two\n", "three"):
        run("put", "orders", body)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    with pytest.raises(SystemExit, match="0"):
        app(["get", "orders", "--count", "9"])
    assert capfd.readouterr().out == ("one\ntwo\nthree\n" if terminal else "onetwo\nthree")


def test_get_by_correlation_id(space: Path) -> None:
    run("put", "orders", "a", "--correlation-id", "1")
    run("put", "orders", "b", "--correlation-id", "2")
    assert run("get", "orders", "--correlation-id", "2") == "b"


def test_browse_takes_nothing_and_needs_no_ownership(space: Path) -> None:
    fails_text = CliRunner().invoke(app, ["browse", "orders"])
    assert (fails_text.exit_code, fails_text.stderr) == (0, "xaqueue: queue orders is empty\n")
    run("put", "orders", "--lines", "--correlation-id", "42", stdin="first\nsecond\x07\n")
    with xaqueue.connect(space):
        table = run("browse", "orders").splitlines()
        one = run("browse", "orders", "--limit", 1, "--json")
    assert table[0].split() == ["seq", "message", "id", "bytes", "tries", "correlation", "id", "body"]
    assert [row.split()[-1] for row in table[1:]] == ["first", "second."]
    assert [told["body"] for told in lines(one)] == ["first"]


def test_browse_ends_a_table_and_says_so(space: Path) -> None:
    run("put", "orders", "--lines", stdin="x\n" * 101)
    result = CliRunner().invoke(app, ["browse", "orders"])
    assert result.stderr == "xaqueue: there are more than these 100: --limit N or --json shows them\n"
    assert len(result.stdout.splitlines()) == 101
    assert len(run("browse", "orders", "--limit", 101).splitlines()) == 102
    assert len(run("browse", "orders", "--json").splitlines()) == 101


def test_browse_tells_a_damaged_message_and_shows_the_rest(space: Path) -> None:
    run("put", "orders", "--lines", stdin="a\nb\n")
    min(space.glob("committed/queue=orders/range=*/*")).write_bytes(b"")
    result = CliRunner().invoke(app, ["browse", "orders", "--json"])
    assert "xaqueue: message 1 is damaged, run `xaqueue check`" in result.stderr
    assert [told["body"] for told in lines(result.stdout)] == ["b"]


def test_who_has_the_space_passes_a_damaged_message_over_and_says_so(
    space: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run("put", "orders", "--lines", stdin="a\nb\n")
    with xaqueue.connect(space) as connection:
        min(space.glob("committed/queue=orders/range=*/*")).write_bytes(b"")
        assert [message.body for message in connection.browse("orders")] == [b"b"]
    assert "of queue orders is passed over, see `xaqueue check`: empty file" in caplog.text


def test_tail_without_following(space: Path) -> None:
    run("put", "orders", "--lines", stdin="a\nb\nc\n")
    assert [line.split()[-1] for line in run("tail", "orders", "--no-follow").splitlines()] == ["a", "b", "c"]
    told = lines(run("tail", "orders", "--no-follow", "--from", 2, "--json"))
    assert [message["body"] for message in told] == ["b", "c"]
    assert run("tail", "orders", "--no-follow", "--from", "latest") == ""


# Real processes


def test_get_waits_for_a_message_of_a_later_time(space: Path) -> None:
    run("put", "orders", "x", "--not-before", "+0.2s")
    assert run("get", "orders", "--wait", PATIENCE_S) == "x"


# What people see


def test_values_that_people_type() -> None:
    assert parameters.instant("2026-01-02T03:04:05+00:00") == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    local = parameters.instant("2026-01-02 03:04")
    assert isinstance(local, datetime)
    assert local == datetime(2026, 1, 2, 3, 4).astimezone()
    assert parameters.instant(None) is None
    assert parameters.instant("+1.5m") == timedelta(seconds=90)
    assert [parameters.span(text) for text in (None, "90s", "+2h", "1d")] == [
        None,
        *(timedelta(seconds=90), timedelta(hours=2), timedelta(days=1)),
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--expires-at", "2020-01-01"), "it expires now"),
        (("--expires-at", "1763809892"), "ISO 8601"),
        (("--not-before", "1970-01-01"), "before the year 2000"),
        (("--ttl", "90"), "give a number its unit"),
        (("--delay", "-5m"), "give a number its unit"),
        (("--ttl", "0s"), "it expires now"),
        (("--delay", "99999999999d"), "longer than 1,000 years"),
        (("--delay", "2h", "--ttl", "1h"), "before its not_before"),
        (("--delay", "1h", "--not-before", "+1h"), "say the same"),
    ],
)
def test_put_refuses_a_time_that_cannot_be_meant(space: Path, arguments: tuple[str, ...], told: str) -> None:
    assert told in fails("put", "orders", "x", *arguments, code=2)
    assert run("browse", "orders", "--json") == ""


def test_put_refuses_a_name_that_is_none(space: Path) -> None:
    """An empty variable of a shell, or bytes that are no UTF-8."""
    for option in ("--group", "--dedup-key"):
        assert "leave it away" in fails("put", "orders", "x", option, "", code=2)
        assert "'\\udcff' is refused" in fails("put", "orders", "x", option, "\udcff", code=2)
    assert "is no text" in fails("define", "orders", "--description", "\udcff", code=2)
    assert "or the first of them" in fails("show", "orders", "zz", code=2)
    assert run("browse", "orders", "--json") == ""


def test_a_forward_to_a_wrong_url_leaves_no_log(space: Path) -> None:
    """Which would refuse the right one."""
    assert "a server's URL begins with" in fails("forward", "orders", "--to", "xa://there:1", code=2)
    assert list(space.parent.glob("*.forward-*")) == []


def test_put_delays_and_expires_from_now_on(space: Path) -> None:
    run("put", "orders", "x", "--delay", "1h", "--ttl", "1.5h")
    with xaqueue.connect(space) as connection:
        (message,) = connection.browse("orders")
    assert (message.properties.expires_at or 0) - (message.properties.not_before or 0) == 1_800_000_000


def test_numbers_bodies_and_times_for_people() -> None:
    assert (size(0), size(1023), size(1536), size(5 << 40)) == ("0 B", "1023 B", "1.5 KiB", "5.0 TiB")
    assert (counted(1, "branch", "branches"), counted(1000, "branch", "branches")) == ("1 branch", "1,000 branches")
    assert preview(b"a\tb\nc") == "a.b.c"
    assert preview(b"\xff\x00") == ".."
    assert preview(b"x" * 100) == "x" * 45 + "..."
    assert moment(None) == moment(0) == ""
    assert moment(1_700_000_000_000_000).startswith("2023-11-1")


def test_a_bar_is_drawn_on_a_terminal_once_the_work_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    drawn = Terminal()
    monkeypatch.setattr(sys, "stderr", drawn)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("working") as bar:
        bar(1, 2)
    assert drawn.getvalue() == ""
    monkeypatch.setattr("xaqueue.cli.output.BAR_AFTER_S", 0.0)
    with progress_bar("working") as bar:
        bar(1, 2)
        bar(2, 2)
    assert "working" in drawn.getvalue()


def test_a_bar_is_silent_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("working") as bar:
        bar(1, 2)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyboardInterrupt(), "whether the 2 behind them are committed is not known"),
        (ResourceFailed("the space is fenced"), "whether the 2 behind them are committed is not known"),
        (RolledBack("the branch is rolled back"), ""),
    ],
)
def test_lines_whose_commit_was_cut_off_are_not_counted_as_missing(
    space: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str
) -> None:
    """Whoever goes on behind the count would put them twice."""
    commit, commits = Connection.commit, count(1)

    def cut_off(connection: Connection) -> None:
        commit(connection)
        if next(commits) == 2:
            raise error

    monkeypatch.setattr(Connection, "commit", cut_off)
    words = ["put", "orders", "--lines", "--count-per-branch", "2"]
    result = CliRunner().invoke(app, words, input="a\nb\nc\nd\ne\n")
    assert result.exit_code != ExitCode.OK
    assert "stopped after 4 lines: of these the first 2 are committed" in result.stderr
    assert said in result.stderr
    assert ("not known" in result.stderr) == bool(said)


def test_lines_that_were_read_and_not_committed_are_counted(space: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each is put when it comes, however long the next one takes."""

    def interrupted() -> Iterator[bytes]:
        yield from (b"a\n", b"b\n", b"c\n")
        raise KeyboardInterrupt

    with xaqueue.connect(space) as connection:
        with pytest.raises(KeyboardInterrupt):
            messages._put_lines(connection, partial(connection.enqueue, "orders"), cast(BinaryIO, interrupted()), 2)
        connection.rollback()
    said = capfd.readouterr().err
    assert "stopped after 3 lines: of these the first 2 are committed" in said
    assert "not known" not in said


def test_a_space_may_be_named_before_every_verb_that_takes_one() -> None:
    root = typer.main.get_command(app)
    found: dict[str, str] = {}
    groups: list[tuple[str, Any]] = [("", root)]
    for name, group in groups:  # which grows
        for verb in group.list_commands(None) if hasattr(group, "list_commands") else ():
            command = group.get_command(None, verb)
            groups.append((f"{name} {verb}", command))
            found |= {f"{name} {verb}": one.help for one in command.params if "--space" in one.opts}
    assert len(found) > 30
    assert [
        verb for verb, text in found.items() if not text.endswith(f"without it {SPACE_VARIABLE}, then ./queue.")
    ] == []
