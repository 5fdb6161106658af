"""One message as a person sees it, and messages that leave a space as lines of JSON and come back exactly."""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import xaqueue
from support.crash_level import NONE, open_space, ready
from support.crash_story import EMPTY
from support.doubtful import bodies, fails, run
from support.patience import eventually
from support.served import ServerThread
from xaqueue.cli import copies, output
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import app
from xaqueue.connection import Connection
from xaqueue.core.storage.ids import fresh_id
from xaqueue.features.opening import create
from xaqueue.features.session import Session
from xaqueue.message import MOST_TRIES, Message, Properties
from xaqueue.times import EARLIEST_US, LATEST_US

times = st.integers(EARLIEST_US, LATEST_US)
far = st.integers(LATEST_US // 2, LATEST_US)
names = st.text(string.ascii_letters, min_size=1, max_size=9)
words = st.text(max_size=9)
later: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | words | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
told = st.builds(
    Properties,
    st.just("q"),
    correlation_id=st.none() | st.binary(max_size=9),
    reply_queue=st.none() | names,
    failure_queue=st.none() | names,
    priority=st.integers(0, 9),
    enqueued_at=times,
    not_before=st.none() | times,
    expires_at=st.none() | far,
    tries=st.integers(0, MOST_TRIES),
    group=st.none() | words,
    dedup_key=st.none() | st.binary(max_size=9),
    content_type=st.none() | words,
    headers=st.dictionaries(words, words, max_size=3),
    traceparent=st.none() | words,
    origin=st.none() | words,
    unknown=st.dictionaries(names.map("later_{}".format), later, max_size=2),
)
messages = st.builds(
    Message, st.binary(min_size=16, max_size=16), st.just("q"), st.just(1), st.binary(max_size=30), told
)


def opened() -> Connection:
    return Connection(Session(open_space(ready(EMPTY, NONE).open_for_good(), NONE)), fresh_id)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(message=messages)
def test_a_line_brings_a_message_back_with_all_that_it_has(message: Message) -> None:
    """By the line alone, and by a space that is exported and imported."""
    line = output.json_text(output.message_json(message)).encode()
    assert b"\n" not in line
    assert replace(output.message_from(line, None), seq=1) == message
    with opened() as connection:
        assert connection.restore(output.message_from(line, None))
        connection.commit()
        (found,) = connection.browse("q")
        assert found == message
        again = output.json_text(output.message_json(found)).encode()
        assert again == line


@pytest.fixture
def space(tmp_path: Path) -> Path:
    root = tmp_path / "space"
    run("init", root)
    for queue in ("orders", "others"):
        run("define", queue, "--space", root)
    return root


@pytest.fixture(params=["directory", "served"])
def at(space: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path | str]:
    if request.param == "directory":
        yield space
        return
    server = ServerThread(space, tmp_path / "socket")
    yield server.url
    server.stop()


def filled(at: Path | str, count: int = 250) -> list[Message]:
    with xaqueue.connect(at) as connection:
        for number in range(count):
            connection.enqueue(
                "orders", b"%d\xff" % number, headers={"n": str(number % 2)}, delay=3600 if number else 0
            )
        connection.commit()
        return list(connection.browse("orders"))


def refused(*words: object, code: int = ExitCode.USAGE, stdin: str | None = None) -> str:
    """What it said, in any number of lines."""
    result = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return result.stderr


def test_a_queue_leaves_and_comes_back(at: Path | str, tmp_path: Path) -> None:
    before, file = filled(at), tmp_path / "orders.jsonl"
    assert run("export", "orders", "-o", file, "--space", at) == f"250 messages of queue orders written to {file}\n"
    assert [one.body for one in before] == bodies(at, "orders"), "none was taken"
    assert run("export", "orders", "--space", at) == file.read_text()
    assert len(run("export", "orders", "--where", "header.n=1", "--limit", "9", "--space", at).splitlines()) == 9
    run("purge", "orders", "--yes", "--space", at)
    assert run("import", file, "--dry-run", "--space", at).startswith("250 messages would be imported")
    assert bodies(at, "orders") == []
    assert run("import", file, "--space", at) == "250 messages imported, 0 were there already\n"
    assert run("import", "-", "--space", at, stdin=file.read_text()) == "0 messages imported, 250 were there already\n"
    assert run("import", "others", file, "--limit", "3", "--space", at) == "3 messages imported, 0 were there already\n"
    with xaqueue.connect(at) as connection:
        back = list(connection.browse("orders"))
        assert [replace(one, seq=0) for one in back] == [replace(one, seq=0) for one in before]
        assert [one.message_id for one in connection.browse("others")] == [one.message_id for one in before[:3]]


def test_an_import_that_is_broken_off_goes_on(at: Path | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, file = filled(at), tmp_path / "orders.jsonl"
    run("export", "orders", "-o", file, "--space", at)
    run("purge", "orders", "--yes", "--space", at)
    calls = iter(range(1))
    restore = Connection.restore_many

    def interrupted(connection: Connection, messages: Iterable[Message]) -> list[bool]:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return restore(connection, messages)

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "restore_many", interrupted)
        told = refused("import", file, "--space", at, code=130)
    assert "stopped at line 200: imported up to line 100. --from-line 101 goes on there" in told
    assert len(bodies(at, "orders")) == 100
    with xaqueue.connect(at) as connection:
        assert connection.remove("orders", before[0].message_id)
    assert run("import", file, "--from-line", "101", "--space", at).startswith("150 messages imported, 0 were")
    assert bodies(at, "orders") == [one.body for one in before[1:]], "what was consumed does not come again"
    assert run("import", file, "--space", at).startswith("1 message imported, 249 were")


def test_large_lines_are_not_read_all_at_once(space: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(space, 7)
    lines = run("export", "orders", "--space", space).splitlines(keepends=True)
    run("purge", "orders", "--yes", "--space", space)
    monkeypatch.setattr(copies, "PIECE_BYTES", len("".join(lines[:3])))
    wrong = "".join(lines[:5]) + "[1]\n"
    told = refused("import", "-", "--space", space, stdin=wrong)
    assert "stopped at line 6: imported up to line 3. --from-line 4 goes on there" in told
    assert run("import", "-", "--space", space, stdin="".join(lines)).startswith("4 messages imported, 3 were there")


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"body_base64": None}, "it has no 'body'"),
        ({"message_id": "12"}, "message id '12' is refused"),
        ({"message_id": None}, "it has no 'message_id'"),
        ({"body_base64": "?"}, "it is no message as export writes it"),
        ({"size_bytes": 9}, "its body has 2 bytes, and its size_bytes is 9"),
        ({"priority": 10}, "priority 10 is refused"),
        ({"tries": "1"}, "tries '1' is refused"),
        ({"ordr": 1}, "'ordr' is no property of a message"),
        ({"unknown_base64": "gQEC"}, "it is no message as export writes it"),
        ({"unknown_base64": "kQE="}, "it is no message as export writes it"),
        ({"body": "x"}, "body is there twice"),
        ({"headers": {"a": 1}}, "headers"),
        ({"queue": "a/b"}, "queue name 'a/b'"),
        ({"queue": "nowhere"}, "queue 'nowhere' is not defined"),
        ("[1]", "a JSON object is wanted"),
        ('{"seq": 1', "it is no message as export writes it"),
        ("[" * 100_000, "it is no message as export writes it"),
    ],
)
def test_a_line_that_is_wrong_is_refused_with_its_number(
    space: Path, changed: dict[str, Any] | str, complaint: str
) -> None:
    filled(space, 103)
    lines = run("export", "orders", "--space", space).splitlines()
    run("purge", "orders", "--yes", "--space", space)
    lines[101] = changed if isinstance(changed, str) else json.dumps(json.loads(lines[1]) | changed)
    told = refused("import", "-", "--space", space, stdin="\n".join(lines))
    assert "stopped at line 102: imported up to line 100. --from-line 101 goes on there" in told
    assert complaint in told
    assert len(bodies(space, "orders")) == 100
    run("purge", "orders", "--yes", "--space", space)
    assert "stopped at line 102: nothing was imported" in refused(
        "import", "-", "--dry-run", "--space", space, stdin="\n".join(lines)
    )


