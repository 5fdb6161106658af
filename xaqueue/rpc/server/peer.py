"""Who a session is with, what that peer may do, how much of it is taken, and how long it is waited for.

Its rights are asked before anything is done for it, and the policy that holds now is asked, which may change while the
session is open. What is refused is logged, a few times a session: a peer that is refused for ever does not fill the
disk. Whatever is over a limit is refused or ended, alone, with a line in the log. Times are looked at now and then; a
peer that goes on, however slowly, is waited for.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from xaqueue.access import PRODUCE, Identity, Need, Rights, same_member, token_name
from xaqueue.errors import AccessDenied, InvalidArgument
from xaqueue.message import PLAIN_OPTIONS, check_queue_name
from xaqueue.rpc import wire

if TYPE_CHECKING:
    from pathlib import Path

    from xaqueue.core.engine.session import Session
    from xaqueue.message import Message
    from xaqueue.offline.inspect_branches import InDoubt
    from xaqueue.rpc.methods.sessions import SessionStatus

REFUSALS_LOGGED = 10
"""Of one session, in the log."""

log = logging.getLogger("xaqueue.server")


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom the server's command line lets in where the space has no [access] table."""

    token: str | None = None
    """As a member of a role: its hash."""
    certificates: bool = False
    """Whoever has one that the client authority has signed."""
    anybody: bool = False

    def trusts(self, token: object) -> bool:
        return self.token is not None and same_member(self.token, token_name(token))


NOBODY = Trust()


class AsksPages(Protocol):
    def ask(self, method: str, *params: Any) -> wire.Packed:
        """Of the process that reads files for the server."""


class ServerCalls(Protocol):
    """What methods ask of the server."""

    @property
    def root(self) -> Path: ...
    @property
    def pages(self) -> AsksPages: ...
    @property
    def kept_pages(self) -> AsksPages: ...

    @property
    def session_count(self) -> int: ...

    def metrics(self) -> dict[str, Any]: ...
    def session_list(self, asks: Caller) -> list[SessionStatus]: ...

    def cut(self, key: bytes) -> None:
        """Ends the session of this key, if it is open: its client has lost it, and goes on in another."""


class Caller:
    """What methods know of a session: that of its branches, who it is with, and the lists that it has open."""

    def __init__(
        self, session: Session, host: ServerCalls, identity: Identity, trust: Trust, *, name: str = ""
    ) -> None:
        """name: in the log, where it is to be there."""
        self._name = name
        self.session = session
        self.host = host
        self.identity = identity
        self.key: bytes | None = None
        """Known to its client alone."""
        self.protocol = 0
        """The version that it speaks, as soon as it has said so."""
        self.browses: dict[int, Iterator[Message]] = {}
        """By their cursors."""
        self.last_cursor = 0
        self.is_replica = False
        """It follows the journal, by what it says."""
        self.copying: Iterator[list[list[Any]]] | None = None
        """What is left of the snapshot that it copies."""
        self.copied: int | None = None
        """The number of that."""
        self.listing: Iterator[list[InDoubt]] | None = None
        """What is left of the list of branches in doubt that it asked for last."""
        self._trust = trust
        self._policy = session.space.definitions.access
        self._rights = self._policy.rights_of(identity)
        self._refusals = 0

    @property
    def is_admitted(self) -> bool:
        """Whether there is anything that the peer may do."""
        return self._current().refusal == ""

    @property
    def is_unlimited(self) -> bool:
        """Whether it may do everything."""
        return self._current().everything

    def show(self, token: object) -> None:
        """The peer shows a token. Raises InvalidArgument for what is none."""
        self.identity = self.identity.with_token(token, trusted=self._trust.trusts(token))
        self._rights = self._policy.rights_of(self.identity)
        self.log_admission()

    def check(self, method: str, need: Need, params: Sequence[Any]) -> None:
        """Raises AccessDenied, InvalidArgument: see ``Rights.check``."""
        self._current().check(method, need, params)

    def check_adding(self, queue: str) -> None:
        """Raises AccessDenied where the peer may not add to this queue."""
        if not self.identity.owner:
            self.check("enqueue", PRODUCE, [queue])

    def check_failure_queue(self, queue: Any) -> None:
        """Whoever adds a message that names where it goes at last must be allowed to add it there."""
        if queue is not None:
            self.check_adding(check_queue_name(queue))

    def options_to_add(self, verb: str, options: Any, known: tuple[str, ...] = PLAIN_OPTIONS) -> Any:
        """Of an enqueue. Raises InvalidArgument, AccessDenied."""
        given = {} if options is None else wire.options_of(options, verb, known)
        if "failure_queue" in given:
            self.check_failure_queue(given["failure_queue"])
        return given

    @property
    def who(self) -> str:
        """With the number by which `xaqueue sessions` knows it, so that its events can be followed."""
        return f"{self._name} {self.session.number} ({self.identity})"

    def log_admission(self) -> None:
        """Who is refused is logged with the refusal."""
        if self._name and self.is_admitted:
            log.info("[session-begins] %s is let in", self.who)

    def log_refusal(self, refused: AccessDenied) -> None:
        self._refusals += 1
        if self._refusals <= REFUSALS_LOGGED:
            last = " (no more of this session is logged)" if self._refusals == REFUSALS_LOGGED else ""
            log.warning("[access-refused] %s is refused: %s%s", self.who, refused, last)

    def _current(self) -> Rights:
        policy = self.session.space.definitions.access
        if policy is not self._policy:
            self._policy, self._rights = policy, policy.rights_of(self.identity)
        return self._rights


