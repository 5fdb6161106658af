"""Wrong certificate, wrong token, missing right: refused with a clear error, logged, and nothing is done."""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from contextlib import closing as closing_of
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.certificates import Authority, Certificate, private
from support.patience import eventually
from support.raw_client import HungUp, RawClient, Refused
from support.served import ServerThread
from xaqueue.access import Identity
from xaqueue.connection import Connection
from xaqueue.core.owner import definitions_file
from xaqueue.core.owner import open as attach_room
from xaqueue.endpoint import parse
from xaqueue.errors import AccessDenied, ConnectionLost, Error, InvalidArgument, RolledBack
from xaqueue.features.opening import create
from xaqueue.message import Message, MessageId, Origin, Properties
from xaqueue.rpc.client.manager import RemoteManager, context_of, dial
from xaqueue.rpc.client.sockets import Connected
from xaqueue.rpc.server.listeners import ListenConfig
from xaqueue.rpc.server.peer import Limits
from xaqueue.xid import Xid

PATIENCE_S = 60.0
TOKEN, OTHER_TOKEN = "0123456789abcdef-the-shops", "fedcba9876543210-of-nobody"
HASH = sha256(TOKEN.encode()).hexdigest()
X = Xid(7, b"gtrid", b"queue")
QUEUES = "[queues.orders]\n[queues.replies]\n"
ROLES = f"""
[access.roles.shop]
members = ["user:www", "token:{HASH}", "cert:shop.example"]
produce = ["orders"]
browse = ["orders"]
"""
Start = Callable[..., ServerThread]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def ours(files: Path) -> Authority:
    return Authority(files, "ours")


@pytest.fixture(scope="module")
def theirs(files: Path) -> Authority:
    return Authority(files, "theirs")


