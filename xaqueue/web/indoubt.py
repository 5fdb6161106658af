"""Branches in doubt in the console: what each adds and holds, what is advised, what a decision does, and that.

The rights are those of the verbs that are asked, ``advise`` as ``indoubt_list``. A decision is signed with the token's
hash, and a reason is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from xaqueue.batch import is_of_a_batch, parse_gtrid
from xaqueue.errors import InvalidArgument, UnknownXid
from xaqueue.offline.inspect_branches import BranchMessage, InDoubt, by_age, dry_run_of, traffic_of
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.methods.service import RemoteOperator
from xaqueue.rpc.wire import decode
from xaqueue.tm.gtrid import parse_listed
from xaqueue.web.door import action_of, answered, ask, part, shown, text_of
from xaqueue.xid import Xid

SHOWN = 100
"""Branches, and messages of one."""
SIGNED = "console"
"""Who has decided, with whose token it was."""


def listed(manager: RemoteManager) -> dict[str, Any]:
    """The oldest of those that the server tells first: there may be very many."""
    more, page = manager.call("indoubt_list")
    while more and len(page) <= SHOWN:
        more, others = manager.call("indoubt_next")
        page += others
    found = by_age(decode(InDoubt, value) for value in page)
    return {"rows": [_branch(one) for one in found[:SHOWN]], "more": more or len(found) > SHOWN}


def _branch(branch: InDoubt) -> dict[str, Any]:
    return {
        "xid": str(branch.xid),
        "gtrid": text_of(branch.xid.gtrid),
        "state": branch.state,
        "since": branch.since,
        "coordinator": _coordinator(branch.xid),
        "queues": [one._asdict() for one in traffic_of(branch)],
        "added": _contents(branch.added),
        "held": _contents(branch.held),
        "damage": branch.damage,
        "decision": asdict(branch.decision) if branch.decision else None,
    }


def _contents(contents: Sequence[BranchMessage]) -> list[dict[str, Any]]:
    return [{**asdict(one), "message_id": one.message_id.hex()} for one in contents[:SHOWN]]


def _coordinator(xid: Xid) -> str:
    batch, made = parse_gtrid(xid.gtrid) if is_of_a_batch(xid) else None, parse_listed(tuple(xid))
    if batch is not None:
        return f"batch {batch[1]} of query {batch[0]} (Spark)"
    return "another product" if made is None else f"node {made.gtrid.node}, here as {made.participant}"


async def advice(request: Request) -> Response:
    """What the transaction manager that the server was told of, and all participants, say of a branch."""
    xid, advise = Xid.parse(request.query_params.get("xid", "")), request.app.state.advise
    await ask(request, lambda manager: manager.call("indoubt_list"))  # who may not see the branch is not told of it
    made = parse_listed(tuple(xid))
    if made is None:
        raise InvalidArgument("no transaction manager of xaqueue made this branch: ask the one that did")
    if advise is None:
        raise InvalidArgument(
            f"the server knows no transaction manager (serve --tm): xaqueue indoubt advise {made.gtrid} --tm CONFIG"
        )
    return answered(await asyncio.to_thread(advise, str(made.gtrid)))


async def effect(request: Request) -> Response:
    """The queues before and after each of the two decisions, and the beginnings of the bodies that it is about."""
    xid = Xid.parse(request.query_params.get("xid", ""))

    def look(manager: RemoteManager) -> dict[str, Any]:
        operator = RemoteOperator(manager)
        waiting = operator.in_doubt()
        branch = next((one for one in waiting if one.xid == xid), None)
        if branch is None:
            raise UnknownXid(f"branch {xid} is not in doubt any more")
        queues = sorted({one.queue for one in (*branch.added, *branch.held)})
        depths = operator.depths(queues)

        def after(commit: bool) -> dict[str, Any]:
            return {"rows": list(map(asdict, dry_run_of(branch, waiting, depths, commit)))}

        def bodies(queue: str) -> dict[str, Any]:
            found = manager.call("indoubt_bodies", queue, xid)
            return {"rows": [{"message_id": one.hex(), **shown(body, size)} for one, body, size in found]}

        told = {queue: part(partial(bodies, queue)) for queue in queues}
        return {"commit": part(partial(after, True)), "rollback": part(partial(after, False)), "bodies": told}

    return answered(await ask(request, look))


async def decide(request: Request) -> Response:
    """Commits a branch, or rolls it back, as ``xaqueue indoubt`` does."""
    body = await action_of(request)
    xid, commit, reason = Xid.parse(_text(body, "xid")), body.get("commit"), _reason(body)
    if not isinstance(commit, bool):
        raise InvalidArgument("commit: true or false is wanted")
    decision = await ask(request, lambda manager: RemoteOperator(manager).decide(xid, commit, SIGNED, reason))
    return answered(asdict(decision))


async def forget(request: Request) -> Response:
    """Ends the memory of a decision."""
    body = await action_of(request)
    xid, reason = Xid.parse(_text(body, "xid")), _reason(body)
    await ask(request, lambda manager: RemoteOperator(manager).forget(xid, SIGNED, reason))
    return answered({})


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str):
        raise InvalidArgument(f"{name}: a text is wanted")
    return value


def _reason(body: dict[str, Any]) -> str:
    reason = _text(body, "reason").strip()
    if not reason:
        raise InvalidArgument("a reason is wanted: it is recorded with who and when. Nothing was done")
    return reason


ROUTES: list[BaseRoute] = [
    Route("/api/advice", advice),
    Route("/api/branch", effect),
    Route("/api/decide", decide, methods=["POST"]),
    Route("/api/forget", forget, methods=["POST"]),
]