FRAME_OVERHEAD_BYTES = 128 * 1024
"""Of an enqueue beside its body: properties, and the frame itself."""
UNAUTHENTICATED_BYTES = 64 * 1024
"""What a peer may send before it was let in."""

NEVER_S = 1e9
"""Thirty years."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds; each at least what ``LEAST`` says. Raises InvalidArgument."""

    request_bytes: int = 64 * 1024 * 1024 + FRAME_OVERHEAD_BYTES
    """The largest request. Unless another one is given it grows with the space's max_body_bytes."""
    request_memory_bytes: int = 256 * 1024 * 1024
    """Of all sessions' requests that are received in part; at least one of the largest finds room."""
    sessions: int = 1024
    branches: int = 256
    """Of one session: those it has begun that are neither prepared nor over."""
    branch_idle_s: float = 180.0
    """A branch that does nothing for longer is rolled back."""
    session_idle_s: float = 3600.0
    """A session that asks for nothing for longer is ended."""
    login_s: float = 10.0
    """For TLS, and then for the token, each."""
    stalled_s: float = 60.0
    """A peer may stop for so long in the middle of a request, or before it reads its answers."""
    stop_s: float = 10.0
    """A server that stops waits so long for peers to read their last answers."""
    close_s: float = 90.0
    """Behind that the space is closed, which may take so long; a disk that hangs does not keep the server."""
    idle_exit_s: float = NEVER_S
    """A server without any session for longer ends by itself."""

    def for_bodies(self, body_bytes: int) -> Limits:
        """With the default limit of a request, room for such a body."""
        needed = body_bytes + FRAME_OVERHEAD_BYTES
        is_default = self.request_bytes == Limits().request_bytes
        return replace(self, request_bytes=needed) if is_default and needed > self.request_bytes else self

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kinds = (int,) if isinstance(field.default, int) else (int, float)
            least = LEAST[field.name]
            if type(value) not in kinds or not least <= value < math.inf:
                unit = "seconds" if field.name.endswith("_s") else "bytes" if field.name.endswith("_bytes") else "them"
                raise InvalidArgument(f"limit {field.name} = {value!r}: at least {least:g} {unit} are wanted")


LEAST: dict[str, float] = {
    "request_bytes": FRAME_OVERHEAD_BYTES,
    "request_memory_bytes": FRAME_OVERHEAD_BYTES,
    "sessions": 1,
    "branches": 1,
    **{field.name: 0.001 for field in fields(Limits) if field.name.endswith("_s")},
}


class PeerTimeouts:
    """How long one peer was waited for: to be let in, to go on, to read its answers, to want anything at all. Times are
    the loop's.
    """

    __slots__ = ("_opened", "_partial", "_read", "_unread", "heard")

    def __init__(self, now: float) -> None:
        self._opened = self.heard = self._read = now
        """``heard``: when something came, as ``hear`` notes; a request by itself is noted by its session."""
        self._partial = False
        """It has sent a part of a request."""
        self._unread = 0

    def hear(self, now: float, *, whole: bool) -> None:
        """Something came; ``whole``: that ends a request."""
        self.heard = now
        self._partial = not whole

    def silent_s(self, now: float) -> float:
        """For how long it has sent nothing."""
        return now - self.heard

    def exceeded(self, now: float, limits: Limits, *, admitted: bool, idle: bool, unread: int) -> str | None:
        """Why the peer is waited for no longer. idle: it is its turn. unread: bytes of answers that it has not read."""
        if not idle:
            self.heard = now
        if unread < self._unread or not unread:
            self._read = now
        self._unread = unread
        if not admitted and now - self._opened > limits.login_s:
            return f"it has not shown who it is within {limits.login_s:g} s"
        if now - self._read > limits.stalled_s:
            return f"it has not read its answers for {limits.stalled_s:g} s"
        if self._partial and now - self.heard > limits.stalled_s:
            return f"it stopped in the middle of a request for {limits.stalled_s:g} s"
        if now - self.heard > limits.session_idle_s:
            return f"it has asked for nothing for {limits.session_idle_s:g} s"
        return None