HOSTILE = ("../x", "/etc/x", "..", ".", "", "a/../../x", "a\0b", "a\nb", "\ud800", "x" * 5000, 7, ["x"], {"x": 1})
"""As the name of a queue; as that of a message, too."""
HUGE = (-1, 2**63, 2**64, 10**400, 1e308, float("nan"), True, "9")
HOSTILE_LINES: list[dict[str, Any]] = [
    *({name: value} for name in ("queue", "reply_queue", "failure_queue", "message_id") for value in HOSTILE),
    *({name: value} for name in ("size_bytes", "priority", "tries", "enqueued_at", "not_before") for value in HUGE),
    *({"message_id": value} for value in ("/" * 32, "\0" * 32, "../" * 11, "0" * 1_000_000)),
    *({name: "x" * 100_000} for name in ("tries", "expires_at", "size_bytes", "x" * 100_000)),
    *({"headers": value} for value in (["x"], {"": 1})),
    *({"unknown_base64": value} for value in ("3/////8=", "xv////8=", "gQEC")),  # maps and strings of 4 GiB
]
TOO_LARGE: list[dict[str, Any]] = [
    {"group": "x" * 100_000},
    {"headers": {"x" * 100_000: ""}},
    {"body": "x" * 101, "size_bytes": 101},
]
SPOKEN_OF: list[dict[str, Any]] = [
    {"group": "../../x"},
    {"correlation_id": "../x"},
    {"dedup_key": "../x"},
    {"content_type": "/etc/x"},
    {"headers": {"../x": "/etc/x"}},
    {"unknown_base64": "gaVxdWV1ZaQuLi94"},  # queue: ../x
]
"""What is no path, and is taken as it stands."""


