"""A verb of a session, whole: what it does, who may, its form on the wire, and what a client does for it.

    @verb(CONSUME)
    def extend(self: Session, queue: str, lease: bytes, lease_s: float) -> None: ...     in a space
    @extend.server                                                                       only where a server does more
    def _(caller: Caller, queue: str, lease: Any, lease_s: Any) -> None: ...
    @extend.client                                                                       only where a client does more
    def _(self: Link, queue: str, lease: bytes, lease_s: float) -> None: ...

The name of the function is that of the method in the protocol, and its parameters have the forms of ``FORMS``. It is
called as ``extend(manager, ...)``; where ``xaqueue.features.session`` lists it, also as a method of every session.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, get_type_hints

from xaqueue.access import Need
from xaqueue.core.engine.session import Session
from xaqueue.rpc import wire

if TYPE_CHECKING:
    from xaqueue.rpc.client.link import Link

P = ParamSpec("P")
T = TypeVar("T")

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
    left out at the end."""
    first, *params = inspect.signature(call).parameters.values()
    forms = tuple((at, FORMS[param.name]) for at, param in enumerate(params) if param.name in FORMS)
    least = sum(param.default is param.empty for param in params)
    return Method(name or call.__name__, call, need, first.name == "self", least, len(params), forms)


def methods(need: Need, *calls: Callable[..., Any]) -> tuple[Method, ...]:
    """All of which need the same."""
    return tuple(method(need, call) for call in calls)


class Verb(Generic[P, T]):
    """Made by ``verb``."""

    def __init__(
        self, perform: Callable[Concatenate[Session, P], T], need: Need, *, is_repeated: bool, waits_s: float
    ) -> None:
        self.name, self.need, self.perform = perform.__name__, need, perform
        self.ask: Callable[Concatenate[Link, P], T] = self._asker(is_repeated, waits_s)
        self.method = method(need, perform)

    def server(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """What a server does instead, for a Caller and with parameters of any type."""
        self.method = method(self.need, call, self.name)
        return call

    def client(self, ask: Callable[Concatenate[Link, P], T]) -> Callable[Concatenate[Link, P], T]:
        """What a client does instead of a call by this name."""
        self.ask = ask
        return ask

    def __call__(self, session: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        """Of any session, in a space or with a server."""
        result: T = session.do(self, *arguments, **options)
        return result

    def __get__(self, session: Any, owner: type | None = None) -> Callable[P, T]:
        return MethodType(self, session)

    def _asker(self, is_repeated: bool, waits_s: float) -> Callable[Concatenate[Link, P], T]:
        """Asks for the method of this name, and makes of the answer what the function says that it returns."""

        def ask(self_: Link, /, *arguments: P.args, **options: P.kwargs) -> T:
            params = inspect.signature(self.perform).bind(None, *arguments, **options).args[1:]
            asked = self_.call_with_retry if is_repeated else self_.call
            result: T = wire.decode(self._answer, asked(self.name, *params, waits_s=waits_s))
            return result

        return ask

    @cached_property
    def _answer(self) -> Any:
        return get_type_hints(self.perform)["return"]


def verb(
    need: Need, *, is_repeated: bool = False, waits_s: float = 0.0
) -> Callable[[Callable[Concatenate[Session, P], T]], Verb[P, T]]:
    """is_repeated: a client calls it again where the answer is lost. waits_s: for how long it waits for it, beside the
    time that any answer may take."""

    def made(perform: Callable[Concatenate[Session, P], T]) -> Verb[P, T]:
        return Verb(perform, need, is_repeated=is_repeated, waits_s=waits_s)

    return made
