"""The HTTP side of a server: what its door refuses before anything is asked, and who may ask for what."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from hashlib import sha256
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.certificates import Authority
from support.served import ServerThread
from xaqueue.access import Identity
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.errors import AccessDenied, InvalidArgument
from xaqueue.features.opening import create
from xaqueue.rpc.server import scheduler
from xaqueue.web import console, front, link, slowing
from xaqueue.web.door import BODY_BYTES, SECURITY
from xaqueue.web.front import HttpConfig, HttpFront
from xaqueue.web.link import ServerLink

TOKEN, OTHER = "producer-0123456789", "nobody-0123456789ab"
ROLES = f"""
[queues.orders]
[access.roles.shop]
members = ["token:{sha256(TOKEN.encode()).hexdigest()}"]
produce = ["orders"]
"""
ACTION = {"x-xaqueue": "1", "content-type": "application/json"}
Ask = Callable[..., tuple[int, dict[str, Any]]]
Asked = tuple[str, str, bytes | str, dict[str, str]]
"""Method, path, body and headers."""


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("http")


@pytest.fixture(scope="module")
def server(room: Path) -> Iterator[ServerThread]:
    create(room / "space")
    write_definitions(room / "space", ROLES)
    thread = ServerThread(room / "space", room / "socket", sync="NONE")
    yield thread
    thread.stop()


@pytest.fixture(scope="module")
def shown(server: ServerThread) -> Iterator[HttpFront]:
    with HttpFront(HttpConfig("127.0.0.1:0")) as made:
        made.show(server.server)
        yield made


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong tokens are not waited for."""
    monkeypatch.setattr(slowing, "FIRST_S", 0.0)


def port_of(made: HttpFront) -> int:
    return int(made.url.rstrip("/").rpartition(":")[2])


def asked(connection: HTTPConnection, method: str, path: str, **given: Any) -> tuple[int, dict[str, Any], HTTPResponse]:
    connection.request(method, path, **given)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    is_json = answer.headers.get_content_type() == "application/json"
    return answer.status, json.loads(content) if is_json and content else {}, answer


@pytest.fixture
def ask(shown: HttpFront) -> Ask:
    """Status and document of an answer, each of which has all that keeps a browser from harm."""

    def request(method: str, path: str, *, body: bytes | None = None, **headers: str) -> tuple[int, dict[str, Any]]:
        connection = HTTPConnection("127.0.0.1", port_of(shown), timeout=20)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        status, told, answer = asked(connection, method, path, body=body, headers=named)
        assert {name: answer.headers[name] for name in SECURITY} == SECURITY
        assert answer.headers["server"] is None
        return status, told

    return request


