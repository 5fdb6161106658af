"""The verbs reach a space through its server: by the server's URL, and by the directory that it serves."""

from __future__ import annotations

import getpass
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

import xaqueue
from support.doubtful import XID, bodies, fails, leave_in_doubt, listed, run
from support.served import ServerThread, serving
from xaqueue.cli import location
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.core.engine.heuristics import forgotten
from xaqueue.core.model import layout
from xaqueue.core.owner.watches import DefinitionsWatch
from xaqueue.errors import (
    ConnectionLost,
    HeuristicOutcome,
    InvalidArgument,
    OutcomeUnknown,
    ProtocolError,
    UnknownXid,
)
from xaqueue.features.opening import create
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.rpc.methods.service import RemoteOperator
from xaqueue.xid import Xid

BRANCHES = 100
PATIENCE_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    """Serves a space with a branch in doubt; the directory says where."""
    with serving(leave_in_doubt(tmp_path / "space", sync="JOURNAL")) as thread:
        yield thread


@pytest.fixture(params=["url", "directory"])
def space(server: ServerThread, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    given = server.url if request.param == "url" else str(server.root)
    monkeypatch.setenv("XAQUEUE_SPACE", given)
    return given


def test_put_get_and_browse(server: ServerThread, space: str) -> None:
    message_id = run("put", "letters", "first", "--header", "k=v").strip()
    run("put", "letters", "second", "--priority", "9")
    server.call(server.space.log.settle)
    shown = [json.loads(line) for line in run("browse", "letters", "--json").splitlines()]
    assert [(m["body"], m["priority"]) for m in shown] == [("first", 4), ("second", 9)]
    assert (shown[0]["message_id"], shown[0]["headers"]) == (message_id, {"k": "v"})
    assert len(run("browse", "letters", "--limit", "1").splitlines()) == 2
    assert run("get", "letters") == "first"
    assert run("get", "letters") == "second"
    assert "is empty" in fails("get", "letters", code=ExitCode.NOTHING)


def test_lines_are_put(server: ServerThread, space: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("1\n2\n3\n")
    assert run("put", "letters", "--file", tmp_path / "lines", "--lines") == "3 messages put into letters\n"
    assert bodies(server.url, "letters") == [b"1", b"2", b"3"]


def test_what_is_in_doubt_is_the_same_from_both_sides(server: ServerThread) -> None:
    from_directory, from_server = listed("--space", server.root), listed("--space", server.url)
    for branch in (*from_directory, *from_server):
        assert branch.pop("age_s") >= 0
    assert from_server == from_directory
    assert from_server[0]["xid"] == str(XID)


def test_show_and_dry_run(server: ServerThread, space: str) -> None:
    assert "in doubt" in run("indoubt", "show", XID)
    rows = [line.split() for line in run("indoubt", "commit", XID, "--dry-run").splitlines()]
    assert ["orders", "0", "1", "1", "0", "1", "0"] in rows
    assert listed()[0]["state"] == "in doubt"


@pytest.mark.parametrize(("verb", "replies", "orders"), [("commit", [b"added"], []), ("rollback", [], [b"held"])])
def test_a_branch_is_decided_and_forgotten(
    server: ServerThread, space: str, verb: str, replies: list[bytes], orders: list[bytes]
) -> None:
    run("indoubt", verb, XID, "--reason", "why")
    assert bodies(server.url, "replies") == replies
    assert bodies(server.url, "orders") == orders
    decision = listed("--space", server.url)[0]["decision"]
    assert decision["by"].startswith(f"{getpass.getuser()}@{socket.gethostname()}")
    assert (decision["outcome"], decision["reason"]) == (verb, "why")
    assert "already" in fails("indoubt", "commit", XID, "--reason", "why", code=ExitCode.ERROR)
    run("indoubt", "forget", XID, "--reason", "over")
    assert listed("--space", server.url) == []
    (line,) = json.loads(run("indoubt", "list", "--forgotten", "--json"))
    assert (line["xid"], line["outcome"], line["reason"], line["forgotten_reason"]) == (str(XID), verb, "why", "over")
    assert [asdict(line) for line in forgotten(server.root)] == [line]


def test_refusals_come_through(server: ServerThread, space: str) -> None:
    assert "is not in doubt" in fails("indoubt", "forget", "1.YQ.Yg", code=ExitCode.ERROR)
    assert "is unknown" in fails("indoubt", "forget", XID, code=ExitCode.ERROR)
    assert "1000 characters" in fails("indoubt", "commit", XID, "--reason", "x" * 1001, code=ExitCode.USAGE)
    assert listed()[0]["state"] == "in doubt"


def test_status_by_url(server: ServerThread) -> None:
    told = run("status", "--space", server.url)
    assert "ready" in told
    assert "0 branches\n" in told
    assert json.loads(run("status", "--space", server.url, "--json"))["state"] == "ready"


@pytest.mark.parametrize("verb", [("check",), ("tail", "q"), ("salvage-journal",)])
def test_what_works_on_the_directory_says_so(server: ServerThread, verb: tuple[str, ...]) -> None:
    told = fails(*verb, "--space", server.url, code=ExitCode.USAGE)
    assert "run it on the server's machine with --space DIR" in told


def test_what_wants_a_space_to_itself_says_how_to_end_its_server(server: ServerThread) -> None:
    (server.root / "snapshots").mkdir(exist_ok=True)
    for words in (["restore", "--yes"], ["salvage-journal", "--yes"]):
        told = fails(*words, "--space", server.root, code=ExitCode.SPACE)
        assert f"stop its owner first, after `xaqueue drain --space {server.root}`" in told


def test_a_server_that_is_not_there_is_a_clear_error() -> None:
    told = fails("indoubt", "list", "--space", "xaq+unix:///nowhere/socket", code=ExitCode.SPACE)
    assert "no server answers" in told
    assert "xaqueue serve" in told


def test_a_server_that_is_gone_is_not_asked(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner file still names the socket; nobody holds the lock."""
    monkeypatch.setattr(location, "SERVER_S", 0.1)
    owner = (server.root / layout.OWNER).read_bytes()
    server.stop()
    (server.root / layout.OWNER).write_bytes(owner)
    run("indoubt", "commit", XID, "--reason", "why", "--space", server.root)
    assert bodies(server.root, "replies") == [b"added"]


def test_looking_and_deciding_beside_others_that_work(server: ServerThread) -> None:
    """Nobody is in anybody's way, and each branch has one outcome: the first to end it, its owner or the operator."""
    outcomes: list[str] = []
    failed: list[BaseException] = []
    seen = {number: threading.Event() for number in range(0, BRANCHES, 10)}

    def work() -> None:
        try:
            with xaqueue.connect(server.url) as connection:
                for number in range(BRANCHES):
                    xid = Xid(9, b"%d" % number, b"b")
                    connection.tpc_begin(xid)
                    connection.enqueue("busy", b"%d" % number)
                    connection.tpc_prepare()
                    assert number not in seen or seen[number].wait(PATIENCE_S)
                    try:
                        connection.tpc_commit()
                        outcomes.append("committed")
                    except HeuristicOutcome:
                        outcomes.append("rolled back")
        except BaseException as error:
            failed.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    manager = remote_manager(server.url)
    operator = RemoteOperator(manager)
    decided = 0
    while worker.is_alive():
        for branch in operator.in_doubt():
            if branch.xid.format_id == 9 and branch.decision is None and branch.state == "in doubt":
                with suppress(UnknownXid, ProtocolError):
                    operator.decide(branch.xid, False, "me@here", "why")
                    decided += 1
                    seen.get(int(branch.xid.gtrid), threading.Event()).set()
        assert operator.depths(["busy", "none"])["none"] == 0
    worker.join()
    assert failed == []
    assert outcomes.count("rolled back") == decided >= len(seen)
    assert len(bodies(server.url, "busy")) == outcomes.count("committed") == BRANCHES - decided
    for branch in operator.in_doubt():
        if branch.xid.format_id == 9:
            operator.forget(branch.xid, "me@here", "")
    assert len(operator.forgotten()) == decided
    manager.close()


class Gone:
    """A connection whose server died before it answered."""

    def call(self, method: str, *params: object) -> object:
        raise ConnectionLost("the server hung up")


def test_a_lost_answer_is_told_as_such() -> None:
    operator = RemoteOperator(Gone())  # type: ignore[arg-type]
    with pytest.raises(OutcomeUnknown, match="was decided is unknown: `xaqueue indoubt show") as told:
        operator.decide(XID, True, "me", "")
    assert told.value.xid == XID
    with pytest.raises(OutcomeUnknown, match="was forgotten is unknown"):
        operator.forget(XID, "me", "")
    with pytest.raises(ConnectionLost, match="hung up"):
        operator.in_doubt()


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("indoubt_decide", (tuple(XID), 1, "me")),
        ("indoubt_decide", (tuple(XID), True, 7)),
        ("indoubt_decide", (tuple(XID), True, "me", "two\nlines")),
        ("indoubt_decide", ("x", True, "me")),
        ("indoubt_decide", (tuple(XID), True)),
        ("indoubt_forget", (tuple(XID), None)),
        ("indoubt_forget", (tuple(XID), "x" * 1001)),
        ("depths", ("orders",)),
        ("depths", (["../orders"],)),
        ("depths", ([None],)),
        ("indoubt_list", (1,)),
    ],
)
def test_parameters_that_are_wrong_are_refused_and_nothing_is_done(
    server: ServerThread, method: str, params: tuple[object, ...]
) -> None:
    manager = remote_manager(server.url)
    with pytest.raises(InvalidArgument):
        manager.call(method, *params)
    assert listed("--space", server.url)[0]["state"] == "in doubt"
    manager.close()


def test_queues_and_release_of_a_stream(server: ServerThread, space: str) -> None:
    for number in range(9):
        run("put", "letters", str(number))
    manager = remote_manager(server.url)
    manager.reserve("letters", "query#1", 0, 4)
    manager.consume("letters", "query#1", 4)
    manager.reserve("letters", "query#1", 4, 7)
    manager.close()
    assert ["letters", "query#1", "4", "5", "to", "7", "5"] in [line.split() for line in run("queues").splitlines()]
    told = next(queue for queue in json.loads(run("queues", "--json")) if queue["name"] == "letters")
    assert (told["stream"], told["consumed"], told["in_flight"], told["lag"]) == ("query#1", 4, [4, 7], 5)
    assert "reserved for stream query#1" in fails("get", "letters", code=ExitCode.ERROR)
    said = run("release", "letters")
    assert "consumed up to number 4" in said
    assert "5 to 7" in said
    assert run("get", "letters") == "4"
    assert "is not reserved" in run("release", "letters", code=ExitCode.NOTHING)
    assert "query#1" not in run("queues")


@pytest.mark.parametrize("archive", [False, True])
def test_release_of_a_queue_that_was_read_and_written_further(server: ServerThread, space: str, archive: bool) -> None:
    """What the stream has written before it was lost is removed as the stream would have, and nothing else is."""
    for number in range(9):
        run("put", "letters", str(number))
    manager = remote_manager(server.url)
    manager.reserve("letters", "query#1", 0, 4)
    manager.consume("letters", "query#1", 4, archive)
    manager.close()
    assert "is published up to 9" in fails("release", "letters", "--through", "10", code=ExitCode.USAGE)
    assert "consumed up to number 7" in run("release", "letters", "--through", "7")
    assert [run("get", "letters") for _ in range(2)] == ["7", "8"]
    archived = list((server.root / "archive").rglob("range=*/*"))
    assert len(archived) == (7 if archive else 0)
    assert "is not reserved" in run("release", "letters", "--through", "9", code=ExitCode.NOTHING)


def test_queues_that_are_full(server: ServerThread) -> None:
    url = ("--space", server.url)
    run("define", "small", "max_messages=1", *url)
    assert "is full by" not in run("queues", *url)
    run("put", "small", "1", *url)
    assert ["small", "max_messages", "=", "1"] in [line.split() for line in run("queues", *url).splitlines()]
    assert "queue small is full" in fails("put", "small", "2", *url, code=ExitCode.ERROR)
    told = next(queue for queue in json.loads(run("queues", "--json", *url)) if queue["name"] == "small")
    assert told["full"] == "max_messages = 1"
    run("define", "small", "max_messages=", *url)
    run("put", "small", "2", *url)


@pytest.mark.parametrize("is_served", [True, False])
def test_topics_are_listed_with_who_gets_what_is_published(server: ServerThread, is_served: bool) -> None:
    """SMQ-48."""
    where = ("--space", server.url if is_served else str(server.root))
    for words in (("--topic", "events", "--description", "what happens"), ("--topic", "unheard")):
        run("define", *words, *where)
    run("define", "audit", "topic=events", *where)
    run("define", "paid", "topic=events", 'match={kind = "paid", region = "eu*"}', *where)
    if not is_served:
        server.stop()
    rows = [
        ["topic", "goes", "to", "only", "with", "description"],
        ["events", "audit", "what", "happens"],
        ["events", "paid", "kind=paid,", "region=eu*", "what", "happens"],
        ["unheard", "nobody"],
    ]
    for command in ("queues", "status"):
        lines = [line.split() for line in run(command, *where).splitlines()]
        assert [line for line in lines if line in rows] == rows, command
    assert json.loads(run("status", "--json", *where))["topics"][0] == {
        "name": "events",
        "description": "what happens",
        "subscribers": {"audit": {}, "paid": {"kind": "paid", "region": "eu*"}},
    }


def test_queues_that_are_nearly_full(server: ServerThread) -> None:
    """STD-46: from nine tenths on it is told, before anybody is refused."""
    url = ("--space", server.url)
    run("define", "small", "max_messages=10", "max_bytes=1000000", *url)
    for near, count in ((False, 8), (True, 1)):
        for number in range(count):
            run("put", "small", f"{number}", *url)
        assert ("queue small is nearly full, 90%" in run("health", *url)) == near
        assert (["small", "90%"] in [line.split() for line in run("queues", *url).splitlines()]) == near
    assert re.search(r'xaqueue_queue_used_ratio\{.*queue="small".*\} 0\.9\b', run("metrics", *url))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--takeover-after", "5"], "--takeover-after is for --standby"),
        (["--standby", "--takeover-after", "1"], "a takeover after 1 s is refused"),
        (["--standby", "--sync", "FSYNC"], "needs sync = JOURNAL, and this space is to have FSYNC"),
    ],
)
def test_what_a_standby_is_not_told(tmp_path: Path, words: list[str], complaint: str) -> None:
    create(tmp_path / "s")
    assert complaint in fails("serve", "--space", tmp_path / "s", *words, code=ExitCode.USAGE)


