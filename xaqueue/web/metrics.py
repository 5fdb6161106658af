"""``/metrics``, for Prometheus: asked as any other part of the page, by the server's own verb."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from xaqueue.errors import AccessDenied, Error
from xaqueue.metrics import check_library, text_of
from xaqueue.web.door import ask


async def metrics(request: Request) -> Response:
    """Who may look may scrape. Where there is no server now, or it does not answer: xaqueue_up 0."""
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


ROUTES: list[BaseRoute] = [Route("/metrics", metrics)]
