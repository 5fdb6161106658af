"""The application: all routes, behind the door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from xaqueue.errors import Error
from xaqueue.web import console, metrics, probes
from xaqueue.web.door import Door, Refused, answer_to
from xaqueue.web.link import Link
from xaqueue.web.slowing import Slowing

ROUTES: list[BaseRoute] = [*console.ROUTES, *metrics.ROUTES, *probes.ROUTES]
"""All there is. An endpoint asks the server by ``door.ask``, and finds it at ``door.link_of(request).server``."""


def app_of(link: Link, host: str | None, advise: Callable[[str], dict[str, Any]] | None, *, is_open: bool) -> Door:
    """host, is_open: see ``Door``, which is before all of it, also before what answers that something is broken."""
    app = Starlette(routes=ROUTES, exception_handlers={Refused: _answer, Error: _answer})
    app.router.redirect_slashes = False  # nor is any address made of the Host that a request names
    app.state.link, app.state.advise, app.state.slowing = link, advise, Slowing()
    return Door(app, host, is_open=is_open)


def _answer(_: Request, error: Exception) -> Response:
    return answer_to(error)
