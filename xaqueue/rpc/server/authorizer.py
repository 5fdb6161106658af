"""Who a session is with, and what that peer may do: asked before anything is done for it.

The policy that holds now is asked, which may change while the session is open. What is refused is logged, a few times a
session: a peer that is refused for ever does not fill the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from xaqueue.access import Identity, Rights, same_member, token_name
from xaqueue.errors import AccessDenied
from xaqueue.message import Message
from xaqueue.space.engine.session import Session
from xaqueue.space.engine.state import Space
from xaqueue.space.offline.inspect_branches import InDoubt

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


class Authorizer:
    """Of one session."""

    def __init__(self, space: Space, identity: Identity, trust: Trust = NOBODY) -> None:
        self.identity = identity
        self._space = space
        self._trust = trust
        self._policy = space.definitions.access
        self._rights = self._policy.rights_of(identity)
        self._refusals = 0

    @property
    def is_admitted(self) -> bool:
        """Whether there is anything that the peer may do."""
        return self._current().refusal == ""

    def show(self, token: object) -> None:
        """The peer shows a token. Raises InvalidArgument for what is none."""
        self.identity = self.identity.with_token(token, trusted=self._trust.trusts(token))
        self._rights = self._policy.rights_of(self.identity)

    def check(self, method: str, params: Sequence[Any]) -> None:
        """Raises AccessDenied, InvalidArgument: see ``Rights.check``."""
        rights = self._rights if self._space.definitions.access is self._policy else self._current()
        if not rights.everything:
            rights.check(method, params)

    def log_refusal(self, who: str, refused: AccessDenied) -> None:
        self._refusals += 1
        if self._refusals <= REFUSALS_LOGGED:
            last = " (no more of this session is told)" if self._refusals == REFUSALS_LOGGED else ""
            log.warning("%s is refused: %s%s", who, refused, last)

    def _current(self) -> Rights:
        policy = self._space.definitions.access
        if policy is not self._policy:
            self._policy, self._rights = policy, policy.rights_of(self.identity)
        return self._rights


class Caller:
    """What methods know of a session: that of its branches, its rights, and the lists that it has open."""

    def __init__(
        self,
        session: Session,
        status: Callable[[], dict[str, Any]],
        authorizer: Authorizer,
        cut: Callable[[bytes], object],
    ) -> None:
        """cut: ends the session of this key."""
        self.session = session
        self.authorizer = authorizer
        self.status = status
        self.cut = cut
        self.key: bytes | None = None
        """Known to its client alone."""
        self.browses: dict[int, Iterator[Message]] = {}
        """By their cursors."""
        self.last_cursor = 0
        self.listing: Iterator[list[InDoubt]] | None = None
        """What is left of the list of branches in doubt that it asked for last."""
