"""How HTTP asks its server: as a client of it, by a socket pair within the process, for whoever sent the request.

So a request has the rights that the same token has in any session, asked by the server itself, and nothing that HTTP
does holds a lock or the loop of the engine. Each request has a session of its own, in one of two threads, and for so
many seconds.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from xaqueue.access import Identity
from xaqueue.errors import AccessDenied, ConnectionLost, Error, InvalidArgument, ResourceFailed
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.client.sockets import ClientSocket, PlainSocket
from xaqueue.web.history import EVERY_S, History

if TYPE_CHECKING:
    from xaqueue.rpc.server.server import Server

T = TypeVar("T")

ANSWER_S = 20.0
THREADS = 2
"""So many requests ask at a time. More are answered no sooner, and take the engine's turns from its own clients."""
REFUSALS_LOGGED = 100
"""As long as the server runs: who is refused for ever does not fill the disk."""
OVERVIEW = frozenset(
    {"hello", "close", "echo", "status", "metrics", "sessions", "indoubt_list", "indoubt_next", "depths"}
)
"""What is for whoever is there where nobody need show a token."""
BODIES = frozenset({"browse", "browse_next", "browse_end", "indoubt_bodies"})
"""And this, where tokens are not used at all."""

UNKNOWN = (
    "the server does not know this token: copy it whole, as it was given to you, or ask who keeps the space's "
    "queues.toml for one (`xaqueue token ROLE FILE` makes it)"
)
OVER = "the server is ending: ask again when it runs"

log = logging.getLogger("xaqueue.http")


@dataclass(frozen=True, slots=True)
class Requester:
    """Whom a request is from, and whether that one may do more than look."""

    identity: Identity
    acts: bool
    roles: tuple[str, ...] = ()
    """That have its token; none without an [access] table, and then it may do everything."""


class ServerLink:
    """The way to the server of now; its calls may come from any thread."""

    def __init__(self, is_open: bool) -> None:
        """is_open: whoever is there may look."""
        self.server: Server | None = None
        """None while there is none: the space is being opened, or waited for, or the process ends."""
        self._is_open = is_open
        self.history = History()
        self._refused = 0
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="xaqueue-http")

    def served(self) -> Server:
        """Raises ResourceFailed."""
        if self.server is None:
            raise ResourceFailed("the space is being opened or closed: ask again in a moment")
        return self.server

    def requester(self, token: str | None) -> Requester:
        """Whom a token is of. Raises AccessDenied where that one may do nothing, ResourceFailed."""
        server = self.served()
        trust, policy = server.listeners.trust, server.space.definitions.access
        if token is None:
            if not self._is_open:
                raise AccessDenied("a token is needed here: show it (Authorization: Bearer)")
            reads = trust.token is None and policy.roles is None
            return Requester(Identity(looks=OVERVIEW | BODIES if reads else OVERVIEW), acts=False)
        try:
            identity = Identity().with_token(token, trusted=trust.trusts(token))
        except InvalidArgument:
            raise AccessDenied(f"{UNKNOWN}; this one is too short, too long, or has signs that none has") from None
        refusal = policy.rights_of(identity).refusal
        if refusal:
            self._log(refusal)
            raise AccessDenied(UNKNOWN)
        return Requester(identity, acts=True, roles=tuple(role.name for role in policy.roles_of(identity)))

    async def ask(self, requester: Requester, what: Callable[[RemoteManager], T]) -> T:
        """In one of the threads, with a session that ends with it. Raises what ``what`` does, and ConnectionLost."""
        try:
            asked = asyncio.get_running_loop().run_in_executor(self._threads, self._ask, requester, what)
        except RuntimeError as over:
            raise ConnectionLost(OVER) from over
        return await asked

    def _ask(self, requester: Requester, what: Callable[[RemoteManager], T]) -> T:
        manager = RemoteManager(lambda: self._dial(requester.identity), connect_s=0.0)
        try:
            return what(manager)
        except AccessDenied as refused:
            self._log(f"{requester.identity}: {refused}")
            raise
        finally:
            manager.close()

    def watch(self) -> None:
        """Notes how many messages there are, until it is closed: what a thread of its own does."""
        while not self._over.wait(EVERY_S):
            with suppress(Error):
                if self.served().space.loaded:
                    status = self._ask(Requester(Identity(looks=OVERVIEW), acts=False), RemoteManager.status)
                    self.history.add(time.time(), status["queues"])

    def _log(self, refused: str) -> None:
        self._refused += 1
        if self._refused <= REFUSALS_LOGGED:
            log.warning("[access-refused] a request by HTTP is refused: %s", refused)

    def _dial(self, identity: Identity) -> ClientSocket:
        own, other = socket.socketpair()
        try:
            self.served().admit(other, identity)
        except BaseException as error:
            own.close()
            other.close()
            if isinstance(error, RuntimeError):
                raise ConnectionLost(OVER) from error
            raise
        return ClientSocket(PlainSocket.of(own), ANSWER_S)

    def close(self) -> None:
        """No more is asked."""
        self.server = None
        self._over.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
