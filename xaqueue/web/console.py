"""The console: one page, and what it asks for; with ``web.indoubt`` all of its data and actions.

What is shown comes from the server's own verbs, asked as whoever has the token. Each part of the page answers for
itself: who may not see one sees the others. Texts of messages are data in JSON, and no markup is made of them anywhere.
"""

from __future__ import annotations

import time
from base64 import b64encode
from dataclasses import asdict
from importlib import resources
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from xaqueue.connection import Connection
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import InvalidArgument, ResourceFailed
from xaqueue.features.retries.options import FAILURE_QUEUE
from xaqueue.message import Message, check_queue_name, id_digits_of, id_of
from xaqueue.offline.health import findings
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.methods.service import status_of
from xaqueue.web import indoubt
from xaqueue.web.door import action_of, answered, ask, link_of, part, requester_of
from xaqueue.xid import Xid

FILES = {
    "/": ("console.html", "text/html"),
    "/console.css": ("console.css", "text/css"),
    "/console.js": ("console.js", "text/javascript"),
}
SHOWN = 50
"""Messages of one answer, and sessions."""
BODY_SHOWN = 256 * 1024
"""Bytes of one body, and of all in a list."""
AT_ONCE = 100
"""Messages that one action moves, in one transaction."""


async def page(request: Request) -> Response:
    name, kind = FILES[request.scope["path"]]
    content = resources.files("xaqueue.web").joinpath("static", name).read_bytes()
    return Response(content, media_type=f"{kind}; charset=utf-8")


async def overview(request: Request) -> Response:
    """All that the page shows of its own accord, of one moment. While messages are being loaded it is refused at once:
    who waited for that would take a thread from a scrape."""
    requester, served = await requester_of(request), link_of(request).served()
    if not served.space.loaded:
        raise ResourceFailed("messages are being loaded: wait")
    defined = served.space.definitions.queues.values()

    def look(manager: RemoteManager) -> dict[str, Any]:
        status = manager.status()
        return {
            "status": status,
            "health": _health(status),
            "sessions": part(lambda: _sessions(manager)),
            "in_doubt": part(lambda: indoubt.listed(manager)),
        }

    found = await ask(request, look)
    failures = sorted({FAILURE_QUEUE.of(queue) for queue in defined} - {""})
    more = {"now": time.time_ns() // 1000, "acts": requester.acts, "failure_queues": failures}
    return answered(found | more)


def _health(status: dict[str, Any]) -> list[dict[str, Any]]:
    few = [queue for queue in status["queues"] if queue["full"] or queue["stuck"]]
    age_s = status["in_doubt_age"] / 1e6
    found = findings(status_of(status | {"queues": few}), draining=status["draining"], in_doubt_age_s=age_s)
    return [{"text": f"{one.kind}: {one.text}", "bad": one.is_bad} for one in found]


def _sessions(manager: RemoteManager) -> dict[str, Any]:
    rows = manager.call("sessions")
    for branch in (branch for row in rows for branch in row["branches"]):
        branch["xid"] = str(Xid(*branch["xid"]))
    return {"rows": rows[: 4 * SHOWN], "total": len(rows)}


async def messages(request: Request) -> Response:
    """The first messages of a queue, or those whose ids begin so; their bodies as far as there is room."""
    queue, digits = check_queue_name(request.query_params.get("queue", "")), request.query_params.get("id") or None

    def look(manager: RemoteManager) -> list[dict[str, Any]]:
        rows, room = list[dict[str, Any]](), BODY_SHOWN
        for message in islice(manager.browse(queue, SHOWN + 1, id_digits_of(digits)), SHOWN + 1):
            rows.append(_message(message, room))
            room -= min(len(message.body), room)
        return rows

    rows = await ask(request, look)
    return answered({"queue": queue, "rows": rows[:SHOWN], "more": len(rows) > SHOWN})


def _message(message: Message, room: int) -> dict[str, Any]:
    """room: bytes of its body that are given. What is no text is given in Base64."""
    fields, body = asdict(message.properties), message.body[:room]
    cut = len(body) < len(message.body)
    try:
        content = {"body": body.decode("utf-8", "ignore" if cut else "strict")}
    except UnicodeDecodeError:
        content = {"body_base64": b64encode(body).decode("ascii")}
    made = {"seq": message.seq, "message_id": message.message_id.hex(), "size_bytes": len(message.body), "cut": cut}
    origin = None if message.origin is None else asdict(message.origin)
    return fields | made | content | {"origin": origin, "unknown": sorted(message.properties.unknown)}


async def requeue(request: Request) -> Response:
    """Messages go back to where they came from, all in one transaction; those that are held or gone stay."""
    body = await action_of(request)
    queue, ids = check_queue_name(body.get("queue", "")), body.get("ids")
    if not isinstance(ids, list) or not 0 < len(ids) <= AT_ONCE:
        raise InvalidArgument(f"ids of 1 to {AT_ONCE} messages are wanted, as a list")
    wanted = [id_of(one) for one in ids]

    def move(manager: RemoteManager) -> int:
        with Connection(manager, fresh_id) as connection, connection.transaction():
            return sum(connection.requeue(queue, one) is not None for one in wanted)

    return answered({"moved": await ask(request, move), "asked": len(wanted)})


async def failed(request: Request) -> Response:
    """A piece of all messages of a queue up to a number goes back; asked again as long as there are more."""
    body = await action_of(request)
    queue, upto = check_queue_name(body.get("queue", "")), body.get("upto")
    if not isinstance(upto, int) or isinstance(upto, bool):
        raise InvalidArgument("upto: a number is wanted, of the last message that goes back")

    def move(manager: RemoteManager) -> dict[str, Any]:
        moved = stay = 0
        with Connection(manager, fresh_id) as connection, connection.transaction():
            for message in manager.browse(queue):
                if moved == AT_ONCE:
                    break
                if message.seq <= upto:
                    was_elsewhere = message.origin is not None and message.origin.queue
                    went = was_elsewhere and connection.requeue(queue, message.message_id) is not None
                    moved, stay = moved + bool(went), stay + (not went)
        return {"moved": moved, "stay": stay, "more": moved == AT_ONCE}

    return answered(await ask(request, move))


ROUTES: list[BaseRoute] = [
    *(Route(path, page) for path in FILES),
    Route("/api/overview", overview),
    Route("/api/messages", messages),
    Route("/api/requeue", requeue, methods=["POST"]),
    Route("/api/failed", failed, methods=["POST"]),
    *indoubt.ROUTES,
]
