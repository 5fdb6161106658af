"""Who may do what: roles give rights to members, and each method says which right it needs. No I/O here.

An identity has the rights of every role that has one of its names as a member, together. Whoever owns the files of
the space, and root, may do everything on its Unix socket: they could do it to the files. Without an [access] table so
may everybody whom the server was told to let in, and nobody else may do anything.

An identity is made from what the system or TLS has verified and from nothing else that the peer says. A token is known
by its SHA-256 from the moment it arrives: it is in no error, no log and no repr. Tokens are long and random (32 bytes,
say), which is why a plain SHA-256 will do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import translate
from typing import Any, NamedTuple

from xaqueue.errors import AccessDenied, InvalidArgument
from xaqueue.xid import LOCAL_FORMAT_ID

TOKEN_LEAST = 16
"""Characters of a token, at least."""
TOKEN_MOST = 1024
NO_TOKEN = (
    "needs a token: sign in with one (`xaqueue token ROLE FILE` makes it), for without it can only be looked at. "
    "Nothing was done"
)

_TOKEN = re.compile(rf"[!-~]{{{TOKEN_LEAST},{TOKEN_MOST}}}")
_USER = re.compile(r"[^\x00-\x20\x7f:]+")
_HASH = re.compile(r"[0-9a-f]{64}")
_CERT = re.compile(r"[^\x00-\x1f\x7f]+")
_PATTERN = re.compile(r"[A-Za-z0-9._*?!\[\]-]{1,255}")


@dataclass(frozen=True, slots=True, repr=False)
class Identity:
    """What a session was seen to be."""

    names: tuple[str, ...] = ()
    """As members of a role are written."""
    owner: bool = False
    """It owns the files of the space, or is root, on a Unix socket."""
    trusted: bool = False
    """The server was told to let it in where there is no [access] table."""
    looks: frozenset[str] = frozenset()
    """The methods that are for whoever is there, of a place where nobody need show who it is; then no others are."""

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


class Right(Enum):
    """The first three are given for queues, the others as a whole."""

    PRODUCE = "produce"
    CONSUME = "consume"
    BROWSE = "browse"
    TRANSACT = "transact"
    """Two-phase commit: branches under xids of the caller's, and finishing prepared ones, whoever prepared them."""
    RESOLVE = "resolve"
    """An operator's decisions on branches in doubt."""
    ADMIN = "admin"
    """What concerns the server: who is there, to drain it, and to define and repair its queues."""


class Need(NamedTuple):
    """What a method needs: one of these rights, or the right to the queues that its first parameter names."""

    one_of: tuple[Right, ...] = ()
    queue: Right | None = None
    nothing: bool = False
    unless_local: bool = False
    """Nothing, where the xid in its first parameter is that of a local transaction."""


NOTHING = Need(nothing=True)
PRODUCE, CONSUME, BROWSE = (Need(queue=right) for right in (Right.PRODUCE, Right.CONSUME, Right.BROWSE))
TRANSACT, RESOLVE, ADMIN = (Need((right,)) for right in (Right.TRANSACT, Right.RESOLVE, Right.ADMIN))
EITHER = Need((Right.TRANSACT, Right.RESOLVE))
EITHER_OR_LOCAL = Need((Right.TRANSACT, Right.RESOLVE), unless_local=True)
TRANSACT_OR_LOCAL = Need((Right.TRANSACT,), unless_local=True)


@dataclass(frozen=True, slots=True)
class Role:
    """A name, who has it, and what they may do. Raises InvalidArgument."""

    name: str
    members: tuple[str, ...] = ()
    produce: tuple[str, ...] = ()
    consume: tuple[str, ...] = ()
    browse: tuple[str, ...] = ()
    transact: bool = False
    resolve: bool = False
    admin: bool = False

    def __post_init__(self) -> None:
        for member in self.members:
            complaint = _wrong_member(member)
            if complaint:
                raise InvalidArgument(f"role {self.name!r}: {complaint}")
        for right in ON_QUEUES:
            for pattern in getattr(self, right.value):
                if not _PATTERN.fullmatch(pattern):
                    raise InvalidArgument(
                        f"role {self.name!r}: {right.value} of {pattern!r}: the name of a queue is wanted, or a "
                        "pattern of * and ?, like 'orders.*'"
                    )


ON_QUEUES = (Right.PRODUCE, Right.CONSUME, Right.BROWSE)
"""Rights with patterns of queue names."""
AS_A_WHOLE = (Right.TRANSACT, Right.RESOLVE, Right.ADMIN)


def _wrong_member(member: str) -> str:
    """What is wrong with a member. A token that stands here in the clear is not repeated."""
    kind, _, name = member.partition(":")
    if kind == "token" and not _HASH.fullmatch(name):
        return "a token: member is not the SHA-256 of a token, 64 hex digits: the token itself is for its holder only"
    if kind == "user" and not _USER.fullmatch(name):
        return f"member {member!r} is refused: user: and the name or number of a user of this machine is wanted"
    if kind == "cert" and not _CERT.fullmatch(name):
        return f"member {member!r} is refused: cert: and a name in a client's certificate is wanted"
    if kind not in ("token", "user", "cert"):
        return "a member is refused: user:NAME, token:SHA256 or cert:NAME is wanted"
    return ""


