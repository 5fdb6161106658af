"""The application: all routes, behind the door. What monitors ask is here: ``/metrics``, ``/livez`` and ``/readyz``.

The two probes are for whoever starts and routes: no token is wanted, and no name is given. They ask nothing of the
engine that waits, so that they answer while it recovers, or while a disk hangs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from xaqueue.errors import AccessDenied, Error
from xaqueue.metrics import check_library, text_of
from xaqueue.web import console
from xaqueue.web.door import Door, Refused, answer_to, ask, link_of
from xaqueue.web.link import ServerLink
from xaqueue.web.slowing import Slowing


def app_of(
    link: ServerLink, host: str | None, advise: Callable[[str], dict[str, Any]] | None, *, is_open: bool
) -> Door:
    """host, is_open: see ``Door``, which is before all of it, also before what answers that something is broken."""
    app = Starlette(routes=ROUTES, exception_handlers={Refused: _answer, Error: _answer, 404: _nothing, 405: _nothing})
    app.router.redirect_slashes = False  # nor is any address made of the Host that a request names
    app.state.link, app.state.advise, app.state.slowing = link, advise, Slowing()
    return Door(app, host, is_open=is_open)


def _answer(_: Request, error: Exception) -> Response:
    return answer_to(error)


def _nothing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"there is nothing to {request.method} at {request.url.path[:100]}: the console is at /"
    return answer_to(Refused(error.status_code, what))


async def metrics(request: Request) -> Response:
    """For Prometheus. Who may look may scrape. Where there is no server now, or it does not answer: xaqueue_up 0."""
    check_library()
    from prometheus_client import CONTENT_TYPE_LATEST

    try:
        text = await ask(request, lambda manager: text_of(partial(manager.call, "metrics")))
    except AccessDenied:
        raise
    except Error as lost:
        text = text_of(partial(_fail, lost))
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def _fail(error: Error) -> dict[str, Any]:
    raise error


async def livez(_: Request) -> Response:
    """The process works. Nothing that somebody has to look at is a reason to kill it."""
    return PlainTextResponse("alive\n")


async def readyz(request: Request) -> Response:
    """Whether new work is taken, else 503 and why not."""
    why = _refusal(request)
    return PlainTextResponse(f"{why or 'ready'}\n", 503 if why else 200)


def _refusal(request: Request) -> str:
    server = link_of(request).server
    if server is None:
        return "standing by, being opened, or ending"
    space = server.space
    if space.log.fenced:
        return "fenced"
    if not space.serving:
        return "recovering"
    if space.read_only is not None:
        return "read-only"
    return "draining" if space.draining else ""


ROUTES: list[BaseRoute] = [
    *console.ROUTES,
    Route("/metrics", metrics),
    Route("/livez", livez),
    Route("/readyz", readyz),
]
"""All there is. An endpoint asks the server by ``door.ask``, and finds it at ``door.link_of(request).server``."""
