"""What a session may call: every method of the protocol by its name, how one is carried out, and those that are plain.

A whole transaction that is plain (``rpc.plain``) waits for nothing but its round, and for that in no greenlet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from xaqueue.core.engine.state import Space
from xaqueue.errors import Error, InvalidArgument
from xaqueue.features.session import Session
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.methods.messages import BROWSE_METHODS
from xaqueue.rpc.methods.pages import PAGE_METHODS
from xaqueue.rpc.methods.replication import REPLICATION_METHODS
from xaqueue.rpc.methods.service import SERVICE_METHODS, hello
from xaqueue.rpc.methods.work import PLAIN, WORK_METHODS, answer_to, work
from xaqueue.rpc.plain import Ending, Whole
from xaqueue.rpc.server.peer import Caller
from xaqueue.rpc.server.scheduler import Awaiting, Scheduler
from xaqueue.rpc.wire import RESPONSE

METHODS = {
    method.name: method
    for method in (
        *(verb.method for verb in RemoteManager.verbs.values()),
        *BROWSE_METHODS,
        *PAGE_METHODS,
        *SERVICE_METHODS,
        *REPLICATION_METHODS,
        *WORK_METHODS,
    )
}
"""What a client may call, and the rest of the protocol."""


def perform(caller: Caller, name: str, params: list[Any]) -> Any:
    """What is answered. Raises InvalidArgument for a method or parameters that are none, AccessDenied for a right that
    is missing, and what the method raises."""
    method = METHODS.get(name)
    if method is None:
        raise InvalidArgument(f"method {name[:60]!r} is unknown: see xaqueue(5)")
    if not method.least <= len(params) <= method.most:
        wanted = str(method.least) if method.least == method.most else f"{method.least} to {method.most}"
        raise InvalidArgument(f"{name} takes {wanted} parameters, not {len(params)}")
    call = method.call
    if call is hello and params and isinstance(params[0], Mapping) and params[0].get("token") is not None:
        caller.show(params[0]["token"])
    if not caller.identity.owner:  # who may do everything, whatever the policy
        caller.check(name, method.need, params)
    shipping = caller.session.space.shipping
    if shipping is not None and shipping.refusal and method not in REPLICATION_METHODS and call is not hello:
        shipping.check_shown()
    for at, value_of in method.forms:
        if at < len(params):
            params[at] = value_of(params[at])
    return call(caller.session if method.is_verb else caller, *params)


_OPEN, _PREPARE = Ending.OPEN, Ending.PREPARE


class PlainCalls(Awaiting):
    """Those of one session that need no greenlet, one at a time, in the loop."""

    session: Session
    caller: Caller
    step: Whole
    """On its way."""

    def __init__(self, scheduler: Scheduler, space: Space) -> None:
        super().__init__(scheduler, space.log)
        self._space = space
        self._number: int | None = None
        """Of the request for the step, until that is answered."""
        self._idle = True
        """No call is under way."""

    def begin_plain(self, frame: Sequence[Any]) -> bool:
        """Of a request for one of PLAIN, whether it is so: then it is answered, or on its way."""
        _, number, method, params = frame
        if self._space.shipping is not None or not (self.caller.identity.owner or self._may(method, params)):
            return False
        try:
            whole = PLAIN[method](self.session, params)
            if whole is None:
                return False
            self._idle, self.step, self._number = False, whole, number
            if whole.done:
                self.go_on()
            else:
                self.scheduler.gather(self)
        except Error as error:
            self.refused(error, number, method)
        except Exception:
            self.break_off()
        return True

    def _may(self, method: str, params: list[Any]) -> bool:
        """All of it; who is refused is told so by the greenlet."""
        caller = self.caller
        if caller.is_unlimited:
            return True
        try:
            calls = work(caller, *params[:4]) if method == "work" and len(params) >= 3 else [(method, params)]
            for name, given in calls:
                caller.check(name, METHODS[name].need, given)
        except Error:
            return False
        return True

    def go_on(self) -> None:
        number = self._number
        if number is None:
            return
        whole = self.step
        if whole.done and whole.error is None:
            self._number = None
            del self.step
            if whole.ending is _OPEN:
                self.answered(answer_to(number, whole.answers[-1], self.scheduler.pack))
            else:
                answer = "ok" if whole.ending is _PREPARE else None
                self.answered(self.scheduler.pack((RESPONSE, number, None, answer)))
        elif whole.done or self.log.failure is not None:
            self._number = None
            self.carry_out(number, partial(self.session.once_more, whole))
        elif whole.round is not None and whole.waiter is not None:
            self.scheduler.lead(self)

    def answered(self, frame: bytes) -> None:
        """The call that was begun last is answered so."""
        raise NotImplementedError

    def refused(self, error: Error, number: int, method: str) -> None:
        """The call that was to be begun is answered so."""
        raise NotImplementedError

    def carry_out(self, number: int, call: Callable[[], Any]) -> None:
        """It is not plain any more: this answers it, in the greenlet."""
        raise NotImplementedError
