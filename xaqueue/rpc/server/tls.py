"""TLS between a server's socket and its session: asyncio's own neither tells a peer nor anybody else why it is refused.

It is the protocol of a plain transport, and the transport of the session, which begins once the handshake is done.
A handshake that fails or takes too long ends with an alert to the peer and one line in the log.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from xaqueue.rpc.credentials import explain

READ_BYTES = 256 * 1024
HANDSHAKE = 0x16
"""The first byte of TLS, in every version that is taken."""

log = logging.getLogger("xaqueue.server")


class TlsLayer(asyncio.Protocol, asyncio.Transport):
    """One connection, on the server's side. Flow control is that of the transport below."""

    def __init__(
        self,
        context: ssl.SSLContext,
        session: Callable[[], asyncio.Protocol],
        over: Callable[[TlsLayer], object],
        timeout_s: float,
    ) -> None:
        """over: called when the handshake has ended, well or not. timeout_s: how long that may take."""
        super().__init__()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._make_session = session
        self._session: asyncio.Protocol | None = None
        self._over = over
        self._timeout_s = timeout_s
        self._plain: asyncio.Transport
        self._made = False
        """It has its transport, which comes a moment later."""
        self._heard = False
        self._closing = False

    # The protocol of the transport below

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._plain = cast(asyncio.Transport, transport)
        self._made = True
        if self._closing:
            self._plain.abort()
            return
        address = transport.get_extra_info("peername")
        self._name = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "a peer"
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._timeout_s, self._refuse, "its handshake took too long")

    def data_received(self, data: bytes) -> None:
        if not self._heard and data[0] != HANDSHAKE:  # OpenSSL may wait for more of it
            self._refuse("it does not speak TLS, which this port wants (xaqs:// or https://)")
            return
        self._heard = True
        self._incoming.write(data)
        try:
            if self._session is None and not self._shake_hands():
                return
            while not self._closing:
                self._received(self._tls.read(READ_BYTES))
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLZeroReturnError:
            self.close()
        except ssl.SSLError as error:
            self._flush()  # the alert
            if self._session is None:
                self._refuse(explain(error, "client"))
            else:
                log.warning("[tls-refused] %s is ended: %s", self._name, explain(error, "client"))
                self._closing = True  # nothing can be written any more, and the session may be about to
                self._plain.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._session is not None:
            self._session.connection_lost(error)
        elif not self._closing:
            self._refuse("it hung up in its handshake")

    def pause_writing(self) -> None:
        if self._session is not None:
            self._session.pause_writing()

    def resume_writing(self) -> None:
        if self._session is not None:
            self._session.resume_writing()

    # The transport of the session

    def write(self, data: Any) -> None:
        if not self._closing:
            self._tls.write(data)
            self._flush()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            with suppress(ssl.SSLError):  # the peer has not said goodbye yet, and need not
                self._tls.unwrap()
            self._flush()
            self._plain.close()

    def abort(self) -> None:
        self._closing = True
        if self._made:
            self._deadline.cancel()
            self._plain.abort()

    def is_closing(self) -> bool:
        return self._closing or self._plain.is_closing()

    def pause_reading(self) -> None:
        self._plain.pause_reading()

    def resume_reading(self) -> None:
        self._plain.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._plain.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tls.getpeercert() if name == "peercert" else self._plain.get_extra_info(name, default)

    def give_way(self) -> None:
        """To others, which may be quicker."""
        if self._session is None and not self._closing:
            self._refuse("too many others are in their handshakes")

    # Within

    def _shake_hands(self) -> bool:
        self._tls.do_handshake()
        self._flush()
        self._deadline.cancel()
        self._over(self)
        self._session = self._make_session()
        self._session.connection_made(self)
        return not self._closing

    def _received(self, data: bytes) -> None:
        if data and self._session is not None:
            self._session.data_received(data)
        elif not data:
            self.close()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._plain.write(self._outgoing.read())

    def _refuse(self, why: str) -> None:
        self._closing = True
        self._over(self)
        if self._made:  # else it is aborted once it is
            self._deadline.cancel()
            log.warning("[tls-refused] %s is refused: %s", self._name, why)
            self._plain.close()
