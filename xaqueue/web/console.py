"""The console: one page, and what it asks for."""

from __future__ import annotations

from importlib import resources

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from xaqueue.web.door import ask

FILES = {"/": ("console.html", "text/html"), "/console.css": ("console.css", "text/css")}
FILES["/console.js"] = ("console.js", "text/javascript")


async def page(request: Request) -> Response:
    name, kind = FILES[request.url.path]
    content = resources.files("xaqueue.web").joinpath("static", name).read_bytes()
    return Response(content, media_type=f"{kind}; charset=utf-8")


async def overview(request: Request) -> JSONResponse:
    return JSONResponse(await ask(request, lambda manager: manager.status()))


ROUTES: list[BaseRoute] = [
    *(Route(path, page) for path in FILES),
    Route("/api/overview", overview),
]
