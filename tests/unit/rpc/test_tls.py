"""TLS contexts are made from files that are right, and refused with the file's name where they are not."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from support.certificates import Authority, Certificate, private
from xaqueue.errors import InvalidArgument
from xaqueue.rpc.credentials import SECRET_LIMIT_BYTES, client_context, explain, names_in, read_token, server_context

PATIENCE_S = 60.0
TOKEN = "0123456789abcdef-a-token"


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
def server(ours: Authority) -> Certificate:
    return ours.issue("localhost")


@pytest.fixture(scope="module")
def client(ours: Authority) -> Certificate:
    return ours.issue("shop.example", "shop@shop.example", common_name="shop")


def shake_hands(
    serving: ssl.SSLContext, asking: ssl.SSLContext, name: str = "localhost"
) -> tuple[dict[str, object] | OSError, OSError | None]:
    """What each side saw: the server the client's certificate or its error, the client its error, if any."""
    ours, theirs = socket.socketpair()
    seen: list[dict[str, object] | OSError] = []

    def serve() -> None:
        with ours:
            try:
                with serving.wrap_socket(ours, server_side=True) as wrapped:
                    seen.append(dict(wrapped.getpeercert() or {}))
                    wrapped.sendall(wrapped.recv(1))
            except OSError as error:
                seen.append(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    failed = None
    with theirs:
        theirs.settimeout(PATIENCE_S)
        try:
            with asking.wrap_socket(theirs, server_hostname=name) as wrapped:
                with suppress(OSError):  # with TLS 1.3 the refusal comes behind the handshake, and is read in any case
                    wrapped.sendall(b"x")
                assert wrapped.recv(1) == b"x"
        except OSError as error:
            failed = error
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    return seen[0], failed


def test_a_client_that_trusts_the_servers_authority_is_served(ours: Authority, server: Certificate) -> None:
    serving = server_context(str(server.cert), str(server.key))
    seen, failed = shake_hands(serving, client_context(str(ours.ca)))
    assert (seen, failed) == ({}, None)


def test_a_client_with_a_certificate_is_known_by_its_names(
    ours: Authority, server: Certificate, client: Certificate
) -> None:
    serving = server_context(str(server.cert), str(server.key), str(ours.ca))
    seen, failed = shake_hands(serving, client_context(str(ours.ca), str(client.cert), str(client.key)))
    assert failed is None
    assert isinstance(seen, dict)
    assert names_in(seen) == ("cert:shop", "cert:shop.example", "cert:shop@shop.example")


def test_key_and_certificate_may_be_in_one_file(ours: Authority, server: Certificate, tmp_path: Path) -> None:
    both = private(tmp_path / "both.pem", server.key.read_bytes() + server.cert.read_bytes())
    seen, failed = shake_hands(server_context(str(both)), client_context(str(ours.ca)))
    assert (seen, failed) == ({}, None)


def old(context: ssl.SSLContext) -> ssl.SSLContext:
    """Speaks TLS 1.2 at most, in which a refused certificate shows up at another moment."""
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def same(context: ssl.SSLContext) -> ssl.SSLContext:
    return context


@pytest.mark.parametrize("version", [same, old])
def test_no_certificate_and_one_of_strangers_are_refused(
    ours: Authority,
    theirs: Authority,
    server: Certificate,
    version: Callable[[ssl.SSLContext], ssl.SSLContext],
) -> None:
    serving = server_context(str(server.cert), str(server.key), str(ours.ca))
    seen, failed = shake_hands(serving, version(client_context(str(ours.ca))))
    assert isinstance(seen, OSError)
    assert failed is not None
    assert "showed no certificate" in explain(seen, "client")
    assert "cert=" in explain(failed, "server")

    stranger = theirs.issue("shop.example")
    seen, failed = shake_hands(serving, version(client_context(str(ours.ca), str(stranger.cert), str(stranger.key))))
    assert isinstance(seen, OSError)
    assert failed is not None
    assert "the client's certificate is refused: unable to get local issuer certificate" in explain(seen, "client")
    assert "the server does not trust who signed the certificate" in explain(failed, "server")


def test_a_server_that_is_not_who_it_should_be_is_refused(
    ours: Authority, theirs: Authority, server: Certificate
) -> None:
    serving = server_context(str(server.cert), str(server.key))
    seen, failed = shake_hands(serving, client_context(str(theirs.ca)))
    assert failed is not None
    assert "the server's certificate is refused: unable to get local issuer certificate" in explain(failed, "server")
    assert isinstance(seen, OSError)
    assert "the client does not trust who signed" in explain(seen, "client")
    _, failed = shake_hands(serving, client_context(str(ours.ca)), "other.example")
    assert failed is not None
    assert "not valid for 'other.example'" in explain(failed, "server")


def test_old_versions_are_refused(ours: Authority, server: Certificate) -> None:
    for context in (server_context(str(server.cert), str(server.key)), client_context(str(ours.ca))):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_who_speaks_no_tls_is_told_so(ours: Authority) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"\x94\x01\x00\xc0\xc0 this is no TLS")
        other.settimeout(PATIENCE_S)
        with pytest.raises(ssl.SSLError) as failed:
            client_context(str(ours.ca)).wrap_socket(other, server_hostname="localhost")
    assert "does not speak TLS here" in explain(failed.value, "server")