@pytest.fixture(scope="module")
def certificate(ours: Authority) -> Certificate:
    return ours.issue("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def token(files: Path) -> Path:
    return private(files / "token", TOKEN.encode())


@pytest.fixture(scope="module")
def other_token(files: Path) -> Path:
    return private(files / "other-token", OTHER_TOKEN.encode())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "space"
    create(made)
    return made


@pytest.fixture
def start(root: Path, tmp_path: Path) -> Iterator[Start]:
    made: list[ServerThread] = []

    def begin(roles: str = ROLES, limits: Limits | None = None, **listen: object) -> ServerThread:
        definitions_file.write_definitions(root, QUEUES + roles)
        given = ListenConfig(**listen)  # type: ignore[arg-type]
        made.append(ServerThread(root, tmp_path / "socket", sync="NONE", limits=limits, listen=given))
        return made[-1]

    yield begin
    for server in made:
        server.stop()


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def url_of(server: ServerThread, scheme: str, **options: object) -> str:
    (url,) = [url for url in server.server.listeners.urls if url.startswith(f"{scheme}://")]
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{url}?{query}" if query else url


def tls_of(certificate: Certificate, client_ca: Path | None = None) -> dict[str, object]:
    """Where a server listens with TLS."""
    given: dict[str, object] = {"tls": ("127.0.0.1:0",), "cert": str(certificate.cert), "key": str(certificate.key)}
    return given | ({"client_ca": str(client_ca)} if client_ca is not None else {})


def as_user(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Whoever comes over the Unix socket is one of these, and not the owner."""
    monkeypatch.setattr(
        "xaqueue.rpc.server.listeners.unix_peer", lambda _: Identity(tuple(f"user:{name}" for name in names))
    )


def contents(root: Path) -> dict[str, bytes]:
    """All that the space's directories hold."""
    places = [root / name for name in ("active", "prepared", "committed", "heuristic", "journal", "quarantine")]
    return {str(path): path.read_bytes() for place in places for path in place.rglob("*") if path.is_file()}


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(AccessDenied) as told:
        call()
    return str(told.value)


def produce(connection: Connection, body: bytes = b"1") -> None:
    connection.enqueue("orders", body)
    connection.commit()


# Tokens


def test_a_token_gives_its_roles(start: Start, token: Path, certificate: Certificate, ours: Authority) -> None:
    server = start(**tls_of(certificate))
    with xaqueue.connect(url_of(server, "xaqs", token_file=token, ca=ours.ca)) as connection:
        produce(connection)
        assert [message.body for message in connection.browse("orders")] == [b"1"]


def test_a_wrong_token_is_refused_and_logged(
    start: Start,
    root: Path,
    token: Path,
    other_token: Path,
    certificate: Certificate,
    ours: Authority,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = start(**tls_of(certificate))
    before = contents(root)
    told = refused(lambda: xaqueue.connect(url_of(server, "xaqs", token_file=other_token, ca=ours.ca)))
    other = sha256(OTHER_TOKEN.encode()).hexdigest()
    assert f"access is denied to token:{other[:8]}...: it is a member of no role" in told
    assert told in caplog.text
    assert "127.0.0.1:" in caplog.text
    for secret in (OTHER_TOKEN, other, HASH):
        assert secret not in caplog.text
        assert secret not in told
    eventually(lambda: not server.server.sessions)
    assert contents(root) == before


def test_who_moves_a_message_must_be_allowed_to_add_it_there(
    start: Start, token: Path, certificate: Certificate, ours: Authority
) -> None:
    roles = ROLES.replace('produce = ["orders"]', 'produce = ["orders"]\nconsume = ["orders", "replies"]')
    server = start(roles, **tls_of(certificate))
    url = url_of(server, "xaqs", ca=ours.ca, token_file=token)
    with closing_of(xaqueue.connect(url)) as connection:
        message_id = connection.enqueue("orders", b"1")
        connection.commit()
        with pytest.raises(AccessDenied):
            connection.move("orders", message_id, "replies")
        connection.rollback()
        message = connection.dequeue("orders")
        assert message is not None
        assert message.tries == 0
        connection.rollback()


def test_who_brings_a_message_back_must_be_allowed_to_add_it_where_it_was(
    start: Start, token: Path, certificate: Certificate, ours: Authority
) -> None:
    """A requeue brings it there."""
    server = start(**tls_of(certificate))
    url = url_of(server, "xaqs", ca=ours.ca, token_file=token)
    with closing_of(xaqueue.connect(url)) as connection:
        for queue, origin in (("orders", Origin("replies", "tries").text), ("replies", None)):
            message = Message(MessageId(bytes(16)), queue, 0, b"1", Properties(queue, origin=origin))
            with pytest.raises(AccessDenied, match="queue 'replies' needs the right to produce"):
                connection.restore(message)
        assert connection.restore(replace(message, queue="orders"))
        connection.commit()
        for queue in ("orders", "replies"):
            with pytest.raises(AccessDenied, match="needs the right to admin"):
                connection.undefine(queue)


def test_who_names_a_failure_queue_must_be_allowed_to_add_there(
    start: Start, token: Path, certificate: Certificate, ours: Authority
) -> None:
    """Else a message that nobody can handle is a way into any queue."""
    server = start(**tls_of(certificate))
    url = url_of(server, "xaqs", ca=ours.ca, token_file=token)
    with closing_of(xaqueue.connect(url)) as connection:
        message = Message(MessageId(bytes(16)), "orders", 0, b"1", Properties("orders", failure_queue="replies"))
        for add in (
            lambda: connection.enqueue("orders", b"1", failure_queue="replies", message_id=bytes(16)),
            lambda: connection.enqueue_many("orders", [b"1"], failure_queue="replies", dedup_key="1"),
            lambda: connection.enqueue_many("orders", [b"0", (b"1", {"failure_queue": "replies", "dedup_key": "1"})]),
            lambda: connection.enqueue_to(["orders"], b"1", failure_queue="replies"),
            lambda: connection.restore(message),
        ):
            with pytest.raises(AccessDenied, match="queue 'replies' needs the right to produce"):
                add()
        connection.enqueue("orders", b"1", failure_queue="orders")
        connection.enqueue("orders", b"2", failure_queue="replies")  # told by the commit
        with pytest.raises(RolledBack, match="queue 'replies' needs the right to produce"):
            connection.commit()


def test_no_token_is_refused(start: Start, certificate: Certificate, ours: Authority) -> None:
    server = start(**tls_of(certificate))
    told = refused(lambda: xaqueue.connect(url_of(server, "xaqs", ca=ours.ca)))
    assert "denied to anonymous: show a token (token_file= in the URL) or a certificate (cert=)" in told


def test_without_a_table_the_servers_token_gives_everything(start: Start, token: Path, other_token: Path) -> None:
    server = start("", tcp=("127.0.0.1:0",), token_file=str(token))
    with xaqueue.connect(url_of(server, "xaq", token_file=token)) as connection:
        produce(connection)
        assert connection.tpc_recover() == []
        assert connection.dequeue("orders") is not None
        connection.rollback()
    told = refused(lambda: xaqueue.connect(url_of(server, "xaq", token_file=other_token)))
    assert "without an [access] table the server lets in its own user and whoever shows what it was told" in told
    assert "anonymous" in refused(lambda: xaqueue.connect(url_of(server, "xaq")))


def test_with_a_table_only_the_table_counts(start: Start, token: Path) -> None:
    server = start("[access]\n", tcp=("127.0.0.1:0",), token_file=str(token))
    assert "it is a member of no role" in refused(lambda: xaqueue.connect(url_of(server, "xaq", token_file=token)))


def test_a_token_is_read_anew_at_each_connect(start: Start, tmp_path: Path, certificate: Certificate) -> None:
    server = start(tcp=("127.0.0.1:0",))
    path = private(tmp_path / "token", OTHER_TOKEN.encode())
    url = url_of(server, "xaq", token_file=path)
    refused(lambda: xaqueue.connect(url))
    path.write_text(TOKEN)
    xaqueue.connect(url).close()


def test_a_token_that_others_can_read_is_not_sent(start: Start, tmp_path: Path) -> None:
    server = start(tcp=("127.0.0.1:0",))
    path = private(tmp_path / "token", TOKEN.encode())
    path.chmod(0o644)
    with pytest.raises(InvalidArgument, match="chmod 600"):
        xaqueue.connect(url_of(server, "xaq", token_file=path))


def test_the_async_client_shows_the_same(
    start: Start, token: Path, other_token: Path, certificate: Certificate, ours: Authority, theirs: Authority
) -> None:
    server = start(**tls_of(certificate))

    async def work() -> None:
        async with await xaqueue.connect_async(url_of(server, "xaqs", token_file=token, ca=ours.ca)) as connection:
            await connection.enqueue("orders", b"1")
            await connection.commit()
        with pytest.raises(AccessDenied, match="member of no role"):
            await xaqueue.connect_async(url_of(server, "xaqs", token_file=other_token, ca=ours.ca))
        with pytest.raises(AccessDenied, match="the server's certificate is refused"):
            await xaqueue.connect_async(url_of(server, "xaqs", token_file=token, ca=theirs.ca))

    asyncio.run(work())


# Certificates


def test_a_certificate_gives_its_roles(start: Start, certificate: Certificate, ours: Authority) -> None:
    server = start(**tls_of(certificate, ours.ca))
    shop = ours.issue("shop.example")
    with xaqueue.connect(url_of(server, "xaqs", ca=ours.ca, cert=shop.cert, key=shop.key)) as connection:
        produce(connection)
    stranger = ours.issue("other.example")
    told = refused(lambda: xaqueue.connect(url_of(server, "xaqs", ca=ours.ca, cert=stranger.cert, key=stranger.key)))
    assert "access is denied to cert:" in told
    assert "cert:other.example: it is a member of no role" in told


def test_without_a_table_every_certificate_of_the_authority_gives_everything(
    start: Start, certificate: Certificate, ours: Authority
) -> None:
    server = start("", **tls_of(certificate, ours.ca))
    anybody = ours.issue("anybody.example")
    with xaqueue.connect(url_of(server, "xaqs", ca=ours.ca, cert=anybody.cert, key=anybody.key)) as connection:
        produce(connection)
        assert connection.tpc_recover() == []


@pytest.mark.parametrize("shown", ["none", "strangers"])
def test_a_wrong_certificate_is_refused_and_logged(
    start: Start,
    root: Path,
    certificate: Certificate,
    ours: Authority,
    theirs: Authority,
    caplog: pytest.LogCaptureFixture,
    shown: str,
) -> None:
    server = start(**tls_of(certificate, ours.ca))
    before = contents(root)
    stranger = theirs.issue("shop.example")
    options: dict[str, object] = {"cert": stranger.cert, "key": stranger.key} if shown == "strangers" else {}
    for _ in range(20):  # an alert may race with the first request
        told = refused(lambda: xaqueue.connect(url_of(server, "xaqs", ca=ours.ca, **options)))
        if shown == "none":
            assert "the server wants a certificate: give cert= and key= in the URL" in told
        else:
            assert "the server does not trust who signed the certificate" in told
    eventually(lambda: caplog.text.count("127.0.0.1:") == 20)
    expected = "showed no certificate" if shown == "none" else "certificate is refused: unable to get local issuer"
    assert caplog.text.count(expected) == 20
    assert not server.server.sessions
    assert contents(root) == before


def test_a_server_with_a_wrong_certificate_gets_no_token(
    start: Start, token: Path, certificate: Certificate, theirs: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(**tls_of(certificate))
    told = refused(lambda: xaqueue.connect(url_of(server, "xaqs", token_file=token, ca=theirs.ca)))
    assert "the server's certificate is refused: unable to get local issuer certificate" in told
    assert token.name not in told
    eventually(lambda: "the client does not trust who signed the certificate" in caplog.text)
    assert not server.server.sessions


def test_a_server_of_another_name_is_refused(start: Start, token: Path, files: Path, ours: Authority) -> None:
    server = start(**tls_of(ours.issue("queue.example")))
    told = refused(lambda: xaqueue.connect(url_of(server, "xaqs", token_file=token, ca=ours.ca)))
    assert "not valid for '127.0.0.1'" in told


def test_a_port_with_tls_is_no_port_without(
    start: Start, token: Path, certificate: Certificate, ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(tcp=("127.0.0.1:0",), **tls_of(certificate))
    plain, secured = url_of(server, "xaq"), url_of(server, "xaqs")
    with pytest.raises(ConnectionLost, match=r"whether it speaks TLS there \(xaq:// is for ports without\)"):
        dial(parse(plain.replace("xaq:", "xaqs:") + f"?ca={ours.ca}"))
    with pytest.raises(ConnectionLost, match=f"speaks TLS, connect to {secured}$"):
        RemoteManager(partial(dial, parse(secured.replace("xaqs:", "xaq:"))), connect_s=0)
    eventually(lambda: "it does not speak TLS, which this port wants (xaqs:// or https://)" in caplog.text)


def test_a_port_that_resets_a_handshake_may_have_none() -> None:
    """As asyncio's client is told."""

    def connect(*_: object) -> Connected:
        raise ConnectionResetError

    with pytest.raises(ConnectionLost, match=r"\(ConnectionResetError; xaq:// is for ports without TLS\)"):
        dial(parse("xaqs://host:7000"), connect)


def test_garbage_and_silence_in_place_of_a_handshake_end_alone(
    start: Start,
    token: Path,
    certificate: Certificate,
    ours: Authority,
    closing: ExitStack,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = start(limits=Limits(login_s=2), **tls_of(certificate))
    url = url_of(server, "xaqs")
    place = ("127.0.0.1", int(url.rpartition(":")[2]))
    closing.enter_context(socket.create_connection(place, PATIENCE_S)).sendall(os.urandom(500))
    closing.enter_context(socket.create_connection(place, PATIENCE_S))
    closing.enter_context(socket.create_connection(place, PATIENCE_S)).shutdown(socket.SHUT_WR)
    eventually(lambda: caplog.text.count("is refused") == 3)
    xaqueue.connect(url_of(server, "xaqs", token_file=token, ca=ours.ca)).close()


# Users of a Unix socket


def test_the_owner_may_do_everything_and_others_what_their_role_says(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    with xaqueue.connect(server.url) as owner:
        assert owner.tpc_recover() == []
        assert owner.dequeue("replies") is None
    as_user(monkeypatch, "www", "33")
    with xaqueue.connect(server.url) as www:
        produce(www)
        assert "needs the right to consume" in refused(lambda: www.dequeue("orders"))
    as_user(monkeypatch, "mail", "8")
    told = refused(lambda: xaqueue.connect(server.url))
    assert "access is denied to user:mail, user:8: it is a member of no role in the [access] table" in told


def test_without_a_table_no_other_user_comes_in(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start("")
    as_user(monkeypatch, "www", "33")
    assert "the server lets in its own user" in refused(lambda: xaqueue.connect(server.url))


def test_the_socket_is_for_its_owner(start: Start) -> None:
    server = start()
    assert server.path.stat().st_mode & 0o777 == 0o600
    server.stop()
    assert not server.path.exists()


SETRESUID = {"x86_64": 117, "aarch64": 147}.get(platform.machine(), 0)
NOBODY = 65534

if os.geteuid() == 0 and SETRESUID:  # or nobody else can be

    def connected_as_nobody(path: Path) -> socket.socket | OSError:
        """A socket that a thread connected which was nobody: credentials are a thread's own, as the kernel sees it."""
        made: list[socket.socket | OSError] = []

        def connect() -> None:
            assert ctypes.CDLL(None).syscall(SETRESUID, -1, NOBODY, -1) == 0
            connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connecting.connect(str(path))
            except OSError as error:
                connecting.close()
                made.append(error)
            else:
                made.append(connecting)

        thread = threading.Thread(target=connect)
        thread.start()
        thread.join(PATIENCE_S)
        return made[0]

    @pytest.mark.parametrize(
        ("roles", "mode", "told"),
        [
            ("", 0o666, "access is denied to user:nobody, user:65534: without an [access] table"),
            (ROLES, 0o666, "access is denied to user:nobody"),
            (ROLES.replace("user:www", "user:nobody"), 0o666, ""),
            (ROLES.replace("user:www", "user:65534"), 0o666, ""),
            (ROLES.replace("user:www", "user:nobody"), 0o600, "Permission denied"),
        ],
    )
    def test_another_user_is_known_by_the_kernel(root: Path, roles: str, mode: int, told: str) -> None:
        definitions_file.write_definitions(root, QUEUES + roles)
        path = Path(f"/tmp/xaqueue-test-{os.getpid()}.socket")  # nobody can go through pytest's directories
        server = ServerThread(root, path, sync="NONE", listen=ListenConfig(unix_mode=mode))
        try:
            made = connected_as_nobody(path)
            if isinstance(made, OSError):
                assert told == made.strerror
                return
            with RawClient(path) as client:
                client.socket.close()
                client.socket = made
                if not told:
                    assert client.call("hello")["protocol"] == 1
                    return
                with pytest.raises(Refused) as refusal:
                    client.call("hello")
                assert refusal.value.told["message"].startswith(told)
        finally:
            server.stop()


# Missing rights


def asked(connection: Connection, method: str, *params: Any) -> Any:
    manager = connection._manager
    assert isinstance(manager, RemoteManager)
    return manager.call(method, *params)


MISSING: dict[str, tuple[Callable[[Connection], object], str]] = {
    "dequeue": (lambda c: c.dequeue("orders"), "dequeue of queue 'orders' needs the right to consume"),
    "browse": (lambda c: list(c.browse("replies")), "browse of queue 'replies' needs the right to browse"),
    "span": (lambda c: asked(c, "span", "replies", 0, 1), "span of queue 'replies' needs the right to browse"),
    "positions": (lambda c: asked(c, "positions", ["orders", "replies"]), "positions of queue 'replies' needs the"),
    "recover": (lambda c: c.tpc_recover(), "recover needs the right to transact or resolve"),
    "commit": (lambda c: c.tpc_commit(X), "commit needs the right to transact"),
    "rollback": (lambda c: c.tpc_rollback(X), "rollback needs the right to transact"),
    "forget": (lambda c: c.tpc_forget(X), "forget needs the right to transact or resolve"),
    "outcome": (lambda c: c.outcome(X), "outcome needs the right to transact or resolve"),
}


@pytest.mark.parametrize("verb", MISSING)
def test_a_missing_right_is_refused_and_logged(
    start: Start, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    server = start()
    with xaqueue.connect(server.url) as owner:
        produce(owner)
        owner.tpc_begin(X)
        owner.enqueue("orders", b"in doubt")
        owner.tpc_prepare()
        as_user(monkeypatch, "www")
        call, complaint = MISSING[verb]
        before = contents(root)
        with xaqueue.connect(server.url) as www:
            told = refused(lambda: call(www))
            assert complaint in told
            assert "which no role of user:www has" in told
            assert "Nothing was done" in told
            assert f"(user:www) is refused: {told}" in caplog.text
            assert contents(root) == before
            www.rollback()
            produce(www, b"2")
        owner.tpc_rollback()


def told(connection: Connection) -> list[str]:
    return [one["queue"] for one in asked(connection, "positions", [])]


def test_who_may_browse_some_queues_is_told_of_these(start: Start, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    with xaqueue.connect(server.url) as owner:
        for queue in ("orders", "replies"):
            owner.enqueue(queue, b"1")
        owner.commit()
        eventually(lambda: told(owner) == ["orders", "replies"])
        as_user(monkeypatch, "www")
        with xaqueue.connect(server.url) as www:
            assert told(www) == ["orders"]
            assert [one[0] for one in asked(www, "span", "orders", 0, 1)[1]] == [1]


RIDES: dict[str, tuple[Callable[[Connection], object], str]] = {
    "enqueue": (lambda c: c.enqueue("replies", b"1"), "enqueue of queue 'replies' needs the right to produce"),
    "tpc_begin": (lambda c: c.tpc_begin(X), "start needs the right to transact"),
}


@pytest.mark.parametrize("verb", RIDES)
def test_a_ride_without_the_right_rolls_its_branch_back(
    start: Start, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    server = start()
    before = contents(root)
    as_user(monkeypatch, "www")
    call, complaint = RIDES[verb]
    with xaqueue.connect(server.url) as www:
        call(www)
        with pytest.raises((RolledBack, AccessDenied), match=complaint):
            www.flush()
        assert complaint in caplog.text
        if verb == "enqueue":
            www.rollback()
        else:
            www.tpc_rollback()
        assert contents(root) == before
        produce(www)


def test_a_branch_is_not_prepared_without_the_right(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one that pretends to be of a local transaction: it would stay in doubt, and hold what it holds."""
    server = start()
    as_user(monkeypatch, "www")
    with RawClient(server.path) as www:
        local = (0x58415131, b"local", b"")
        www.call("start", local)
        www.call("enqueue", "orders", b"1")
        www.call("end", local)
        with pytest.raises(Refused, match="prepare needs the right to transact") as told:
            www.call("prepare", local)
        assert (told.value.told["error"], told.value.name) == ("AccessDenied", "XAER_PROTO")
        www.call("commit", local, 0x40000000)
    assert server.space.branches == {}


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("indoubt_list", []),
        ("indoubt_next", []),
        ("indoubt_decide", [X, True, "me"]),
        ("indoubt_forget", [X, "me"]),
        ("drain", [True]),
    ],
)
def test_operators_methods_need_their_rights(
    start: Start, root: Path, monkeypatch: pytest.MonkeyPatch, method: str, params: list[object]
) -> None:
    server = start()
    with xaqueue.connect(server.url) as owner:
        owner.tpc_begin(X)
        owner.enqueue("orders", b"in doubt")
        owner.tpc_prepare()
        before = contents(root)
        as_user(monkeypatch, "www")
        with (
            RawClient(server.path) as www,
            pytest.raises(Refused, match=r"needs the right to (transact or )?(resolve|admin)"),
        ):
            www.call(method, *[tuple(value) if isinstance(value, Xid) else value for value in params])
        assert contents(root) == before
        owner.tpc_commit()


def test_a_decision_is_signed_with_who_made_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start('[access.roles.operators]\nmembers = ["user:ops"]\nresolve = true\n')
    with xaqueue.connect(server.url) as owner:
        owner.tpc_begin(X)
        owner.enqueue("orders", b"in doubt")
        owner.tpc_prepare()
    as_user(monkeypatch, "ops")
    with RawClient(server.path) as ops:
        decision = ops.call("indoubt_decide", tuple(X), True, "somebody else")
    assert decision["by"] == "somebody else (user:ops)"


def test_the_log_is_not_filled(start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    server = start()
    as_user(monkeypatch, "www")
    with RawClient(server.path) as www:
        for _ in range(50):
            with pytest.raises(Refused):
                www.call("dequeue", "orders")
    assert caplog.text.count("is refused") == 10
    assert caplog.text.count("no more of this session is logged") == 1


def test_the_table_may_change_while_sessions_are_open(
    start: Start, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    as_user(monkeypatch, "www")
    with closing_of(xaqueue.connect(server.url)) as www:
        refused(lambda: www.dequeue("orders"))
        definitions_file.write_definitions(root, QUEUES + ROLES + 'consume = ["orders"]\n')

        def consumes() -> bool:
            try:
                return www.dequeue("orders") is None
            except (AccessDenied, RolledBack):
                return False

        eventually(consumes)
        definitions_file.write_definitions(root, QUEUES + "[access]\n")
        eventually(lambda: not consumes())
    assert "member of no role" in refused(lambda: xaqueue.connect(server.url))


# Strangers


def test_a_stranger_is_answered_once(start: Start, closing: ExitStack) -> None:
    server = start(tcp=("127.0.0.1:0",))
    for method in ("status", "echo", "enqueue", "recover", "hello", "nonsense"):
        with stranger(server) as client:
            with pytest.raises(Refused, match=r"denied to anonymous|is unknown"):
                client.call(method, *(["orders", b"1"] if method == "enqueue" else []))
            with pytest.raises((HungUp, OSError)):
                client.call("echo")
    eventually(lambda: not server.server.sessions)


def stranger(server: ServerThread) -> RawClient:
    """A client over TCP that has shown nothing."""
    port = int(url_of(server, "xaq").rpartition(":")[2])
    client = RawClient(server.path)
    client.socket.close()
    client.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    return client


@pytest.mark.parametrize("token", ["short", 12345678901234567, b"0123456789abcdef", OTHER_TOKEN, {"a": 1}])
def test_a_stranger_has_one_try(start: Start, token: object) -> None:
    server = start(tcp=("127.0.0.1:0",))
    with stranger(server) as client:
        with pytest.raises(Refused, match=r"access is denied|this is no token") as told:
            client.call("hello", {"protocol": 1, "token": token})
        assert str(token) not in str(told.value.told)
        with pytest.raises((HungUp, OSError)):
            client.call("hello", {"protocol": 1, "token": TOKEN})


def test_a_stranger_who_sends_much_is_cut_off(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(tcp=("127.0.0.1:0",))
    with stranger(server) as client:
        with suppress(OSError):
            for _ in range(64):
                client.send(b"\x94\x00\x01\xa5hello\x91\xc6\x03\x00\x00\x00" if _ == 0 else bytes(65536))
        eventually(lambda: "more than 65,536 bytes before it was let in" in caplog.text)
    eventually(lambda: not server.server.sessions)


def test_a_stranger_who_says_nothing_is_cut_off(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(limits=Limits(login_s=0.1), tcp=("127.0.0.1:0",))
    with stranger(server) as client, pytest.raises((HungUp, OSError)):
        client.answer()
    eventually(lambda: "it has not shown who it is within 0.1 s" in caplog.text)


# Ports that nobody opened on purpose


@pytest.mark.parametrize(
    ("roles", "listen", "complaint"),
    [
        ("", {"tcp": ("127.0.0.1:0",)}, "would be open to whoever reaches it.*--insecure"),
        ("[access]\n", {"tcp": ("127.0.0.1:0",)}, "would be open to whoever reaches it"),
        (ROLES, {"tcp": ("0.0.0.0:0",)}, "would carry tokens and messages in the clear.*--insecure"),
        (ROLES, {"tcp": ("[::]:0",)}, "in the clear"),
        ("", {"tls": ("127.0.0.1:0",)}, "would be open to whoever reaches it"),
    ],
)
def test_a_port_is_not_opened_by_accident(
    start: Start, root: Path, certificate: Certificate, roles: str, listen: dict[str, object], complaint: str
) -> None:
    given = tls_of(certificate) | listen if "tls" in listen else listen
    with pytest.raises(InvalidArgument, match=complaint):
        start(roles, **given)
    assert not attach_room.is_owned(root)


def test_it_may_be_opened_on_purpose(start: Start) -> None:
    server = start("", tcp=("0.0.0.0:0",), insecure=True)
    url = url_of(server, "xaq").replace("0.0.0.0", "127.0.0.1")
    with xaqueue.connect(url) as anybody:
        produce(anybody)
        assert anybody.tpc_recover() == []


@pytest.mark.parametrize(
    ("listen", "complaint"),
    [
        ({"tls": ("127.0.0.1:1",)}, "--tls needs --cert"),
        ({"cert": "c"}, "are for --tls HOST:PORT"),
        ({"client_ca": "c"}, "are for --tls HOST:PORT"),
        ({"tcp": ("localhost",)}, "no host and port"),
        ({"unix_mode": 0o777}, "socket mode 0777 is refused: 600, 660 or 666"),
        ({"unix_mode": 0o200}, "socket mode 0200"),
    ],
)
def test_options_that_do_not_go_together_are_refused(listen: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        ListenConfig(**listen)  # type: ignore[arg-type]


def test_no_context_of_a_client_is_without_checks(ours: Authority) -> None:
    context = context_of(parse(f"xaqs://localhost:1?ca={ours.ca}"))
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context_of(parse("xaq://localhost:1")) is None


def test_every_refusal_is_an_error_of_ours() -> None:
    assert issubclass(AccessDenied, Error)
    assert xaqueue.AccessDenied is AccessDenied