def files_in(root: Path) -> set[Path]:
    return set(root.rglob("*"))


def test_a_hostile_line_names_nothing_outside(tmp_path: Path) -> None:
    """In a space that takes any queue: none is made, no file beside the space, and each is told in one sentence."""
    root = tmp_path / "in" / "space"
    create(root, any_queue=True)
    run("put", "orders", "first", "--space", root)
    given = json.loads(run("export", "orders", "--space", root)) | {"message_id": "1" * 32}
    for path in ("committed", "prepared", "active", "snapshots"):
        (tmp_path / path).mkdir()
    (root / "queues.toml").write_text("[default]\n[space]\nmax_body_bytes = 100\n")
    codes = [(ExitCode.USAGE, one) for one in HOSTILE_LINES] + [(ExitCode.ERROR, one) for one in TOO_LARGE]
    queues, outside = set((root / "committed").iterdir()), files_in(tmp_path) - files_in(root)
    with xaqueue.connect(root):  # it is opened once
        for code, changed in codes:
            told = refused("import", "-", "--space", root, code=code, stdin=json.dumps(given | changed))
            assert told.startswith("xaqueue: stopped at line 1: nothing was imported. --from-line 1 goes on there\n")
            assert told.count("\n") == 2, told
            assert len(told) < 1000
            assert bodies(root, "orders") == [b"first"], changed
        for number, changed in enumerate(SPOKEN_OF, 2):
            line = json.dumps(given | changed | {"message_id": f"{number:032x}"})
            assert run("import", "-", "--space", root, stdin=line) == "1 message imported, 0 were there already\n"
    assert len(bodies(root, "orders")) == 1 + len(SPOKEN_OF)
    assert set((root / "committed").iterdir()) == queues
    assert files_in(tmp_path) - files_in(root) == outside


def test_what_export_and_import_refuse(space: Path, tmp_path: Path) -> None:
    assert "a QUEUE, or none, and one FILE" in fails("import", "a", "b", "c", "--space", space, code=ExitCode.USAGE)
    assert "queue name 'a/b'" in fails("import", "a/b", "-", "--space", space, code=ExitCode.USAGE)
    assert "No such file" in fails("import", tmp_path / "none", "--space", space, code=ExitCode.ERROR)
    told = fails("export", "nowhere", "-o", tmp_path / "none", "--space", space, code=ExitCode.USAGE)
    assert "'nowhere' is not defined" in told
    assert not (tmp_path / "none").exists(), "it is left as it was"


def test_what_is_damaged_is_told(space: Path) -> None:
    filled(space, 3)
    (damaged,) = (space / "committed/queue=orders").glob("range=*/0000000000000002.*")
    damaged.write_bytes(b"x")
    result = CliRunner().invoke(app, ["export", "orders", "--space", str(space)])
    assert result.exit_code == ExitCode.NOTHING
    assert len(result.stdout.splitlines()) == 2
    assert "message 2 is damaged, run `xaqueue check`" in result.stderr
    told = CliRunner().invoke(app, ["show", "orders", damaged.name.split(".")[1], "--space", str(space)])
    assert told.exit_code == ExitCode.NOTHING
    assert "message 2 is damaged" in told.stderr


