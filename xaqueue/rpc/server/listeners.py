"""Where a server listens, and who it takes a peer for: by the kernel on a Unix socket, by the certificate with TLS.

No port is opened by accident: a TCP socket needs something by which peers are known, and TLS where it leaves this
machine, unless a person said that neither is wanted. A handshake that fails is a line in the log and nothing more.

A Unix socket is made with its mode before anybody can connect. One that a killed server left is replaced, one that
somebody answers on is not; between servers that start at once the directory's lock decides. Only these socket files
are ever made or removed here, and never a file of another kind.
"""

from __future__ import annotations

import asyncio
import errno
import os
import pwd
import socket
import ssl
import stat
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from xaqueue.access import Identity, check_exposure, token_name
from xaqueue.core.model.layout import SOCKET
from xaqueue.core.storage.owner_file import FileLock
from xaqueue.endpoint import Endpoint, Scheme, host_and_port, is_loopback
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.rpc.client.sockets import keep_alive
from xaqueue.rpc.credentials import names_in, read_token, server_context
from xaqueue.rpc.server.peer import NOBODY, Limits, Trust
from xaqueue.rpc.server.tls import TlsLayer

BACKLOG = 256
UNIX_MODE = 0o600
LOCK_TRIES, LOCK_PAUSE_S = 100, 0.05
_CREDENTIALS = struct.Struct("3i")
LOOP_ROUNDS = 4
"""Of the loop, from a socket that was accepted to its protocol."""


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Where to listen, and whom to let in there. Raises InvalidArgument."""

    unix: tuple[Path, ...] = ()
    unix_mode: int = UNIX_MODE
    tcp: tuple[str, ...] = ()
    """host:port each; so are those with TLS."""
    tls: tuple[str, ...] = ()
    cert: str | None = None
    key: str | None = None
    client_ca: str | None = None
    token_file: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        for place in (*self.tcp, *self.tls):
            host_and_port(place)
        if not self.unix_mode & 0o600 == 0o600 or self.unix_mode & ~0o666:
            raise InvalidArgument(f"socket mode {self.unix_mode:04o} is refused: 600, 660 or 666 is wanted")
        if self.tls and self.cert is None:
            raise InvalidArgument("--tls needs --cert, the server's certificate, and --key where that is another file")
        if not self.tls and (self.cert or self.key or self.client_ca):
            raise InvalidArgument("--cert, --key and --client-ca are for --tls HOST:PORT: say where to listen with TLS")

    @property
    def trust(self) -> Trust:
        token = token_name(read_token(self.token_file)) if self.token_file is not None else None
        return Trust(token, certificates=self.client_ca is not None, anybody=self.insecure)


class Listeners:
    """The places where one server listens."""

    def __init__(self, session: Callable[[], asyncio.Protocol], limits: Limits) -> None:
        """session: makes the protocol of one that has come."""
        self._session = session
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._closing: list[asyncio.Server] = []
        self._made: list[tuple[Path, os.stat_result]] = []
        self._handshakes: dict[TlsLayer, None] = {}
        self.trust = NOBODY
        self.urls: list[str] = []

    async def listen(self, listen: ListenConfig, *, knows_tokens: bool = False) -> None:
        """Raises InvalidArgument and OperationalError, and then some may be open already.

        knows_tokens: roles of the space name some.
        """
        self.trust = listen.trust
        context = server_context(listen.cert, listen.key, listen.client_ca) if listen.cert is not None else None
        for path in map(Path.absolute, listen.unix):
            made = listen_unix(path, listen.unix_mode)
            self._made.append((path, path.lstat()))
            self._closing.append(await self._loop.create_unix_server(self._session, sock=made))
            self.urls.append(str(Endpoint(Scheme.UNIX, path=str(path))))
        for place in listen.tcp:
            await self._open_tcp(place, None, knows_tokens)
        for place in listen.tls:
            await self._open_tcp(place, context, knows_tokens)

    async def _open_tcp(self, place: str, context: ssl.SSLContext | None, knows_tokens: bool) -> None:
        """host:port; with a context, TLS. Raises OperationalError, and InvalidArgument where it would be too open."""
        host, port = host_and_port(place)
        certificates = context is not None and context.verify_mode is ssl.CERT_REQUIRED
        tokens = knows_tokens or self.trust.token is not None
        check_exposure(
            place,
            loopback=is_loopback(host),
            tls=context is not None,
            known=certificates or tokens,
            insecure=self.trust.anybody,
        )
        for listening in listen_tcp(host, port):
            made = self._session if context is None else partial(self._tls, context)
            self._closing.append(await self._loop.create_server(made, sock=listening))
            bound = listening.getsockname()[1]
            self.urls.append(f"{'xaqs' if context else 'xaq'}://{f'[{host}]' if ':' in host else host}:{bound}")

    async def close(self) -> None:
        """Nobody new comes in, and the Unix sockets are gone."""
        await (
            self._yield_to_loop()
        )  # asyncio loses a connection that it accepts in the very turn in which its server closes
        for listening in self._closing:
            listening.close()
        for path, made in self._made:
            remove_unix(path, made)
        await self._yield_to_loop()  # who was accepted just now is told, or begins its handshake
        for layer in list(self._handshakes):
            layer.abort()
        await self._yield_to_loop()

    @staticmethod
    async def _yield_to_loop() -> None:
        for _ in range(LOOP_ROUNDS):
            await asyncio.sleep(0)

    def identify(self, transport: asyncio.BaseTransport) -> Identity:
        """Who is at the other end, as far as that is known without its saying anything."""
        connected = transport.get_extra_info("socket")
        if connected.family == socket.AF_UNIX:
            return unix_peer(connected)
        certificate = transport.get_extra_info("peercert")
        if not certificate:
            return Identity(trusted=self.trust.anybody)
        return Identity(names_in(certificate), trusted=self.trust.certificates or self.trust.anybody)

    def _tls(self, context: ssl.SSLContext) -> asyncio.Protocol:
        """TLS first; in so many handshakes at a time as there may be sessions."""
        made = TlsLayer(context, self._session, lambda one: self._handshakes.pop(one, None), self._limits.login_s)
        if len(self._handshakes) >= self._limits.sessions:
            next(iter(self._handshakes)).give_way()
        self._handshakes[made] = None
        return made


def with_default(listen: ListenConfig, directory: Path) -> ListenConfig:
    """Where nothing is said of sockets, there is one in the space's directory."""
    return listen if listen.unix else replace(listen, unix=(directory.absolute() / SOCKET,))