def test_what_nobody_foresaw_is_told_as_it_is() -> None:
    assert explain(ConnectionResetError(104, "Connection reset by peer"), "server") == (
        "TLS failed: Connection reset by peer"
    )


# Files that cannot be used


@pytest.fixture
def broken(tmp_path: Path, server: Certificate, theirs: Authority) -> dict[str, str]:
    found = {
        "cert": server.cert,
        "key": server.key,
        "missing": tmp_path / "missing.pem",
        "directory": tmp_path,
        "text": private(tmp_path / "text.pem", b"hello\n"),
        "cut": private(tmp_path / "cut.pem", server.cert.read_bytes()[:200]),
        "cut_key": private(tmp_path / "cut.key", server.key.read_bytes()[:80]),
        "other_key": theirs.issue("localhost").key,
        "open_key": private(tmp_path / "open.key", server.key.read_bytes()),
        "encrypted": private(
            tmp_path / "encrypted.key",
            b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
        ),
        "large": private(tmp_path / "large.key", b" " * (SECRET_LIMIT_BYTES + 1)),
    }
    found["open_key"].chmod(0o644)
    return {name: str(path) for name, path in found.items()}


@pytest.mark.parametrize(
    ("cert", "key", "ca", "complaint"),
    [
        ("missing", "key", None, r"certificate file \S*missing.pem cannot be read: No such file"),
        ("directory", "key", None, "cannot be read: Is a directory"),
        ("text", "key", None, r"certificate file \S*text.pem holds no certificate in PEM form"),
        ("key", "key", None, "holds no certificate in PEM form"),
        ("cut", "key", None, "cannot be used"),
        ("cert", "missing", None, r"key file \S*missing.pem cannot be read"),
        ("cert", "directory", None, "key file .* cannot be read: Is a directory"),
        ("cert", None, None, r"key file \S*localhost.pem (can be read|holds no private key)"),
        ("cert", "text", None, r"key file \S*text.pem holds no private key in PEM form"),
        ("cert", "cut_key", None, "cannot be used"),
        ("cert", "other_key", None, "does not belong to the first certificate in"),
        ("cert", "open_key", None, r"other users \(mode 0644\): chmod 600 \S*open.key"),
        ("cert", "encrypted", None, "is encrypted: use a key without a passphrase"),
        ("cert", "large", None, "is larger than"),
        ("cert", "key", "missing", r"client CA file \S*missing.pem cannot be read"),
        ("cert", "key", "text", r"client CA file \S*text.pem holds no certificate in PEM form"),
        ("cert", "key", "cut", r"client CA file \S*cut.pem has a certificate that cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    broken: dict[str, str], cert: str, key: str | None, ca: str | None, complaint: str
) -> None:
    with pytest.raises(InvalidArgument, match=complaint) as refused:
        server_context(broken[cert], broken[key] if key else None, broken[ca] if ca else None)
    assert "BEGIN PRIVATE" not in str(refused.value)


def test_a_client_says_what_is_wrong_with_its_own(broken: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match=r"CA file .* holds no certificate"):
        client_context(broken["text"])
    with pytest.raises(InvalidArgument, match="does not belong"):
        client_context(None, broken["cert"], broken["other_key"])


# Token files


def test_a_token_is_read_from_its_file(tmp_path: Path) -> None:
    assert read_token(private(tmp_path / "token", f"{TOKEN}\n".encode())) == TOKEN


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_token_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = private(tmp_path / "token", TOKEN.encode())
    path.chmod(mode)
    groups_own = os.geteuid() == 0 and mode == 0o640
    if groups_own:
        assert read_token(path) == TOKEN
        os.chown(path, 12345, -1)
    with pytest.raises(InvalidArgument, match=f"mode {mode:04o}.: chmod 600"):
        read_token(path)


@pytest.mark.parametrize(
    "content", [b"", b"short", f"{TOKEN} {TOKEN}".encode(), f"{TOKEN}\n{TOKEN}".encode(), b"\xff" * 40]
)
def test_a_file_without_a_token_is_refused_and_not_repeated(tmp_path: Path, content: bytes) -> None:
    path = private(tmp_path / "token", content)
    with pytest.raises(InvalidArgument, match=r"token file \S*token: this is no token") as refused:
        read_token(path)
    assert TOKEN not in str(refused.value)