def test_a_message_is_shown(at: Path | str) -> None:
    body = '{"price": 1.10, "of": ["a", {"b": []}], "name": "x:\\u001b[0m", "price": 1e400}'
    with xaqueue.connect(at) as connection:
        options: Any = {"headers": {"colour": "r\033ed"}, "correlation_id": b"c\xff", "priority": 7, "dedup_key": b"d"}
        shown = connection.enqueue("orders", body.encode(), **options)
        raw = connection.enqueue("orders", bytes(range(256)) * 17)
        text = connection.enqueue("orders", b"two\nlines\033")
        connection.commit()
        connection.move("orders", text, "others")
    told = run("show", "orders", shown.hex()[:12], "--space", at)
    fields = dict(line.split("  ", 1) for line in told.partition("\n\n")[0].splitlines())
    assert fields["message id"].strip() == shown.hex()
    assert {name: fields[name].strip() for name in ("priority", "tries", "dedup key")} == {
        "priority": "7",
        "tries": "0",
        "dedup key": "d",
    }
    assert fields["correlation id base64"].strip() == "Y/8="
    assert fields["header colour"].strip() == "r\\x1bed"
    assert told.partition("\n\n")[2] == (
        '{\n  "price": 1.10,\n  "of": [\n    "a",\n    {\n      "b": []\n    }\n  ],\n  "name": "x:\\u001b[0m",\n'
        '  "price": 1e400\n}\n'
    )
    assert json.loads(run("show", "orders", shown.hex(), "--json", "--space", at))["body"] == body
    assert run("show", "orders", shown.hex(), "--body-only", "--space", at) == body
    told = run("show", "orders", raw.hex(), "--space", at)
    assert "00000ff0  f0 f1" in told
    assert told.endswith("256 bytes more: --hex shows all\n")
    assert "000010f0  f0 f1" in run("show", "orders", raw.hex(), "--hex", "--space", at)
    told = run("show", "others", text.hex(), "--space", at)
    assert "origin queue" in told
    assert told.endswith("\n\ntwo\nlines\\x1b\n")


def test_what_became_of_a_message(at: Path | str) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    run("define", "kept", "archive=parquet", "--space", at)
    with xaqueue.connect(at) as connection:
        taken, moved = connection.enqueue("kept", b""), connection.enqueue("orders", b"")
        connection.commit()
        assert connection.dequeue("kept") is not None
        connection.commit()
        connection.move("orders", moved, "kept")
        failed = connection.enqueue("kept", b"")
        connection.commit()
        assert connection.dequeue("kept", message_id=failed) is not None
        connection.rollback()

    def told(one: bytes) -> list[str]:
        events = json.loads(run("show", "kept", one.hex(), "--history", "--json", "--space", at))
        assert {event["queue"] for event in events} <= {"kept", "orders"}
        return [event["what"] for event in events]

    eventually(lambda: told(taken) == ["added", "committed", "taken"])  # the directories are behind the journal
    eventually(lambda: told(moved) == ["added", "moved", "is there"])
    assert "moved, from orders" in run("show", "kept", moved.hex()[:12], "--history", "--space", at)
    eventually(lambda: told(failed) == ["added", "committed", "failed", "is there"])
    assert "once since" in run("show", "kept", failed.hex(), "--history", "--space", at)
    wrong = fails("show", "kept", "f" * 32, "--history", "--space", at, code=ExitCode.NOTHING)
    assert "has it an archive?" in wrong


def test_what_show_refuses(space: Path) -> None:
    filled(space, 40)
    assert "has no message ffff" in fails("show", "orders", "f" * 32, "--space", space, code=ExitCode.NOTHING)
    assert "is refused" in fails("show", "orders", "xyz", "--space", space, code=ExitCode.USAGE)
    several = next(digit for digit in string.hexdigits if sum(one.startswith(digit) for one in ids(space)) > 1)
    assert "give more digits" in fails("show", "orders", several, "--space", space, code=ExitCode.USAGE)
    assert "give one" in fails("show", "orders", "0", "--hex", "--json", "--space", space, code=ExitCode.USAGE)
    assert "'nothing' is not defined" in fails("show", "nothing", "0", "--space", space, code=ExitCode.USAGE)


def ids(space: Path) -> list[str]:
    with xaqueue.connect(space) as connection:
        return [message.message_id.hex() for message in connection.browse("orders")]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | words, lambda one: st.lists(one) | st.dictionaries(words, one)
    )
)
def test_what_is_indented_is_the_same_document(document: Any) -> None:
    for text in (json.dumps(document), json.dumps(document, ensure_ascii=False, indent=1)):
        assert json.loads(copies._indented(text)) == document


