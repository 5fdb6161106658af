"""A directory's work goes to the server that has it, by itself; without one, this process opens the space.

Who was led to a server stays its client: a server that is gone could not come back if a client had opened the directory
meanwhile. So it is waited for, for as long as ``server_s`` says, where this process has found one there, where the
owner file says that one was killed, while another process opens the space, and where queues.toml says ``served_only``.
Behind that the directory is opened here, but with ``served_only`` never. A server that has ended by itself is waited
for by those alone who have found it there.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from xaqueue.connection import Connection
from xaqueue.core.model.format import read_format
from xaqueue.core.owner.definitions_file import usable_definitions
from xaqueue.core.owner.open import is_attached
from xaqueue.core.owner.record import RECOVERING, Owner, in_use, read_owner
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.ids import fresh_id
from xaqueue.core.storage.owner_file import is_owned
from xaqueue.endpoint import is_url, parse, parse_open_string
from xaqueue.errors import ConnectionLost, InvalidArgument, SpaceError, SpaceInUse
from xaqueue.features.session import Session, whole
from xaqueue.features.snapshots.restoring import attach_or_restore
from xaqueue.spans import connection

if TYPE_CHECKING:
    from xaqueue.rpc.client.manager import RemoteManager
    from xaqueue.rpc.client.sockets import ClientSocket

SERVER_S = 60.0
SAY_S = 2.0
"""Who has waited for longer says so."""
SERVED_ONLY = ", which alone opens it, as `[space] served_only` in queues.toml says"

log = logging.getLogger("xaqueue")


class GivenUp(ConnectionLost):
    """Raised by a ``pause``: nobody waits any more, and so the directory is not opened either."""


in_memory: dict[str, Callable[[str | None], Connection]] = {}
"""Spaces of ``xaqueue.testing``, by what names them: each connects, and is told the flags that are wanted."""
_led: set[str] = set()
"""Directories, by their real paths, where this process has found a server that is to stay."""


def served_at(path: str | os.PathLike[str]) -> str:
    """The URL under which the space is served now; empty where no server owns it."""
    owner = owner_of(path)
    return owner.endpoint if owner is not None else ""


def is_awaited(path: str | os.PathLike[str]) -> bool:
    """Whether a space that no server has is to have one."""
    owner = read_owner(path)
    was_killed = owner is not None and owner.awaited and owner.unclosed != ""
    return was_killed or os.path.realpath(path) in _led or is_served_only(path)


def connect(
    place: str,
    *,
    create: bool = False,
    sync: str | None = None,
    server_s: float | None = SERVER_S,
    resend: bool = False,
    pause: Callable[[float], object] = time.sleep,
) -> Connection:
    """To a directory or a URL; see ``xaqueue.connect``. pause: waits for so many seconds, and may raise ``GivenUp``."""
    if server_s is not None and (type(server_s) not in (int, float) or not server_s >= 0):
        raise InvalidArgument(f"server_s={server_s!r} is refused: seconds from 0 are wanted, or None for ever")
    if place in in_memory:
        return in_memory[place](sync)
    if not is_url(place):
        directory, name = parse_open_string(place)

        def open_here() -> Session:
            return whole(attach_or_restore(directory, create_missing=create, sync=sync, name=name))

        found = session(directory, open_here, server_s, pause, resend=resend)
        try:
            if not isinstance(found, Session):
                _check_served(found, directory, name, sync)
        except BaseException:
            found.close()
            raise
        return connection(found, fresh_id)
    if create or sync is not None or server_s != SERVER_S:
        raise InvalidArgument(
            "create=, sync= and server_s= are for a directory: whoever serves a space opens it, and says how"
        )
    from xaqueue.rpc.client.manager import remote_manager  # who opens a directory needs no sockets

    return connection(remote_manager(place, kind=_kind_of(resend)), fresh_id)


def session(
    directory: str,
    open_here: Callable[[], Session],
    server_s: float | None,
    pause: Callable[[float], object] = time.sleep,
    *,
    resend: bool = False,
) -> Session | RemoteManager:
    """With the server of the space, or else by ``open_here``. Raises what ``connect`` does."""
    lost: ConnectionLost | None = None
    if not is_attached(directory) and _is_led(directory, server_s):
        limit_s = math.inf if server_s is None else server_s
        otherwise = f"; a connect opens the directory itself after {limit_s:g} s without one" if server_s else ""
        try:
            return _kind_of(resend)(Finder(directory, limit_s, otherwise).dial, connect_s=limit_s, pause=pause)
        except SpaceInUse:  # no server has it: who does, if anybody, is found by opening it
            if is_served_only(directory):
                raise
        except ConnectionLost as error:
            if isinstance(error, GivenUp) or is_served_only(directory):
                raise
            lost = error
    try:
        opened = open_here()
    except SpaceInUse:
        if lost is not None and served_at(directory):
            raise lost from None  # by a server that hangs
        if lost is not None or not _is_led(directory, server_s):
            raise
        return session(directory, open_here, server_s, pause, resend=resend)  # it has just come
    _led.discard(os.path.realpath(directory))
    return opened


def _kind_of(resend: bool) -> type[RemoteManager]:
    """Of session with a server."""
    from xaqueue.rpc.client import manager
    from xaqueue.rpc.client import resend as resending

    return resending.ResendingManager if resend else manager.RemoteManager


def owner_of(path: str | os.PathLike[str]) -> Owner | None:
    """Who has it now."""
    owner = read_owner(path)
    return owner if owner is not None and is_owned(path) else None


def _is_led(directory: str, server_s: float | None) -> bool:
    """Whether a server is looked for."""
    owner = owner_of(directory)
    if is_served_only(directory):
        return True
    if owner is None:
        return server_s != 0 and is_awaited(directory)
    return owner.endpoint != "" or (owner.state == RECOVERING and not _is_own(owner))


def _is_own(owner: Owner) -> bool:
    return (owner.pid, owner.host) == (os.getpid(), socket.gethostname())


def is_served_only(path: str | os.PathLike[str]) -> bool:
    """Whether queues.toml says that nobody but ``serve`` opens it."""
    try:
        return usable_definitions(Path(path))[0].served_only
    except InvalidArgument:
        return False  # whoever opens it says what is wrong


class Finder:
    """Leads one session to the server that has a directory, at each connect anew."""

    def __init__(self, directory: str, limit_s: float, otherwise: str = "") -> None:
        """limit_s: how long one that hangs may take to answer, within bounds. otherwise: what is done without one."""
        self._directory, self._limit_s, self._otherwise = directory, limit_s, otherwise
        self._has_found = self._has_reported = False
        self._since: float | None = None
        """It is waited for."""

    def dial(self) -> ClientSocket:
        """Raises ConnectionLost where it is worth another try; SpaceInUse where no server is to be waited for."""
        from xaqueue.rpc.client.manager import DIAL_S, HELLO_S, dial

        try:
            owner = self._server()
            made = dial(parse(owner.endpoint), hello_s=min(DIAL_S, max(HELLO_S, self._limit_s)))
        except ConnectionLost as lost:
            self._tell(lost)
            raise
        if owner.awaited:
            _led.add(os.path.realpath(self._directory))
        self._has_found, self._has_reported, self._since = True, False, None
        return made

    def _server(self) -> Owner:
        owner, where = owner_of(self._directory), self._directory
        if owner is None:
            otherwise = SERVED_ONLY if is_served_only(where) else self._otherwise
            lost = f"no server has {where} now: start it again, `xaqueue serve --space {where}`{otherwise}"
            if not self._has_found and not is_awaited(where):
                raise SpaceInUse(lost)
            raise ConnectionLost(lost)
        if owner.endpoint:
            return owner
        found = in_use(Path(where), owner)
        if _is_own(owner) or (owner.state != RECOVERING and not is_awaited(where)):
            raise found
        raise ConnectionLost(str(found)) from found

    def _tell(self, lost: ConnectionLost) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since > SAY_S and not self._has_reported:
            self._has_reported = True
            log.warning("[server-awaited] the server is waited for, and the directory left alone: %s", lost)


def _check_served(manager: RemoteManager, directory: str, name: str | None, sync: str | None) -> None:
    """Raises SpaceError and InvalidArgument where it is not what is asked for."""
    found = read_format(directory).name
    if name not in (None, found):
        raise SpaceError(f"{directory} is queue space {found!r}, not {name!r}")
    wanted, has = None if sync is None else str(Hardening.parse(sync)), manager.space["sync"]
    if wanted not in (None, has):
        raise InvalidArgument(f"the space is served with {has}, not {sync}")
