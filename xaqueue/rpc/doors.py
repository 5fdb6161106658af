"""Where a server listens, and who it takes a peer for: by the kernel on a Unix socket, by the certificate with TLS.

No port is opened by accident: a TCP socket needs something by which peers are known, and TLS where it leaves this
machine, unless a person said that neither is wanted. A handshake that fails is a line in the log and nothing more.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from xaqueue.access import check_exposure
from xaqueue.endpoint import Endpoint, Scheme, host_and_port, is_loopback
from xaqueue.errors import InvalidArgument
from xaqueue.rpc.gate import NOBODY, Trust
from xaqueue.rpc.identity import Identity, token_name
from xaqueue.rpc.secret_files import read_token
from xaqueue.rpc.session import Served
from xaqueue.rpc.sockets import UNIX_MODE, listen_tcp, listen_unix, remove_unix, unix_peer
from xaqueue.rpc.tls import names_in, server_context
from xaqueue.rpc.tls_layer import TlsLayer
from xaqueue.space.model.layout import SOCKET

if TYPE_CHECKING:
    from xaqueue.rpc.server import Server


TURNS = 4
"""Of the loop, from a socket that was accepted to its protocol."""


@dataclass(frozen=True, slots=True)
class Listen:
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


class Doors:
    """The places where one server listens."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._closing: list[asyncio.Server] = []
        self._made: list[tuple[Path, os.stat_result]] = []
        self._handshakes: dict[TlsLayer, None] = {}
        self.trust = NOBODY
        self.urls: list[str] = []

    async def listen(self, listen: Listen) -> None:
        """Raises InvalidArgument and OperationalError, and then some may be open already."""
        self.trust = listen.trust
        context = server_context(listen.cert, listen.key, listen.client_ca) if listen.cert is not None else None
        for path in listen.unix:
            await self.open_unix(path, listen.unix_mode)
        for place in listen.tcp:
            await self.open_tcp(place, None)
        for place in listen.tls:
            await self.open_tcp(place, context)

    async def open_unix(self, path: Path, mode: int = UNIX_MODE) -> None:
        """A socket for this machine. Raises OperationalError where another server listens there."""
        path = path.absolute()
        made = listen_unix(path, mode)
        self._made.append((path, path.lstat()))
        self._closing.append(await self._server.loop.create_unix_server(self._session, sock=made))
        self.urls.append(str(Endpoint(Scheme.UNIX, path=str(path))))

    async def open_tcp(self, place: str, context: ssl.SSLContext | None) -> None:
        """host:port; with a context, TLS. Raises OperationalError, and InvalidArgument where it would be too open."""
        host, port = host_and_port(place)
        certificates = context is not None and context.verify_mode is ssl.CERT_REQUIRED
        tokens = self.trust.token is not None or self._server.space.definitions.access.names_any("token")
        check_exposure(
            place,
            loopback=is_loopback(host),
            tls=context is not None,
            known=certificates or tokens,
            insecure=self.trust.anybody,
        )
        for listening in listen_tcp(host, port):
            made = self._session if context is None else partial(self._tls, context)
            self._closing.append(await self._server.loop.create_server(made, sock=listening))
            bound = listening.getsockname()[1]
            self.urls.append(f"{'xaqs' if context else 'xaq'}://{f'[{host}]' if ':' in host else host}:{bound}")

    async def close(self) -> None:
        """Nobody new comes in, and the Unix sockets are gone."""
        await self._turn()  # asyncio loses a connection that it accepts in the very turn in which its server closes
        for listening in self._closing:
            listening.close()
        for path, made in self._made:
            remove_unix(path, made)
        await self._turn()  # who was accepted just now is told, or begins its handshake
        for layer in list(self._handshakes):
            layer.abort()
        await self._turn()

    @staticmethod
    async def _turn() -> None:
        for _ in range(TURNS):
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

    def _session(self) -> Served:
        return Served(self._server)

    def _tls(self, context: ssl.SSLContext) -> asyncio.Protocol:
        """TLS first; in so many handshakes at a time as there may be sessions."""
        made = TlsLayer(context, self._session, self._is_over, self._server.limits.login_s)
        if len(self._handshakes) >= self._server.limits.sessions:
            next(iter(self._handshakes)).give_way()
        self._handshakes[made] = None
        return made

    def _is_over(self, layer: TlsLayer) -> None:
        self._handshakes.pop(layer, None)


def with_default(listen: Listen, directory: Path) -> Listen:
    """Where nothing is said of sockets, there is one in the space's directory."""
    return listen if listen.unix else replace(listen, unix=(directory.absolute() / SOCKET,))