# Sockets


def listen_unix(path: Path, mode: int = UNIX_MODE) -> socket.socket:
    """A listening Unix socket, with this mode. Raises OperationalError, InvalidArgument."""
    Endpoint(Scheme.UNIX, path=str(path))
    lock = _lock_of(path.parent)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        _clear(path)
        made.bind(str(path))
        path.chmod(mode)  # before it listens: until then nobody can connect
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise OperationalError(f"{path} cannot be made a socket: {error.strerror}") from error
    except BaseException:
        made.close()
        raise
    finally:
        lock.release()
    return made


def remove_unix(path: Path, made: os.stat_result) -> None:
    """Removes a socket file, if it is still the one that was made."""
    with suppress(OSError):
        found = path.lstat()
        if (found.st_dev, found.st_ino) == (made.st_dev, made.st_ino):
            path.unlink()


def clear_own(path: Path) -> None:
    """Removes the socket of a space that was taken over: a server that is stopped listens there still."""
    with suppress(OSError):
        if path.is_socket():
            path.unlink()


def listen_tcp(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address that the host's name has. Raises OperationalError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise OperationalError(f"{host} is no address of this machine: {error.strerror or error}") from error
    made: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
            made.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            keep_alive(listening)  # as it is, so are those that it accepts
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
    except OSError as error:
        for listening in made:
            listening.close()
        raise OperationalError(f"{host} port {port} cannot be listened on: {error.strerror or error}") from error
    return made


def unix_peer(connected: socket.socket) -> Identity:
    """Who connected, as the kernel saw it at that moment."""
    _, uid, _ = _credentials(connected)
    return unix_user(uid, os.geteuid())


def unix_pid(connected: socket.socket) -> int:
    """Of the process that connected; 0 where the kernel does not tell."""
    return _credentials(connected)[0] if connected.family == socket.AF_UNIX else 0


def _credentials(connected: socket.socket) -> tuple[int, int, int]:
    """pid, uid and gid."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return pid, uid, gid


def unix_user(uid: int, own_uid: int) -> Identity:
    """The identity of a user of this machine, by name and by number."""
    names = [f"user:{uid}"]
    with suppress(KeyError):
        names.insert(0, f"user:{pwd.getpwuid(uid).pw_name}")
    return Identity(tuple(names), owner=uid in (own_uid, 0))


def _lock_of(directory: Path) -> FileLock:
    """The directory's own lock, while a socket in it is looked at and replaced."""
    try:
        lock = FileLock(directory, create=False)
    except OSError as error:
        raise InvalidArgument(f"{directory} cannot hold a socket: {error.strerror}") from None
    for _ in range(LOCK_TRIES):
        if lock.acquire():
            return lock
        time.sleep(LOCK_PAUSE_S)
    lock.release()
    raise OperationalError(f"{directory} is locked by another process: try again, or choose another path to serve on")


def _clear(path: Path) -> None:
    """Removes the socket that a killed server left. Raises OperationalError where it is anything else."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OperationalError(f"{path} is no socket: choose another path to serve on")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINPROGRESS):  # those have a full backlog: somebody listens
                raise
    raise OperationalError(f"{path} is served already: stop that server, or choose another path")
