"""A session of a space, with the verbs of its features.

Whoever opens a space above the core, serves it or asks its server has these; ``VERBS`` is also what a server takes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, ParamSpec, TypeVar

from xaqueue.core.engine import session as core
from xaqueue.core.owner import open
from xaqueue.features.leases import leases
from xaqueue.rpc.verb import Verb

P = ParamSpec("P")
T = TypeVar("T")


class Verbs:
    """The same methods of a session in a space and of one with a server. A subclass says which half of a verb is its
    own: ``perform``, or ``ask``."""

    _half: ClassVar[str]

    receive = leases.receive
    settle = leases.settle
    extend = leases.extend
    accept = leases.accept

    def __init_subclass__(cls, half: str) -> None:
        cls._half = half
        for name, verb in VERBS.items():
            setattr(cls, name, getattr(verb, half))  # at no cost of a call

    def do(self, verb: Verb[P, T], /, *arguments: P.args, **options: P.kwargs) -> T:
        """One that stands here or not."""
        result: T = getattr(verb, self._half)(self, *arguments, **options)
        return result


VERBS: dict[str, Verb[..., Any]] = {name: verb for name, verb in vars(Verbs).items() if isinstance(verb, Verb)}


class Session(core.Session, Verbs, half="perform"):
    """A ResourceManager. Used by one thread at a time; any number of sessions share a space."""


def whole(session: core.Session) -> Session:
    """With all verbs, in the place of one that was just made."""
    return Session(session.space, session.on_close)


def _whole(attach: Callable[P, core.Session]) -> Callable[P, Session]:
    @wraps(attach)
    def attached(*arguments: P.args, **options: P.kwargs) -> Session:
        return whole(attach(*arguments, **options))

    return attached


attach = _whole(open.attach)
