"""What every request goes through, and what every answer says: the door in front of all routes.

It refuses what is no page's business before any route sees it: names of hosts that this is not (a page elsewhere may
have its own name point here), requests that another site's page makes, bodies that are large, are not JSON or take too
long. Every answer, also an error, says that nothing of it is kept, framed, sniffed or sent on, and that the page loads
nothing from anywhere else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from base64 import b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from xaqueue.access import NO_TOKEN
from xaqueue.endpoint import is_address, is_loopback
from xaqueue.errors import AccessDenied, ConnectionLost, Error, ProgrammingError, ResourceFailed, RetryLater
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.web.link import Requester, ServerLink
from xaqueue.web.slowing import Slowing, address_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

T = TypeVar("T")
FAULTS_LOGGED = 100
"""As long as the server runs."""

log = logging.getLogger("xaqueue.http")

BODY_BYTES = 64 * 1024
BODY_S = 10.0
HEADER = "x-xaqueue"
"""Of actions. A page of another site cannot send it unless it is allowed to, which nobody is."""
ELSEWHERE = "the request comes from another site's page, and nothing was done: ask from the console's own"
SECURITY = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Connection": "close",
}


class Refused(Exception):
    """With a status of HTTP."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Door:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, host: str | None, *, is_open: bool = False) -> None:
        """host: the one that this is served at, beside the names of this machine; None where names prove nothing.

        is_open: others reach it without a token. A page of theirs may have its own name point here, so no name is
        taken that somebody may have given: only addresses, this host's own names, and such as have no dot.
        """
        self._app, self._host, self._is_open = app, host, is_open
        self._faults = 0
        self._own = {socket.gethostname().lower(), socket.getfqdn().lower()} if is_open else set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY)
            await send(message)

        try:
            try:
                self._check(scope["method"], scope["path"], Headers(scope=scope))
            except Refused as refused:
                await answer_to(refused)(scope, receive, sealed)
            else:
                await self._app(scope, receive, sealed)
        except Exception as fault:  # of this program; who asked has been answered with 500
            self._faults += 1
            if self._faults <= FAULTS_LOGGED:
                log.error("[http-fault] %s %s: %r", scope["method"], scope["path"], fault, exc_info=True)

    def _check(self, method: str, path: str, headers: Headers) -> None:
        host = _host_of(headers.get("host", ""))
        if self._host is not None and not (is_loopback(host) or host == self._host):
            raise Refused(421, "this is not the host that the request names: use 127.0.0.1 or localhost")
        if self._is_open and not (is_address(host.partition("%")[0]) or "." not in host or host in self._own):
            raise Refused(421, "where no token is wanted only an address, or this host's own name, is taken: use one")
        if method not in ("GET", "HEAD", "POST"):
            raise Refused(405, f"{method[:20]} is not for anything here: GET and POST are")
        site = headers.get("sec-fetch-site")
        if (method == "POST" or path.startswith("/api/")) and site not in (None, "same-origin", "none"):
            raise Refused(403, ELSEWHERE)
        if method == "POST":
            self._check_action(headers, site)

    @staticmethod
    def _check_action(headers: Headers, site: str | None) -> None:
        origin = headers.get("origin")
        own = [f"{scheme}://{headers.get('host')}" for scheme in ("http", "https")]
        if site is None and origin is not None and origin not in own:
            raise Refused(403, ELSEWHERE)
        if headers.get(HEADER) != "1":
            raise Refused(403, f"an action needs the header {HEADER}: 1, so that no other site's page can ask for it")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "an action is asked for in JSON: Content-Type: application/json")


def _host_of(text: str) -> str:
    """Without its port and brackets; empty where it is none."""
    try:
        return urlsplit(f"//{text}").hostname or ""
    except ValueError:
        return ""


# For endpoints


async def action_of(request: Request) -> dict[str, Any]:
    """The map that came with an action, of somebody who has shown a token. Raises Refused, AccessDenied."""
    if not (await requester_of(request)).acts:
        raise AccessDenied(f"this {NO_TOKEN}")
    received = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                received += piece
                if len(received) > BODY_BYTES:
                    raise Refused(413, f"the request is over the limit of {BODY_BYTES:,} bytes")
    except ClientDisconnect:
        raise Refused(400, "the request ended before its body did") from None
    except TimeoutError:
        raise Refused(408, f"the request did not come within {BODY_S:g} s") from None
    try:
        found = json.loads(received)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refused(400, 'the request is no JSON object: send one, as {"xid": "...", "reason": "..."}')
    return found


def link_of(request: Request) -> ServerLink:
    link: ServerLink = request.app.state.link
    return link


async def requester_of(request: Request) -> Requester:
    """Raises AccessDenied, which takes longer the more wrong tokens have come from there, Refused, ResourceFailed."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer":
        return link_of(request).requester(None)
    slowing: Slowing = request.app.state.slowing
    address = address_of(request.client.host if request.client else "")
    if slowing.is_full(address):
        raise Refused(429, "too many wrong tokens come from your address at once: ask again in some seconds")
    try:
        return link_of(request).requester(token.strip())
    except AccessDenied:
        await slowing.failed(address)
        raise


async def ask(request: Request, what: Callable[[RemoteManager], T]) -> T:
    """What the server answers to whoever sent this; whatever it raises is an answer, too: see ``answer_to``."""
    return await link_of(request).ask(await requester_of(request), what)


def part(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is seen, or why it is not: of several things that are answered together."""
    try:
        return look()
    except ConnectionLost:
        raise
    except Error as refused:
        return {"error": str(refused), "rows": []}


def answered(value: object, status: int = 200) -> Response:
    """As JSON. Bytes in it are text where they are printable, else hex."""
    return Response(json.dumps(value, default=text_of), status, media_type="application/json")


def shown(body: bytes, size_bytes: int) -> dict[str, Any]:
    """A body, or the beginning of one of this size. What is no text is given in Base64."""
    cut = len(body) < size_bytes
    try:
        content = {"body": body.decode("utf-8", "ignore" if cut else "strict")}
    except UnicodeDecodeError:
        content = {"body_base64": b64encode(body).decode("ascii")}
    return {"size_bytes": size_bytes, "cut": cut, **content}


def text_of(value: bytes) -> str:
    text = value.decode("latin-1")
    return text if text.isascii() and text.isprintable() else value.hex()


STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (AccessDenied, 403),
    (ProgrammingError, 400),
    (RetryLater, 503),
    (ConnectionLost, 503),
    (ResourceFailed, 503),
    (Error, 409),
)


def answer_to(error: Exception) -> Response:
    """An error as an answer: ``error`` says what it is and what to do."""
    status = error.status if isinstance(error, Refused) else next(s for kind, s in STATUSES if isinstance(error, kind))
    return answered({"error": str(error), "kind": type(error).__name__}, status)