@pytest.mark.parametrize("by_url", [True, False])
def test_one_queue_is_repaired_while_it_is_served(tmp_path: Path, *, by_url: bool) -> None:
    """By the URL nothing is looked at but what the server reads; of a directory the queue is checked as well."""
    root = leave_in_doubt(tmp_path / "space", sync="JOURNAL")
    with xaqueue.connect(root) as connection:
        for body in (b"first", b"second"):
            connection.enqueue("orders", body)
    with serving(root) as server:
        space = ["--space", server.url if by_url else str(root)]
        paths = (root / layout.queue_path("orders")).glob("range=*/*")
        held, first = ((path, path.write_bytes(b"X"))[0] for path in sorted(paths)[:2])
        shown = json.loads(run("check", "orders", "--repair", "--json", *space, code=0 if by_url else ExitCode.NOTHING))
        (moved,) = shown["repaired"]["moved"]
        assert moved.startswith(str(first.relative_to(root)))
        _, left = shown["repaired"]["notes"]
        assert str(held.relative_to(root)) in left
        assert [one["path"] for one in shown["findings"]] == ([] if by_url else [str(held.relative_to(root))])
        assert run("get", "orders", *space) == "second"


def test_a_definition_by_the_directory_is_in_force_when_it_returns(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the server hears of a changed file only later."""
    monkeypatch.setattr(DefinitionsWatch, "on_any_event", lambda *_: None)
    run("define", "new", "--space", server.server.root)
    assert "new" in server.space.definitions.queues
