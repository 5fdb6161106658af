"""What a session was seen to be: the user at a socket's other end, a token that it showed, its certificate's names.

An identity is made from what the system or TLS has verified and from nothing else that the peer says. A token is known
by its SHA-256 from the moment it arrives: it is in no error, no log and no repr. Tokens are long and random (32 bytes,
say), which is why a plain SHA-256 will do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from xaqueue.errors import InvalidArgument

TOKEN_LEAST = 16
"""Characters of a token, at least."""
TOKEN_MOST = 1024

_TOKEN = re.compile(rf"[!-~]{{{TOKEN_LEAST},{TOKEN_MOST}}}")


@dataclass(frozen=True, slots=True, repr=False)
class Identity:
    """What a session was seen to be."""

    names: tuple[str, ...] = ()
    """As members of a role are written."""
    owner: bool = False
    """It owns the files of the space, or is root, on a Unix socket."""
    trusted: bool = False
    """The server was told to let it in where there is no [access] table."""

    def __str__(self) -> str:
        return ", ".join(name[:14] + "..." if name.startswith("token:") else name for name in self.names) or "anonymous"

    def __repr__(self) -> str:
        return f"<Identity {self}>"

    def with_token(self, token: object, *, trusted: bool) -> Identity:
        """The same, having shown a token; an earlier one is over. Raises InvalidArgument, which never repeats it."""
        others = tuple(name for name in self.names if not name.startswith("token:"))
        return Identity((*others, token_name(token)), self.owner, self.trusted or trusted)


def token_name(token: object) -> str:
    """A token as a member of a role: ``token:`` and its SHA-256. Raises InvalidArgument, which never repeats it."""
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise InvalidArgument(
            f"this is no token: {TOKEN_LEAST} to {TOKEN_MOST} printable ASCII characters without spaces are wanted; "
            "make one with `openssl rand -hex 32`"
        )
    from hashlib import sha256  # slow to load, and most spaces have no server

    return f"token:{sha256(token.encode()).hexdigest()}"


def same_member(one: str, other: str) -> bool:
    """Whether two members are one, in a time that does not tell how much of them agrees."""
    from hmac import compare_digest

    return compare_digest(one.encode(), other.encode())