def test_the_page_and_its_data(ask: Ask) -> None:
    for path in console.FILES:
        assert ask("GET", path)[0] == 200
    status, told = ask("GET", "/api/overview")
    assert status == 200
    assert [queue["name"] for queue in told["status"]["queues"]] == ["orders"]
    assert told["status"]["sessions"] == 0  # who looks is none of them, and keeps no server from its end
    assert not told["acts"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:80", "LOCALHOST:8000"])
def test_names_of_this_machine_are_taken(ask: Ask, host: str) -> None:
    assert ask("GET", "/", host=host)[0] == 200


def test_an_action_of_the_page_itself_is_taken(ask: Ask) -> None:
    headers = ACTION | {"host": "localhost:8000", "origin": "http://localhost:8000"}
    assert ask("POST", "/api/decide", body=b"{}", authorization=f"Bearer {TOKEN}", **headers)[0] == 400


@pytest.mark.parametrize("path", ["/api/requeue", "/none", "/"])
@pytest.mark.parametrize("length", ["Content-Length: 100", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("how", [socket.SHUT_WR, None])
def test_who_goes_within_a_request_is_no_fault(
    shown: HttpFront, caplog: pytest.LogCaptureFixture, path: str, length: str, how: int | None
) -> None:
    """It gets an answer of some kind, or none; also where what it sends is no HTTP any more."""
    head = "".join(f"{name}: {value}\r\n" for name, value in ACTION.items())
    for piece in ("", "5\r\n{", "zz\r\n"):
        with socket.create_connection(("127.0.0.1", port_of(shown)), 20) as peer:
            bearer = f"Authorization: Bearer {TOKEN}\r\n"
            peer.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{head}{bearer}{length}\r\n\r\n{piece}".encode())
            if how is not None:
                peer.shutdown(how)
                assert peer.recv(65536)[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 404", b"HTTP/1.1 405")
    assert [text_at(shown, "/livez")[0] for _ in range(3)] == [200] * 3  # behind what was there before
    assert caplog.messages == []


def test_data_are_for_no_other_site(ask: Ask) -> None:
    assert ask("GET", "/api/overview", sec_fetch_site="cross-site")[0] == 403
    assert ask("GET", "/", sec_fetch_site="cross-site")[0] == 200  # a link to the page


def decided(body: bytes | str, **headers: str) -> Asked:
    """A branch, as somebody who may not decide one asks for it."""
    return "POST", "/api/decide", body, {"authorization": f"Bearer {TOKEN}"} | (headers or ACTION)


def acted(name: str, **body: object) -> Asked:
    return "POST", f"/api/{name}", json.dumps(body), {"authorization": f"Bearer {TOKEN}"} | ACTION


def looked(path: str, method: str = "GET", **headers: str) -> Asked:
    return method, path, "", headers


BRANCH = {"xid": "7.Zw.Zw", "commit": True}
JSON = "the request is no JSON object: send one, as {"
XID = "is no xid: expected <format id>.<base64url gtrid>.<base64url bqual>"
NUMBER = "upto: a number is wanted, of the last message that goes back"
NAME = "is refused: 1 to 127 of A-Z a-z 0-9 . _ - and the first a letter or digit"
RESOLVE = "needs the right to resolve, which no role of token:f6d04298... has: write resolve = true in a role"
KNOWN = "does not know this token: copy it whole, as it was given to you, or ask who keeps the space's queues.toml"
MISTAKES: dict[str, tuple[Asked, int, str]] = {
    # where
    **{
        path: (looked(path), 404, "there is nothing to GET at /")
        for path in ("/api", "/console.py", "/../door.py", "/%2e%2e/door.py", "//etc/passwd", "/docs", "/openapi.json")
    },
    "/metrics/": (looked("/metrics/"), 404, "there is nothing to GET at /metrics/: the console is at /"),
    "an action where there is none": (
        ("POST", "/api/overview", "{}", ACTION),
        405,
        "there is nothing to POST at /api/overview: the console is at /",
    ),
    **{
        method: (looked("/api/overview", method), 405, f"{method} is not for anything here: GET and POST are")
        for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW")
    },
    **{
        f"host {host}": (
            looked("/api/overview", host=host),
            421,
            "is not the host that the request names: use 127.0.0.1",
        )
        for host in ("evil.example", "127.0.0.1.evil.example", "", "[", "localhost.", "10.0.0.1")
    },
    # from where
    "no header": (decided("{}", accept="*/*"), 403, "an action needs the header x-xaqueue: 1, so that no other site's"),
    "a form's": (decided("{}", content_type="application/json"), 403, "an action needs the header x-xaqueue: 1"),
    **{
        kind: (
            decided("{}", x_xaqueue="1", content_type=kind),
            415,
            "is asked for in JSON: Content-Type: application/json",
        )
        for kind in ("text/plain", "application/x-www-form-urlencoded")
    },
    **{
        f"{header} {value}": (
            decided("{}", **ACTION, **{header: value}),
            403,
            "page, and nothing was done: ask from the",
        )
        for header, values in {
            "sec_fetch_site": ("cross-site", "same-site"),
            "origin": ("http://evil.example", "null", "http://[", "http://[x]", "http://]", "\xff", ""),
        }.items()
        for value in values
    },
    "another's question": (looked("/api/overview", sec_fetch_site="cross-site"), 403, "ask from the console's own"),
    # who
    "nobody": (("POST", "/api/decide", "{}", ACTION), 403, "sign in with one (`xaqueue token ROLE FILE` makes it)"),
    "a wrong token": (looked("/api/overview", authorization=f"Bearer {OTHER}"), 403, KNOWN),
    "half a token": (
        looked("/api/overview", authorization="Bearer short"),
        403,
        "is too short, too long, or has signs",
    ),
    "no right to decide": (decided(json.dumps(BRANCH | {"reason": "so"})), 403, f"indoubt_decide {RESOLVE}"),
    "no right to forget": (acted("forget", xid="7.Zw.Zw", reason="so"), 403, f"indoubt_forget {RESOLVE}"),
    "no right to browse": (
        acted("requeue", queue="orders", upto=1),
        403,
        "needs the right to browse, which no role of token:f6d04298... has: add it to browse in a role of the [access]",
    ),
    # what
    "nothing": (decided(""), 400, JSON),
    "a list": (decided("[]"), 400, JSON),
    "no text": (decided(b"\xff"), 400, JSON),
    "a deep one": (decided("[" * 50_000), 400, JSON),
    "too much": (decided(" " * (BODY_BYTES + 1)), 413, "the request is over the limit of 65,536 bytes"),
    "no xid": (decided("{}"), 400, f"'' {XID}"),
    "a number for an xid": (acted("decide", xid=7), 400, "xid: a text is wanted"),
    "half a sign": (decided('{"xid": "\\ud800"}'), 400, XID),
    "no reason": (acted("decide", **BRANCH), 400, "a reason is wanted: it is recorded with who and when. Nothing was"),
    "an empty reason": (acted("decide", **BRANCH, reason=" "), 400, "a reason is wanted: it is recorded with who"),
    "no decision": (acted("decide", xid="7.Zw.Zw", commit="true", reason="so"), 400, "commit: true or false is wanted"),
    "no number": (acted("requeue", queue="orders"), 400, NUMBER),
    "true for a number": (acted("requeue", queue="orders", upto=True), 400, NUMBER),
    "a number to find": (acted("requeue", queue="orders", upto=1, find=7), 400, "find: a text is wanted"),
    "markup for a queue": (acted("requeue", queue="<script>", upto=1), 400, f"queue name '<script>' {NAME}"),
    "a list for a queue": (acted("requeue", queue=["orders"], upto=1), 400, f"queue name ['orders'] {NAME}"),
    "markup to look at": (looked("/api/messages?queue=%3Cscript%3E"), 400, f"queue name '<script>' {NAME}"),
    "no queue to look at": (looked("/api/messages"), 400, f"queue name '' {NAME}"),
    "half an xid": (looked("/api/branch?xid=7"), 400, f"'7' {XID}"),
    "advice on nothing": (looked("/api/advice"), 400, f"'' {XID}"),
    "advice on another's": (
        looked("/api/advice?xid=7.Zw.Zw"),
        400,
        "no transaction manager of xaqueue made this branch",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_what_is_wrong_and_what_is_right(
    mistake: str, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    (method, path, body, headers), status, said = MISTAKES[mistake]
    found = ask(method, path, body=body if isinstance(body, bytes) else body.encode(), **headers)
    assert found[0] == status, found
    assert said in found[1]["error"]
    assert [one for one in caplog.messages if "is lost" in one] == []  # nor is a transaction left behind


@pytest.mark.parametrize(
    "path", ["overview", "messages?queue=orders", "branch?xid=7.Zw.Zw", "history", "advice?xid=7.Zw.Zw"]
)
@pytest.mark.parametrize(
    "shown_as", [f"Bearer {OTHER}", "Bearer short", "Bearer " + "\xfc" * 20, "Bearer " + "x" * 2000, "bearer"]
)
def test_a_token_that_nobody_knows_is_worse_than_none(ask: Ask, path: str, shown_as: str) -> None:
    assert ask("GET", f"/api/{path}", authorization=shown_as)[0] == 403


def test_a_token_is_taken_in_its_header_only(ask: Ask) -> None:
    _, told = ask("GET", f"/api/overview?token={TOKEN}&access_token={TOKEN}", cookie=f"token={TOKEN}")
    assert not told["acts"]
    _, told = ask("GET", "/api/overview", authorization=f"Bearer {TOKEN}")
    assert (told["acts"], told["roles"]) == (True, ["shop"])
    assert "needs the right to" in told["in_doubt"]["error"]


def test_where_nobody_has_a_role_who_is_here_may_read_messages(tmp_path: Path) -> None:
    create(tmp_path / "space")
    write_definitions(tmp_path / "space", "[queues.orders]\n")
    thread = ServerThread(tmp_path / "space", tmp_path / "socket", sync="NONE")
    with HttpFront(HttpConfig("127.0.0.1:0")) as made:
        made.show(thread.server)
        found = [
            asked(HTTPConnection("127.0.0.1", port_of(made), timeout=20), method, path, body=body, headers=ACTION)
            for method, path, body in (
                ("GET", "/api/messages?queue=orders", None),
                ("POST", "/api/requeue", json.dumps({"queue": "orders", "upto": 1})),
            )
        ]
    thread.stop()
    assert [status for status, *_ in found] == [200, 403]
    assert "needs a token: sign in with one" in found[1][1]["error"]


def test_an_address_that_others_reach_needs_a_token(server: ServerThread) -> None:
    link = ServerLink(is_open=False)
    link.server = server.server
    with pytest.raises(AccessDenied, match="a token is needed here"):
        link.requester(None)
    assert link.requester(TOKEN).acts
    link.close()


def test_no_more_than_two_requests_ask_at_a_time(server: ServerThread) -> None:
    """However many come: each takes turns of the engine from the server's own clients."""
    link, third = ServerLink(is_open=True), threading.Barrier(3)
    link.server = server.server

    def meets(_: object) -> bool:
        try:
            third.wait(0.5)
        except threading.BrokenBarrierError:
            return False
        return True

    async def many() -> list[bool]:
        return await asyncio.gather(*(link.ask(link.requester(None), meets) for _ in range(6)))

    assert asyncio.run(many()) == [False] * 6
    link.close()


def test_what_is_too_open_is_refused(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="in the clear"):
        HttpConfig("0.0.0.0:0")
    assert HttpConfig("0.0.0.0:0", insecure=True).host == "0.0.0.0"
    for name in ("starlette", "uvicorn"):
        with monkeypatch.context() as missing:
            missing.setitem(sys.modules, name, None)
            with pytest.raises(InvalidArgument, match=r"pip install 'xaqueue\[http\]'"):
                HttpFront(HttpConfig("127.0.0.1:0"))


def test_tls_where_others_reach_it(server: ServerThread, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on any address but those of this machine."""
    monkeypatch.setattr(front, "is_loopback", lambda _: False)
    authority = Authority(room, "ours")
    issued = authority.issue("127.0.0.1")
    with HttpFront(HttpConfig("127.0.0.1:0", cert=str(issued.cert), key=str(issued.key))) as made:
        made.show(server.server)
        assert made.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(authority.ca))
        for token, status in ((None, 403), (OTHER, 403), (TOKEN, 200)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            connection = HTTPSConnection("127.0.0.1", port_of(made), context=context, timeout=20)
            assert asked(connection, "GET", "/api/overview", headers=headers)[0] == status


def test_a_request_with_broken_tls_behind_it_is_no_fault(
    server: ServerThread, room: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can be written any more, though the answer is about to be."""
    monkeypatch.setattr(front, "is_loopback", lambda _: False)
    authority = Authority(room, "broken")
    issued = authority.issue("127.0.0.1")
    context = ssl.create_default_context(cafile=str(authority.ca))
    config = HttpConfig("127.0.0.1:0", cert=str(issued.cert), key=str(issued.key))
    with HttpFront(config) as made, socket.create_connection(("127.0.0.1", port_of(made)), 20) as peer:
        made.show(server.server)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                peer.sendall(outgoing.read())
                incoming.write(peer.recv(65536))
        tls.write(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        peer.sendall(outgoing.read() + b"\x17\x03\x03\x00\x10" + bytes(16))
        with suppress(ConnectionError):
            while peer.recv(65536):
                pass
    assert [one.partition("]")[0] for one in caplog.messages] == ["[tls-refused"]


def test_a_unix_socket(server: ServerThread, room: Path) -> None:
    with HttpFront(HttpConfig(str(room / "http"))) as made, socket.socket(socket.AF_UNIX) as peer:
        made.show(server.server)
        peer.connect(str(room / "http"))
        connection = HTTPConnection("whatever", timeout=20)
        connection.sock = peer
        assert asked(connection, "GET", "/api/overview")[0] == 200
    assert not (room / "http").exists()


def text_at(made: HttpFront, path: str, **headers: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port_of(made), timeout=20)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_probes_tell_whether_it_lives_and_is_ready(tmp_path: Path) -> None:
    create(tmp_path / "space")
    write_definitions(tmp_path / "space", ROLES)
    thread = ServerThread(tmp_path / "space", tmp_path / "socket", sync="NONE")
    try:
        with HttpFront(HttpConfig("127.0.0.1:0")) as made:
            assert text_at(made, "/livez") == (200, "alive\n")
            assert text_at(made, "/readyz") == (503, "standing by, being opened, or ending\n")
            assert text_at(made, "/metrics")[1].endswith("\nxaqueue_up 0.0\n")
            made.show(thread.server)
            assert text_at(made, "/readyz") == (200, "ready\n")
            thread.space.draining = True
            assert text_at(made, "/readyz") == (503, "draining\n")
            thread.space.serving = False
            assert text_at(made, "/readyz") == (503, "recovering\n")
            thread.space.serving = True
            thread.space.loaded = False
            assert text_at(made, "/api/overview")[0] == 503
            assert "messages are being loaded" in text_at(made, "/api/overview")[1]
            assert 'xaqueue_state{state="recovering"} 1.0' in text_at(made, "/metrics")[1]
            thread.space.loaded = True
            thread.space.log.fenced = True
            assert text_at(made, "/readyz") == (503, "fenced\n")
            thread.space.log.fenced = False
            assert text_at(made, "/livez") == (200, "alive\n")
    finally:
        thread.stop()


def test_who_looks_leaves_threads_for_commits() -> None:
    assert link.THREADS <= scheduler.SLOW_CALLS // 2


def test_a_server_that_has_ended_admits_nobody(tmp_path: Path) -> None:
    create(tmp_path / "space")
    thread = ServerThread(tmp_path / "space", tmp_path / "socket", sync="NONE")
    ended = thread.server
    thread.stop()
    own, other = socket.socketpair()
    with own, other, pytest.raises(RuntimeError):
        ended.admit(other, Identity())
    gc.collect()  # and no warning comes


def test_metrics_are_for_who_may_look(shown: HttpFront, server: ServerThread) -> None:
    status, text = text_at(shown, "/metrics")
    assert status == 200
    assert "\nxaqueue_up 1.0\n" in text
    assert '\nxaqueue_queue_messages{queue="orders",state="ready"} ' in text
    assert text_at(shown, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
    assert text_at(shown, "/metrics", Authorization="Bearer " + "0" * 64)[0] == 403
    assert all("token" not in line for line in text.splitlines())


def test_before_and_after_a_server_it_says_so() -> None:
    with HttpFront(HttpConfig("127.0.0.1:0")) as made:
        status, told, _ = asked(HTTPConnection("127.0.0.1", port_of(made), timeout=20), "GET", "/api/overview")
        assert (status, told["kind"]) == (503, "ResourceFailed")


def test_who_is_slow_or_many_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "REQUEST_S", 0.2)
    monkeypatch.setattr(front, "CONNECTIONS", 3)
    with HttpFront(HttpConfig("127.0.0.1:0")) as made, ExitStack() as stack:
        peers = [stack.enter_context(socket.create_connection(("127.0.0.1", port_of(made)), 20)) for _ in range(5)]
        for peer in peers:
            peer.settimeout(20)
            try:
                peer.sendall(b"GET / HTTP/1.1\r\n")
                assert peer.recv(1) == b""
            except ConnectionError:
                continue
        connection = HTTPConnection("127.0.0.1", port_of(made), timeout=20)
        assert asked(connection, "GET", "/")[0] == 200


def test_who_sends_no_whole_request_makes_room_for_who_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "CONNECTIONS", 3)
    with HttpFront(HttpConfig("127.0.0.1:0")) as made, ExitStack() as stack:
        for number in range(9):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port_of(made)), 20))
            peer.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n")
            if number % 3 == 2:
                assert text_at(made, "/livez") == (200, "alive\n")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *[
            (one, 200)
            for one in ("10.1.2.3:8000", "[2001:db8::1]:8000", "server:8000", "localhost", socket.gethostname())
        ],
        *[(one, 421) for one in ("rebound.example.org", "10.1.2.3.example.org:8000", "127.0.0.1.nip.io", "a.b")],
    ],
)
def test_where_no_token_is_wanted_no_name_is_taken_that_others_may_give(host: str, status: int) -> None:
    with HttpFront(HttpConfig("0.0.0.0:0", insecure=True)) as made:
        assert text_at(made, "/livez", Host=host)[0] == status


def test_all_that_have_failed_go_back_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those up to the number alone, also behind such as are held, or came from nowhere."""
    monkeypatch.setattr("xaqueue.web.console.AT_ONCE", 4)
    create(tmp_path / "space")
    role = f'members = ["token:{sha256(TOKEN.encode()).hexdigest()}"]\nproduce = ["*"]\nconsume = ["*"]\nbrowse = ["*"]'
    write_definitions(tmp_path / "space", f"[queues.orders]\n[queues.failed]\n[access.roles.shop]\n{role}\n")
    thread = ServerThread(tmp_path / "space", tmp_path / "socket", sync="NONE")
    with HttpFront(HttpConfig("127.0.0.1:0")) as made, xaqueue.connect(thread.url) as connection:
        made.show(thread.server)
        for queue, count in (("failed", 3), ("orders", 10)):
            for number in range(count):
                connection.enqueue(queue, b"%d" % number)
        connection.commit()
        for message in list(connection.browse("orders")):
            connection.move("orders", message.message_id, "failed")
        connection.commit()
        holder = xaqueue.connect(thread.url)
        assert holder.dequeue("failed", message_id=list(connection.browse("failed"))[3].message_id) is not None
        headers, found = ACTION | {"Authorization": f"Bearer {TOKEN}"}, []
        for _ in range(4):
            body = json.dumps({"queue": "failed", "upto": 12})
            peer = HTTPConnection("127.0.0.1", port_of(made), timeout=20)
            found.append(asked(peer, "POST", "/api/requeue", body=body, headers=headers)[1])
        for upto in (None, True, "1"):
            peer = HTTPConnection("127.0.0.1", port_of(made), timeout=20)
            body = json.dumps({"queue": "failed", "upto": upto})
            assert asked(peer, "POST", "/api/requeue", body=body, headers=headers)[0] == 400
        assert len(list(connection.browse("orders"))) == 8
        assert [message.seq for message in connection.browse("failed")] == [1, 2, 3, 4, 13]
        holder.close()
    thread.stop()
    assert [(one["moved"], one["more"]) for one in found] == [(8, False), *[(0, False)] * 3]
    assert found[-1]["stay"] == 4


def test_who_lacks_a_right_is_logged_and_who_only_looks_is_not(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """A page that is left open asks for what it may not see every two seconds."""
    ask("GET", "/api/overview", authorization=f"Bearer {TOKEN}")
    assert caplog.messages == []
    ask("GET", "/api/messages?queue=orders", authorization=f"Bearer {TOKEN}")
    assert len(caplog.messages) == 1
    assert "needs the right to browse" in caplog.messages[0]


def test_a_fault_of_the_program_is_an_event_and_an_answer(
    shown: HttpFront, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*_: object) -> None:
        raise ZeroDivisionError("of a route")

    monkeypatch.setattr("xaqueue.web.app._refusal", breaks)
    for _ in range(2):
        status, text = text_at(shown, "/readyz")
        assert (status, "of a route" in text) == (500, False)
    for _ in range(1200):  # it is told behind the answer
        if len(caplog.records) == 2:
            break
        time.sleep(0.05)
    assert [record.message.partition(":")[0] for record in caplog.records] == ["[http-fault] GET /readyz"] * 2
    assert text_at(shown, "/livez")[0] == 200
