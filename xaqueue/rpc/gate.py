"""Before anything is done for a session, its gate asks the policy that holds now, which may change while it is open.

What a gate refuses it logs, a few times a session: a peer that is refused for ever does not fill the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xaqueue.access import Rights
from xaqueue.errors import AccessDenied
from xaqueue.rpc.identity import Identity, same_member, token_name
from xaqueue.space.engine.state import Space

REFUSALS_TOLD = 10
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


class Gate:
    """Of one session."""

    def __init__(self, space: Space, identity: Identity, trust: Trust = NOBODY) -> None:
        self.identity = identity
        self._space = space
        self._trust = trust
        self._policy = space.definitions.access
        self._rights = self._policy.rights_of(identity)
        self._refusals = 0

    @property
    def admits(self) -> bool:
        """Whether there is anything that the session may do."""
        return self._current().refusal == ""

    def show(self, token: object) -> None:
        """The peer shows a token. Raises InvalidArgument for what is none."""
        self.identity = self.identity.with_token(token, trusted=self._trust.trusts(token))
        self._rights = self._policy.rights_of(self.identity)

    def check(self, method: str, params: Sequence[Any]) -> None:
        """Raises AccessDenied, InvalidArgument: see ``Rights.check``."""
        self._current().check(method, params)

    def tell(self, who: str, refused: AccessDenied) -> None:
        """A line in the log."""
        self._refusals += 1
        if self._refusals <= REFUSALS_TOLD:
            last = " (no more of this session is told)" if self._refusals == REFUSALS_TOLD else ""
            log.warning("%s is refused: %s%s", who, refused, last)

    def _current(self) -> Rights:
        policy = self._space.definitions.access
        if policy is not self._policy:
            self._policy, self._rights = policy, policy.rights_of(self.identity)
        return self._rights
