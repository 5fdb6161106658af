"""Every method of the protocol, by name, and how one is performed for a caller."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from xaqueue.errors import InvalidArgument
from xaqueue.rpc import wire
from xaqueue.rpc.methods.batches import BATCH_METHODS
from xaqueue.rpc.methods.branches import BRANCH_METHODS
from xaqueue.rpc.methods.messages import MESSAGE_METHODS
from xaqueue.rpc.methods.operators import OPERATOR_METHODS
from xaqueue.rpc.methods.service import SERVICE_METHODS, hello
from xaqueue.rpc.methods.streams import STREAM_METHODS
from xaqueue.rpc.server.authorizer import Caller


class Method(NamedTuple):
    """One method, with how many parameters it takes at least and at most."""

    call: Callable[..., Any]
    least: int
    most: int


def _method(call: Callable[..., Any]) -> Method:
    """A function whose first parameter is the caller; those that have a default may be left out at the end."""
    _, *params = inspect.signature(call).parameters.values()
    return Method(call, sum(param.default is param.empty for param in params), len(params))


METHODS: dict[str, Method] = {
    call.__name__: _method(call)
    for call in (
        *BRANCH_METHODS,
        *MESSAGE_METHODS,
        *BATCH_METHODS,
        *STREAM_METHODS,
        *OPERATOR_METHODS,
        *SERVICE_METHODS,
    )
}


def perform(caller: Caller, call: wire.CallFrame) -> Any:
    """What is answered. Raises InvalidArgument for a method or parameters that are none, AccessDenied for a right that
    is missing, and what the method raises."""
    method = METHODS.get(call.method)
    if method is None:
        raise InvalidArgument(f"method {call.method[:60]!r} is unknown: see xaqueue(5)")
    if not method.least <= len(call.params) <= method.most:
        wanted = str(method.least) if method.least == method.most else f"{method.least} to {method.most}"
        raise InvalidArgument(f"{call.method} takes {wanted} parameters, not {len(call.params)}")
    if method.call is hello:  # only there a token is shown
        said = call.params[0] if call.params else None
        if isinstance(said, Mapping) and said.get("token") is not None:
            caller.authorizer.show(said["token"])
    caller.authorizer.check(call.method, call.params)
    return method.call(caller, *call.params)
