"""``/livez`` and ``/readyz``, for whoever starts and routes: no token is wanted, and no name is told.

They ask nothing of the engine that waits, so that they answer while it recovers, or while a disk hangs.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from xaqueue.web.door import link_of


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


ROUTES: list[BaseRoute] = [Route("/livez", livez), Route("/readyz", readyz)]