class Rights:
    """What one identity may do, made ready to be asked at every call."""

    __slots__ = ("_looks", "_queues", "_who", "_whole", "everything", "refusal")

    def __init__(
        self,
        who: str,
        roles: Sequence[Role],
        refusal: str = "",
        *,
        everything: bool = False,
        looks: frozenset[str] = frozenset(),
    ) -> None:
        """everything: of the owner, and of all who are let in where there is no table."""
        self._looks = looks
        self._who = who
        self.everything = everything
        self.refusal = refusal
        """Why it may do nothing at all; empty where it may do something."""
        self._queues = {right: _matcher(p for role in roles for p in getattr(role, right.value)) for right in ON_QUEUES}
        self._whole = {right for right in AS_A_WHOLE if any(getattr(role, right.value) for role in roles)}

    def check(self, method: str, need: Need, params: Sequence[Any]) -> None:
        """Raises AccessDenied for a right that is missing."""
        if self.everything:
            return
        if self.refusal:
            raise AccessDenied(self.refusal)
        if self._looks:
            if method in self._looks:
                return
            raise AccessDenied(f"{method} {NO_TOKEN}")
        if need.nothing or not self._whole.isdisjoint(need.one_of):
            return
        if need.unless_local and _is_local(params):
            return
        if need.queue is None:
            raise AccessDenied(self._without(method, need.one_of, f"write {need.one_of[0].value} = true"))
        for queue in _queues_of(method, params):
            if not self._queues[need.queue].fullmatch(queue):
                what = f"{method} of queue {queue[:130]!r}"
                raise AccessDenied(self._without(what, (need.queue,), f"add it to {need.queue.value}"))

    def _without(self, what: str, rights: Sequence[Right], how: str) -> str:
        wanted = " or ".join(right.value for right in rights)
        return (
            f"{what} needs the right to {wanted}, which no role of {self._who} has: "
            f"{how} in a role of the [access] table of queues.toml. Nothing was done"
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """The [access] table."""

    roles: tuple[Role, ...] | None = None
    """None: there is no table."""

    def rights_of(self, identity: Identity) -> Rights:
        if identity.owner or (self.roles is None and identity.trusted):
            return _EVERYTHING
        if identity.looks:
            return Rights(str(identity), (), looks=identity.looks)
        roles = self.roles_of(identity)
        return Rights(str(identity), roles, "" if roles else self._refusal_of(identity))

    def roles_of(self, identity: Identity) -> list[Role]:
        return [role for role in self.roles or () if _has(role, identity)]

    def _refusal_of(self, identity: Identity) -> str:
        shown = f"access is denied to {identity}"
        if not identity.names:
            shown += ": show a token (token_file= in the URL) or a certificate (cert=)"
        elif self.roles is None:
            shown += ": without an [access] table the server lets in its own user and whoever shows what it was told"
        else:
            shown += ": it is a member of no role in the [access] table of queues.toml"
        return shown

    def names_any(self, *kinds: str) -> bool:
        """Whether some role has a member of these kinds: user, token, cert."""
        return any(member.partition(":")[0] in kinds for role in self.roles or () for member in role.members)


def check_exposure(host: str, *, loopback: bool, tls: bool, known: bool, insecure: bool) -> None:
    """Refuses to open a port by accident. Raises InvalidArgument.

    known: whoever comes has to show a token or a certificate. insecure: a person said that neither is needed.
    """
    if insecure:
        return
    if not known:
        raise InvalidArgument(
            f"{host} would be open to whoever reaches it: name tokens or certificates in the [access] table of "
            "queues.toml, or give --token-file or --client-ca, or say --insecure"
        )
    if not tls and not loopback:
        raise InvalidArgument(
            f"{host} would carry tokens and messages in the clear: serve it with TLS (--tls, --cert, --key), listen on "
            "127.0.0.1 only, or say --insecure"
        )


def _has(role: Role, identity: Identity) -> bool:
    found = [same_member(member, name) for member in role.members for name in identity.names]
    return any(found)


def _matcher(patterns: Iterable[str]) -> re.Pattern[str]:
    """Of no pattern: it matches nothing."""
    return re.compile("|".join(translate(pattern) for pattern in patterns) or r"(?!)")


def _is_local(params: Sequence[Any]) -> bool:
    xid = params[0] if params else None
    return isinstance(xid, list | tuple) and len(xid) == 3 and type(xid[0]) is int and xid[0] == LOCAL_FORMAT_ID


def _queues_of(method: str, params: Sequence[Any]) -> list[str]:
    """The queues that a call names. Raises InvalidArgument where it names none, so that none goes unchecked."""
    named = params[0] if params else None
    queues = [queue for queue in (named if isinstance(named, list) else [named]) if isinstance(queue, str)]
    if len(queues) != (len(named) if isinstance(named, list) else 1):
        raise InvalidArgument(f"{method}: the name of a queue is wanted first")
    return queues


_EVERYTHING = Rights("", (), everything=True)
NO_TABLE = Policy()
