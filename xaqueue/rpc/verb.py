"""A verb of a session, whole: what it does, who may, its form on the wire, and what a client does for it.

    @verb(CONSUME)
    def extend(self: Session, queue: str, lease: bytes, lease_s: float) -> None: ...     in a space
    @extend.server                                                                       only where a server does more
    def _(caller: Caller, queue: str, lease: Any, lease_s: Any) -> None: ...
    @extend.client                                                                       only where a client does more
    def _(self: Link, queue: str, lease: bytes, lease_s: float) -> None: ...

    @verb_of(CONSUME, Session.dequeue)                                                   what a client does for one that
    def dequeue(self: Link, queue: str, ...) -> Message | None: ...                      a space has elsewhere

The name of the function is that of the method in the protocol, and its parameters have the forms of ``FORMS``. It is
called as ``extend(manager, ...)``; where ``xaqueue.features.session`` lists it, also as a method of every session.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec, TypeVar, get_type_hints

from xaqueue.access import Need
from xaqueue.core.engine.session import Session
from xaqueue.rpc import wire

if TYPE_CHECKING:
    from xaqueue.rpc.client.link import Link

P = ParamSpec("P")
T = TypeVar("T")
How = Literal["call", "call_with_retry", "work"]

FORMS = {
    **{"xid": wire.xid_of, "flags": wire.flags_of, "timeout_s": wire.timeout_of, "queue": wire.queue_of},
    "begun_by": wire.key_of,
}
"""Of parameters that have another form on the wire, by their names: what makes the value."""


class Method(NamedTuple):
    """What a server does for one method of the protocol."""

    name: str
    call: Callable[..., Any]
    need: Need
    is_verb: bool
    """Its first parameter is the session, and not the caller."""
    least: int
    """How many parameters it takes."""
    most: int
    forms: tuple[tuple[int, Callable[[Any], Any]], ...]
    """Where a parameter with another form stands, and what makes its value."""


def method(need: Need, call: Callable[..., Any], name: str = "") -> Method:
    """The first parameter is the session where it is ``self``, and else the Caller. Those that have a default may be
    left out at the end; those that have to be named are no business of a client."""
    first, *params = (one for one in inspect.signature(call).parameters.values() if one.kind is not one.KEYWORD_ONLY)
    forms = tuple((at, FORMS[param.name]) for at, param in enumerate(params) if param.name in FORMS)
    least = sum(param.default is param.empty for param in params)
    return Method(name or call.__name__, call, need, first.name == "self", least, len(params), forms)


def methods(need: Need, *calls: Callable[..., Any]) -> tuple[Method, ...]:
    """All of which need the same."""
    return tuple(method(need, call) for call in calls)


class Verb(Generic[P, T]):
    """Made by ``verb`` or ``verb_of``."""

    def __init__(
        self, need: Need, perform: Callable[Concatenate[Session, P], T], how: How, waits_s: float, name: str = ""
    ) -> None:
        self.name, self.need, self.perform = name or perform.__name__, need, perform
        self.method = method(need, perform, self.name)
        self.ask: Callable[Concatenate[Link, P], T] = self._call_of(how, waits_s)

    def server(self, call: Callable[..., Any]) -> None:
        """What a server does instead, for a Caller and with parameters of any type."""
        self.method = method(self.need, call, self.name)

    def client(self, ask: Callable[Concatenate[Link, P], T]) -> None:
        """What a client does instead of a call by this name."""
        self.ask = ask

    def __call__(self, session: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        """Of any session, in a space or with a server."""
        result: T = session.do(self, *arguments, **options)
        return result

    def __get__(self, session: Any, owner: type | None = None) -> Callable[P, T]:
        return MethodType(self, session)

    def _call_of(self, how: How, waits_s: float) -> Callable[Concatenate[Link, P], T]:
        """Asks for the method of this name, and makes of the answer what the function says that it returns."""

        def ask(link: Link, /, *arguments: P.args, **options: P.kwargs) -> T:
            params = inspect.signature(self.perform).bind(None, *arguments, **options).args[1:]
            answer = getattr(link, how)(self.name, *params, waits_s=waits_s)
            result: T = wire.decode(self._answer, answer)
            return result

        return ask

    @cached_property
    def _answer(self) -> Any:
        return get_type_hints(self.perform)["return"]


def verb(
    need: Need, how: How = "call", waits_s: float = 0.0
) -> Callable[[Callable[Concatenate[Session, P], T]], Verb[P, T]]:
    """how: the method of ``Link`` by which a client asks for it. waits_s: for how long it waits for the answer, beside
    the time that any may take."""
    return lambda perform: Verb(need, perform, how, waits_s)


def verb_of(need: Need, perform: Callable[..., T]) -> Callable[[Callable[Concatenate[Link, P], T]], Verb[P, T]]:
    """For what a client does. perform: takes the same, and perhaps more that has a default."""

    def made(ask: Callable[Concatenate[Link, P], T]) -> Verb[P, T]:
        found = Verb[P, T](need, perform, "call", 0.0, ask.__name__)
        found.client(ask)
        return found

    return made
