"""The HTTP side of ``xaqueue serve``: uvicorn in a thread of its own, for as long as the process serves.

Nothing here is called by the engine, and nothing waits for it: see ``link`` for how it asks. A peer gets one request a
connection, so many seconds for it, and a place among so many; whoever is slower or more than that is cut off. Where TLS
is wanted its handshake is that of the other ports.

On this machine's addresses, and on a Unix socket, whoever comes may look without a token. An address that others reach
needs TLS and tokens, unless a person said that it is to be open.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xaqueue.access import check_exposure
from xaqueue.endpoint import host_and_port, is_loopback
from xaqueue.errors import InvalidArgument
from xaqueue.rpc.credentials import server_context
from xaqueue.rpc.server.listeners import UNIX_MODE, listen_tcp, listen_unix, remove_unix
from xaqueue.rpc.server.tls import TlsLayer
from xaqueue.web.link import ServerLink

if TYPE_CHECKING:
    import uvicorn

    from xaqueue.rpc.server.server import Server

CONNECTIONS = 64
"""At a time; also those in their handshake."""
REQUEST_S = 30.0
"""From the first byte that a peer may send to the last that it has read."""
HANDSHAKE_S = 5.0
HEADERS_BYTES = 16 * 1024
STOP_S = 3.0
"""How long the end is waited for: a thread that hangs does not keep the process."""
MISSING = "--http needs Starlette and uvicorn: pip install 'xaqueue[http]'"


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Where HTTP is served. Raises InvalidArgument."""

    place: str
    """host:port, or the path of a Unix socket."""
    unix_mode: int = UNIX_MODE
    cert: str | None = None
    """For an address that others reach, with the key behind it or in ``key``; as for RPC."""
    key: str | None = None
    client_ca: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.host is not None and not self.is_local:
            known = True  # which is looked at once the space's roles are read
            tls = self.cert is not None
            check_exposure(f"--http {self.place}", loopback=False, tls=tls, known=known, insecure=self.insecure)

    @property
    def host(self) -> str | None:
        """None of a Unix socket."""
        return None if "/" in self.place else host_and_port(self.place)[0]

    @property
    def is_local(self) -> bool:
        """Only this machine reaches it: nobody there need show a token to look."""
        return self.host is None or is_loopback(self.host)

    @property
    def has_tls(self) -> bool:
        return self.cert is not None and not self.is_local


class HttpFront:
    """Around ``rpc.server.server.run``, which shows it the server."""

    def __init__(self, config: HttpConfig, advise: Callable[[str], dict[str, Any]] | None = None) -> None:
        """advise: what to do with a global transaction; see ``xaqueue indoubt advise``. Raises InvalidArgument."""
        if find_spec("starlette") is None or find_spec("uvicorn") is None:
            raise InvalidArgument(MISSING)
        self.config = config
        self.link = ServerLink(config.is_local or config.insecure)
        self._advise = advise
        self.url = ""
        self._tls: ssl.SSLContext | None = None
        if config.has_tls and config.cert is not None:
            self._tls = server_context(config.cert, config.key, config.client_ca)
        self._ending = ExitStack()

    def __enter__(self) -> HttpFront:
        """Before the space is opened. Raises OperationalError, InvalidArgument."""
        sockets = self._listen()
        made = self._server()
        thread = threading.Thread(target=made.run, args=(sockets,), name="xaqueue-http", daemon=True)
        thread.start()
        threading.Thread(target=self.link.watch, name="xaqueue-http-history", daemon=True).start()

        def stop() -> None:
            made.should_exit = True
            thread.join(STOP_S)

        self._ending.callback(stop)
        return self

    def show(self, server: Server | None) -> None:
        """The one that it is about from now on; None: there is none now. Raises InvalidArgument: it is too open."""
        if server is not None and not self.config.is_local:
            check_exposure(
                f"--http {self.config.place}",
                loopback=False,
                tls=self.config.has_tls,
                known=server.listeners.trust.token is not None or server.space.definitions.access.names_any("token"),
                insecure=self.config.insecure,
            )
        self.link.server = server

    def __exit__(self, *_: object) -> None:
        self.link.close()
        self._ending.close()

    def _listen(self) -> list[socket.socket]:
        host = self.config.host
        if host is None:
            path = Path(self.config.place).absolute()
            made = listen_unix(path, self.config.unix_mode)
            self._ending.callback(remove_unix, path, path.lstat())
            self.url = f"http+unix://{path}"
            return [made]
        sockets = listen_tcp(host, host_and_port(self.config.place)[1])
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if self._tls else 'http'}://{shown}:{sockets[0].getsockname()[1]}/"
        return sockets

    def _server(self) -> uvicorn.Server:
        import uvicorn

        from xaqueue.web.app import app_of

        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # else odd requests are lines; the door tells of faults
        config = uvicorn.Config(
            app_of(
                self.link,
                self.config.host if self.config.is_local else None,
                self._advise,
                is_open=self.config.insecure and not self.config.is_local,
            ),
            http=_protocol_of(self._tls),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=HEADERS_BYTES,
            timeout_graceful_shutdown=1,
        )
        return uvicorn.Server(config)


def _protocol_of(context: ssl.SSLContext | None) -> Any:
    """What uvicorn makes of each connection, which is given to nobody but this class."""
    from h11 import IDLE, SEND_RESPONSE
    from uvicorn.protocols.http.h11_impl import H11Protocol

    taken: dict[asyncio.Protocol, Callable[[], object]] = {}
    """Each connection, the oldest first, and how it is cut off."""

    def take(one: asyncio.Protocol, cut: Callable[[], object]) -> None:
        """Where all places are taken, the oldest that has not sent a whole request goes, else the newcomer."""
        taken[one] = cut
        if len(taken) > CONNECTIONS:
            waiting = (other for other in taken if getattr(other, "cycle", None) is None)
            taken.pop(next(waiting, one))()

    class Bounded(H11Protocol):
        """Has its place, and its time."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._late = self.loop.call_later(REQUEST_S, transport.abort)
            take(self, transport.abort)

        def send_400_response(self, msg: str) -> None:
            """What came is no HTTP. Where it is behind the head of a request, nobody else answers that any more."""
            if self.cycle is not None:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            if self.conn.our_state in (IDLE, SEND_RESPONSE):
                super().send_400_response(msg)
            else:
                self.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._late.cancel()
            taken.pop(self, None)

    if context is None:
        return Bounded

    def over(layer: TlsLayer) -> None:
        taken.pop(layer, None)

    def with_tls(**given: Any) -> asyncio.Protocol:
        layer = TlsLayer(context, partial(Bounded, **given), over, HANDSHAKE_S)
        take(layer, layer.abort)
        return layer

    return with_tls
