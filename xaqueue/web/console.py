"""The console: one page, and what it asks for; with ``web.indoubt`` all of its data and actions.

What is shown comes from the server's own verbs, asked as whoever has the token. Each part of the page answers for
itself: who may not see one sees the others. Texts of messages are data in JSON, and no markup is made of them anywhere.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib import resources
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from xaqueue.connection import Connection
from xaqueue.core.model.definitions import QueueDefinition
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import InvalidArgument, ResourceFailed
from xaqueue.features.retries.options import FAILURE_QUEUE
from xaqueue.message import Message, check_queue_name
from xaqueue.offline.health import findings
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.methods.service import status_of
from xaqueue.web import indoubt
from xaqueue.web.door import action_of, answered, ask, link_of, part, requester_of, shown
from xaqueue.xid import Xid

FILES = {
    "/": ("console.html", "text/html"),
    "/console.css": ("console.css", "text/css"),
    "/console.js": ("console.js", "text/javascript"),
    "/drawing.js": ("drawing.js", "text/javascript"),
    "/hour.js": ("hour.js", "text/javascript"),
}
SHOWN = 50
"""Messages of one answer, and sessions."""
BODY_SHOWN = 256 * 1024
"""Bytes of one body, and of all in a list."""
AT_ONCE, PIECE_S = 100, 5.0
"""Messages that go back in one transaction, and how long one request goes on with the next."""
SCANNED, WORDS_BYTES, REASONS = 2000, 4096, 8
"""Messages that are looked at for words, bytes of each body, and reasons that are listed."""
_ID = re.compile("[0-9a-f]{6,32}")


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
    asks = {"acts": requester.acts, "roles": requester.roles}
    return answered(found | asks | {"now": time.time_ns() // 1000, "failure_queues": _failure_queues(defined)})


def _failure_queues(defined: Iterable[QueueDefinition]) -> list[str]:
    return sorted({FAILURE_QUEUE.of(queue) for queue in defined} - {""})


def _health(status: dict[str, Any]) -> list[dict[str, Any]]:
    few = [queue for queue in status["queues"] if queue["full"] or queue["stuck"]]
    age_s = status["in_doubt_age"] / 1e6
    found = findings(status_of(status | {"queues": few}), draining=status["draining"], in_doubt_age_s=age_s)
    return [{"kind": one.kind, "text": one.text, "bad": one.is_bad} for one in found]


def _sessions(manager: RemoteManager) -> dict[str, Any]:
    rows = manager.call("sessions")
    for branch in (branch for row in rows for branch in row["branches"]):
        branch["xid"] = str(Xid(*branch["xid"]))
    return {"rows": rows[: 4 * SHOWN], "total": len(rows)}


async def history(request: Request) -> Response:
    """How many messages there were in the last hour: in a queue, or in each, with fewer points then."""
    await requester_of(request)
    return answered(link_of(request).history.shown(request.query_params.get("queue") or None))


async def messages(request: Request) -> Response:
    """The first messages of a queue, or those that are looked for; their bodies as far as there is room.

    Of dead letters, and of what is looked for, the answer says how many there are among the first ``SCANNED``, and why.
    """
    queue, find = check_queue_name(request.query_params.get("queue", "")), request.query_params.get("find", "").strip()
    failures = _failure_queues(link_of(request).served().space.definitions.queues.values())
    most = SCANNED if find or queue in failures else SHOWN + 1

    def look(manager: RemoteManager) -> dict[str, Any]:
        rows, room, count, looked, reasons = list[dict[str, Any]](), BODY_SHOWN, 0, 0, Counter[tuple[str, str]]()
        for message in islice(_browse(manager, queue, find), most + 1):
            looked += 1
            if looked > most or not _matches(message, find):
                continue
            count += 1
            if message.origin is not None:
                reasons[message.origin.queue, _reason(message)] += 1
            if count <= SHOWN:
                rows.append(_message(message, room))
                room -= min(len(message.body), room)
        why = [{"queue": origin, "reason": reason, "count": n} for (origin, reason), n in reasons.most_common(REASONS)]
        return {"queue": queue, "rows": rows, "count": count, "more": looked > most, "reasons": why}

    return answered(await ask(request, look))


def _browse(manager: RemoteManager, queue: str, find: str) -> Iterator[Message]:
    """By id where it is one, or the beginning of one; else each has to be looked at."""
    return manager.browse(queue, None, find if _ID.fullmatch(find) else "")


def _matches(message: Message, find: str) -> bool:
    """By words of why it failed, where it came from, its headers and the beginning of its body."""
    if not find or _ID.fullmatch(find):
        return True
    origin, body = message.origin, message.body[:WORDS_BYTES].decode("utf-8", "replace")
    texts = [body, *message.headers.values(), *((origin.queue, origin.reason, origin.detail) if origin else ())]
    return any(find.casefold() in text.casefold() for text in texts)


def _reason(message: Message) -> str:
    assert message.origin is not None
    return (message.origin.detail or message.origin.reason).partition("\n")[0][:200]


def _message(message: Message, room: int) -> dict[str, Any]:
    """room: bytes of its body that are given."""
    content = shown(message.body[:room], len(message.body))
    origin = None if message.origin is None else {**asdict(message.origin), "why": _reason(message)}
    made = {"seq": message.seq, "message_id": message.message_id.hex(), "origin": origin}
    return asdict(message.properties) | content | made | {"unknown": sorted(message.properties.unknown)}


async def requeue(request: Request) -> Response:
    """Messages of a queue up to a number, or those of them that are looked for, go back to where they came from, some
    in a transaction; asked again as long as there are more."""
    body = await action_of(request)
    queue, upto, find = check_queue_name(body.get("queue", "")), body.get("upto"), body.get("find", "")
    if not isinstance(upto, int) or isinstance(upto, bool):
        raise InvalidArgument("upto: a number is wanted, of the last message that goes back")
    if not isinstance(find, str):
        raise InvalidArgument("find: a text is wanted")

    def move(manager: RemoteManager) -> dict[str, Any]:
        moved = stay = 0
        until = time.monotonic() + PIECE_S
        found = (one for one in _browse(manager, queue, find) if one.seq <= upto and _matches(one, find))
        with Connection(manager, fresh_id) as connection:
            while (piece := list(islice(found, AT_ONCE))) and time.monotonic() < until:
                with connection.transaction():
                    went = sum(_goes_back(connection, queue, one) for one in piece)
                moved, stay = moved + went, stay + len(piece) - went
        return {"moved": moved, "stay": stay, "more": bool(piece and moved)}

    return answered(await ask(request, move))


def _goes_back(connection: Connection, queue: str, message: Message) -> bool:
    """Not so where it is held, gone, or came from nowhere."""
    was_elsewhere = message.origin is not None and message.origin.queue
    return bool(was_elsewhere) and connection.requeue(queue, message.message_id) is not None


ROUTES: list[BaseRoute] = [
    *(Route(path, page) for path in FILES),
    Route("/api/overview", overview),
    Route("/api/history", history),
    Route("/api/messages", messages),
    Route("/api/requeue", requeue, methods=["POST"]),
    *indoubt.ROUTES,
]
