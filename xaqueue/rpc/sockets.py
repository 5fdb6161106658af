"""Sockets to listen on, and who is at the other end of one.

A Unix socket is made with its mode before anybody can connect. One that a killed server left is replaced, one that
somebody answers on is not; between servers that start at once the directory's lock decides. Only these socket files
are ever made or removed here, and never a file of another kind.
"""

from __future__ import annotations

import errno
import os
import pwd
import socket
import stat
import struct
import time
from contextlib import suppress
from pathlib import Path

from xaqueue.endpoint import Endpoint, Scheme
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.rpc.identity import Identity
from xaqueue.storage.lock import FileLock

BACKLOG = 256
UNIX_MODE = 0o600
LOCK_TRIES, LOCK_PAUSE_S = 100, 0.05
KEEPALIVE_S = (60, 10, 6)
"""A silent TCP peer is asked after so many seconds, then so often, and is gone after so many questions."""
_CREDENTIALS = struct.Struct("3i")


def listen_unix(path: Path, mode: int = UNIX_MODE) -> socket.socket:
    """A listening Unix socket, with this mode. Raises OperationalError, InvalidArgument."""
    Endpoint(Scheme.UNIX, path=str(path))
    lock = _lock_of(path.parent)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        _clear(path)
        made.bind(str(path))
        path.chmod(mode)  # before it listens: until then nobody can connect
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise OperationalError(f"{path} cannot be made a socket: {error.strerror}") from error
    except BaseException:
        made.close()
        raise
    finally:
        lock.release()
    return made


def remove_unix(path: Path, made: os.stat_result) -> None:
    """Removes a socket file, if it is still the one that was made."""
    with suppress(OSError):
        found = path.lstat()
        if (found.st_dev, found.st_ino) == (made.st_dev, made.st_ino):
            path.unlink()


def listen_tcp(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address that the host's name has. Raises OperationalError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise OperationalError(f"{host} is no address of this machine: {error.strerror or error}") from error
    made: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
            made.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            keep_alive(listening)  # as it is, so are those that it accepts
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
    except OSError as error:
        for listening in made:
            listening.close()
        raise OperationalError(f"{host} port {port} cannot be listened on: {error.strerror or error}") from error
    return made


def keep_alive(connected: socket.socket) -> None:
    """A TCP peer that vanished without a word is noticed, though it owes nothing."""
    idle_s, interval_s, probes = KEEPALIVE_S
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)


def unix_peer(connected: socket.socket) -> Identity:
    """Who connected, as the kernel saw it at that moment."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return unix_user(uid, os.geteuid())


def unix_user(uid: int, own_uid: int) -> Identity:
    """The identity of a user of this machine, by name and by number."""
    names = [f"user:{uid}"]
    with suppress(KeyError):
        names.insert(0, f"user:{pwd.getpwuid(uid).pw_name}")
    return Identity(tuple(names), owner=uid in (own_uid, 0))


def _lock_of(directory: Path) -> FileLock:
    """The directory's own lock, while a socket in it is looked at and replaced."""
    try:
        lock = FileLock(directory, create=False)
    except OSError as error:
        raise InvalidArgument(f"{directory} cannot hold a socket: {error.strerror}") from None
    for _ in range(LOCK_TRIES):
        if lock.acquire():
            return lock
        time.sleep(LOCK_PAUSE_S)
    lock.release()
    raise OperationalError(f"{directory} is locked by another process: try again, or choose another path to serve on")


def _clear(path: Path) -> None:
    """Removes the socket that a killed server left. Raises OperationalError where it is anything else."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OperationalError(f"{path} is no socket: choose another path to serve on")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINPROGRESS):  # those have a full backlog: somebody listens
                raise
    raise OperationalError(f"{path} is served already: stop that server, or choose another path")
