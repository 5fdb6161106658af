"""A directory's work goes to the server that has it, by itself; without one, this process opens the space."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from xaqueue.connection import Connection
from xaqueue.endpoint import is_url, parse_open_string
from xaqueue.errors import ConnectionLost, InvalidArgument, SpaceError, SpaceInUse
from xaqueue.space.engine.session import Session
from xaqueue.space.model.format import read_format
from xaqueue.space.owner.open import is_attached
from xaqueue.space.owner.record import read_owner
from xaqueue.space.owner.restoring import attach_or_restore
from xaqueue.spans import connection
from xaqueue.storage.hardening import Hardening
from xaqueue.storage.ids import fresh_id
from xaqueue.storage.owner_file import is_owned

if TYPE_CHECKING:
    from xaqueue.rpc.client.manager import RemoteManager


in_memory: dict[str, Callable[[str | None], Connection]] = {}
"""Spaces of ``xaqueue.testing``, by what names them: each connects, and is told the flags that are wanted."""


def served_at(path: str | os.PathLike[str]) -> str:
    """The URL under which the space is served now; empty where no server owns it."""
    owner = read_owner(path)
    return owner.endpoint if owner is not None and owner.endpoint and is_owned(path) else ""


def connect(place: str, *, create: bool = False, sync: str | None = None) -> Connection:
    """To a directory or a URL; see ``xaqueue.connect``."""
    if place in in_memory:
        return in_memory[place](sync)
    if not is_url(place):
        directory, name = parse_open_string(place)
        return connection(session(directory, name, create=create, sync=sync), fresh_id)
    if create or sync is not None:
        raise InvalidArgument("create= and sync= are for a directory: whoever serves a space opens it, and says how")
    from xaqueue.rpc.client.manager import remote_manager  # who opens a directory needs no sockets

    return connection(remote_manager(place), fresh_id)


def session(directory: str, name: str | None, *, create: bool, sync: str | None) -> Session | RemoteManager:
    """name: must be the space's, where given. Raises what ``xaqueue.connect`` does."""
    url = "" if is_attached(directory) else served_at(directory)
    try:
        if not url:
            return attach_or_restore(directory, create_missing=create, sync=sync, name=name)
    except SpaceInUse:
        url = served_at(directory)  # by a server that has just come, perhaps
        if not url:
            raise
    try:
        return _served(directory, url, name, sync)
    except ConnectionLost:
        if served_at(directory):
            raise
    return attach_or_restore(directory, create_missing=create, sync=sync, name=name)  # the server has just gone


def _served(directory: str, url: str, name: str | None, sync: str | None) -> RemoteManager:
    from xaqueue.rpc.client.manager import remote_manager

    found = read_format(directory).name
    if name not in (None, found):
        raise SpaceError(f"{directory} is queue space {found!r}, not {name!r}")
    wanted = None if sync is None else str(Hardening.parse(sync))
    manager = remote_manager(url)
    if wanted not in (None, manager.space["sync"]):
        has = manager.space["sync"]
        manager.close()
        raise InvalidArgument(f"the space is served with {has} at {url}, not {sync}")
    return manager