def test_a_queue_is_undefined(at: Path | str) -> None:
    filled(at, 205)
    run("define", "failing", "failure_queue=orders", "--space", at)
    told = fails("undefine", "orders", "--purge", "--yes", "--space", at, code=ExitCode.USAGE)
    assert "named by [queues.failing] failure_queue: change these first" in told
    assert len(bodies(at, "orders")) == 205, "nothing is removed where it would be for nothing"
    assert run("undefine", "failing", "--space", at) == "queue failing is not defined any more\n"
    assert "it has 205 messages" in fails("undefine", "orders", "--space", at, code=ExitCode.ERROR)
    assert "with --yes" in fails("undefine", "orders", "--purge", "--space", at, code=ExitCode.NOTHING)
    told = run("undefine", "orders", "--purge", "--yes", "--space", at)
    assert told == "205 messages of queue orders removed\nqueue orders is not defined any more\n"
    assert "'orders' is not defined in queues.toml: did you mean 'others'?" in fails(
        "undefine", "orders", "--space", at, code=ExitCode.USAGE
    )
    assert [queue["name"] for queue in json.loads(run("queues", "--json", "--space", at))] == ["others"]


def test_a_purge_ends_what_others_hold_up_with_a_reason(space: Path) -> None:
    """What a branch in doubt holds stays, and the queue with it."""
    filled(space, 2)
    with xaqueue.connect(space) as connection:
        connection.tpc_begin(connection.xid(1, "in doubt", ""))
        assert connection.dequeue("orders") is not None
        connection.tpc_prepare()
    result = CliRunner().invoke(app, ["undefine", "orders", "--purge", "--yes", "--space", str(space)])
    assert result.exit_code == ExitCode.ERROR
    assert "1 message of queue orders removed" in result.stdout
    assert "it has 1 messages (1 held, or leaving)" in result.stderr


@pytest.mark.parametrize("words", [("import", "{file}"), ("move", "others", "orders"), ("requeue", "moved")])
@pytest.mark.parametrize("why", ["", "is not defined", "max_messages = 2", "max_bytes = 300", "over the limit of 10"])
def test_a_dry_run_says_what_the_target_would_say(
    space: Path, tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    """Beforehand the same as afterwards: whatever the command itself is refused with, and how many it would be."""
    run("define", "moved", "--space", space)
    with xaqueue.connect(space) as connection:
        for _ in range(3):
            message_id = connection.enqueue("orders", b"x" * 50)
            connection.commit()
            if words[0] == "requeue":
                connection.move("orders", message_id, "moved")
            elif words[0] == "move":
                connection.move("orders", message_id, "others")
            connection.commit()
    file = tmp_path / "orders.jsonl"
    run("export", "orders", "-o", file, "--space", space)
    run("purge", "orders", "--yes", "--space", space)
    if why == "is not defined":
        run("undefine", "orders", "--space", space)
    elif why.startswith("max_"):
        run("define", "orders", why.replace(" ", ""), "--space", space)
    elif why:
        with (space / "queues.toml").open("a") as definitions:
            definitions.write("\n[space]\nmax_body_bytes = 10\n")
    why = "" if why.startswith("over") and words[0] != "import" else why  # what is there may stay as it is
    given = [word.format(file=file) for word in words]
    before = {path: path.read_bytes() for path in space.glob("committed/**/*") if path.is_file()}
    done = [CliRunner().invoke(app, [*given, *dry, "--space", str(space)]) for dry in (["--dry-run"], [])]
    assert done[0].exit_code == done[1].exit_code == (0 if not why else done[0].exit_code)
    assert (done[0].exit_code != 0) == bool(why)
    for one in done:
        assert why in one.stderr
        assert bool(why) or "3 messages" in one.stdout
    if why:
        assert before == {path: path.read_bytes() for path in space.glob("committed/**/*") if path.is_file()}


def test_a_dry_run_by_a_server_asks_it(space: Path, tmp_path: Path) -> None:
    run("define", "orders", "max_messages=2", "--space", space)
    with xaqueue.connect(space) as connection:
        for number in range(2):
            connection.enqueue("orders", b"%d" % number)
            connection.enqueue("others", b"%d" % number)
    file = tmp_path / "lines"
    run("export", "others", "-o", file, "--space", space)
    server = ServerThread(space, tmp_path / "socket")
    try:
        at = server.url
        assert "is full by max_messages = 2" in refused(
            "import", "orders", file, "--dry-run", "--space", at, code=ExitCode.ERROR
        )
        assert "is full by max_messages = 2" in refused(
            "move", "others", "orders", "--dry-run", "--space", at, code=ExitCode.ERROR
        )
        assert "is not defined" in refused("import", "nowhere", file, "--dry-run", "--space", at)
        assert "is not defined" in refused("move", "others", "nowhere", "--dry-run", "--space", at)
        said = "0 messages would be imported, 2 are there already\n"
        assert (
            run("import", file, "--dry-run", "--space", at)
            == said
            == run("import", file, "--dry-run", "--space", space)
        )
    finally:
        server.stop()
