"""Drivers and executors reach a space by its path alone, whoever owns it; where nobody does, a server is started.

The owner file says where the owner serves, and is believed only while the owner's lock is held: what a crash left in
it leads nowhere. A server that is started here belongs to no job: it lives in a session of its own, so that a killed
job does not tear it, is found by others through the owner file, and ends once nobody has been connected for a while.
Each connect, also one between transactions, looks again: so a session survives a server that ended or died meanwhile.

Where such a server listens and what it says is found from the space's path. Nothing of it is a file of the space but
the socket, and that only where its path is short enough for one; all else is in a directory of this user's alone.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from xaqueue.core.model.format import read_format
from xaqueue.core.model.layout import SOCKET
from xaqueue.core.owner.open import is_owned
from xaqueue.core.owner.record import RECOVERING, Owner, read_owner
from xaqueue.core.storage.owner_file import FileLock
from xaqueue.endpoint import UNIX_PATH_LIMIT_BYTES, Scheme, parse
from xaqueue.errors import ConnectionLost, InvalidArgument, OperationalError, SpaceError, SpaceInUse
from xaqueue.rpc.client.manager import RemoteManager, remote_manager
from xaqueue.rpc.client.reach import SERVER_S, Finder, is_awaited, is_served_only, owner_of

IDLE_EXIT_S = 30.0
"""A server that was started here ends after so long without a session."""
SERVED_S = 120.0
"""For how long a server is waited for, that starts or has a space of many messages to open."""
EMBEDDED_S = 5.0
"""For how long an owner that serves nobody is waited for: a command may have the space for a moment."""
POLL_S = 0.02
LOG_BYTES = 1024 * 1024
"""A log that has grown larger is begun anew."""
LAST_LINES = 5
OTHERS_WRITE = 0o022

_started: list[subprocess.Popen[bytes]] = []
"""Servers of this process, to be asked at times whether they have ended: else they stay as zombies."""


def reach(path: str | os.PathLike[str], server: str | None = None) -> RemoteManager:
    """A session with the owner of the space, which is the server with that URL where one is given.

    It is tried for a while, now and whenever it connects again, which it does to the same space only. Raises
    SpaceError for a directory that is no space or for which no server can be started, SpaceInUse for an owner that
    serves nobody, ConnectionLost.
    """
    if server:
        found = remote_manager(server, connect_s=SERVED_S)
    else:
        root = Path(path).absolute()
        read_format(root, is_expected=True)
        found = RemoteManager(_Finder(root).dial, connect_s=SERVED_S)
    found.hold()
    return found


class _Finder(Finder):
    """Finds the owner of one space; where nobody has it, and no server is to come back, one is started."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), SERVED_S)
        self.root = root
        self.embedded: tuple[int, float] | None = None
        """Epoch of an owner that serves nobody, and when it was seen first."""
        self.gone_at: float | None = None
        """Since when a server is waited for."""
        self.failures = 0

    def _server(self) -> Owner:
        root = self.root
        owner = owner_of(root)
        if owner is None:
            if self._may_come_back():
                return super()._server()
            self._start()
            owner = owner_of(root)
        if owner is None:
            raise ConnectionLost(f"no server has {root} yet, one is being started: look into {log_of(root)}")
        if not owner.endpoint:
            if owner.state != RECOVERING:
                self._wait_for(owner)
            raise ConnectionLost(f"process {owner.pid} on {owner.host} opens {root} and is not ready yet: try again")
        self.gone_at = None
        if parse(owner.endpoint).scheme is Scheme.UNIX and owner.host != socket.gethostname():
            raise SpaceInUse(
                f"{root} is served on {owner.host} at {owner.endpoint}, which cannot be reached from here: let it "
                'listen with --tls as well, and give its URL as option "server"'
            )
        return owner

    def _may_come_back(self) -> bool:
        now = time.monotonic()
        self.gone_at = now if self.gone_at is None else self.gone_at
        return is_awaited(self.root) and (now - self.gone_at < SERVER_S or is_served_only(self.root))

    def _start(self) -> None:
        """Raises SpaceError where a server ended at once, twice: once may be a command that was quicker."""
        self.failures = 0 if start(self.root) else self.failures + 1
        if self.failures > 1:
            log = log_of(self.root)
            lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
            said = " / ".join(lines[-LAST_LINES:]) or "nothing"
            raise SpaceError(f"no server can be started for {self.root}: it said {said} (in {log})")

    def _wait_for(self, owner: Owner) -> None:
        """Raises SpaceInUse once an owner that serves nobody has had the space for a while."""
        now = time.monotonic()
        if self.embedded is None or self.embedded[0] != owner.epoch:
            self.embedded = owner.epoch, now
        if now - self.embedded[1] > EMBEDDED_S:
            raise SpaceInUse(
                f"{self.root} is open in {owner.who}, which does not serve it: close it there, or run "
                f"`xaqueue serve --space {self.root}` and let that process connect to it"
            )


def start(root: Path) -> bool:
    """Starts a server for the space, unless somebody else is at it, and waits until it serves.

    False where it has ended and nobody owns the space.
    """
    log = log_of(root)
    lock = FileLock(log)
    try:
        if not lock.acquire() or is_owned(root):
            return True
        process = _spawn(root, log)
        deadline = time.monotonic() + SERVED_S
        while process.poll() is None and time.monotonic() < deadline:
            owner = read_owner(root)
            if owner is not None and owner.pid == process.pid and owner.endpoint and is_owned(root):
                return True
            time.sleep(POLL_S)
        return process.returncode is None or is_owned(root)
    finally:
        lock.release()


def _spawn(root: Path, log: Path) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise OperationalError(f"this Python does not know its own program: run `xaqueue serve --space {root}` first")
    _started[:] = [process for process in _started if process.poll() is None]
    served = ["--space", str(root), "--unix", str(socket_of(root)), "--idle-exit", f"{IDLE_EXIT_S:g}"]
    importable = os.pathsep.join(entry for entry in sys.path if entry)  # as here, whoever arranged that
    with open_log(log) as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "xaqueue", "--verbose", "serve", *served],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            cwd="/",
            env={**os.environ, "PYTHONPATH": importable},
            start_new_session=True,
        )
    _started.append(process)
    return process


def log_of(root: Path) -> Path:
    """The server's log; its lock is held by whoever starts one. Raises OperationalError."""
    for log in _private_paths(root, "serve-{}.log"):
        return log
    raise OperationalError("no directory can be made for a server's log: set XDG_CACHE_HOME to one of yours")


def open_log(log: Path) -> BinaryIO:
    """To write behind what an earlier server said."""
    return log.open("ab" if not log.exists() or log.stat().st_size < LOG_BYTES else "wb")


def socket_of(root: Path) -> Path:
    """A path that is short enough for a socket: in the space, or else in a directory of this user's."""
    for path in chain([root / SOCKET], _private_paths(root, "{}.sock")):
        if len(os.fsencode(path)) <= UNIX_PATH_LIMIT_BYTES:
            return path
    raise InvalidArgument(f"no socket can be made for {root}: set TMPDIR to a directory with a short path")


def _private_paths(root: Path, name: str) -> Iterator[Path]:
    """For a file of this name, with the space in it, in the user's cache, or else among temporary files; the directory
    is made. None where others could replace what is in it.
    """
    directories = [Path(tempfile.gettempdir()) / f"xaqueue-{os.getuid()}"]
    with suppress(RuntimeError):  # the user has no home
        directories.insert(0, cache_directory(os.environ))
    for directory in directories:
        with suppress(OSError):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = directory.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & OTHERS_WRITE:
                yield directory / name.format(sha256(os.fsencode(root.resolve())).hexdigest()[:12])


def cache_directory(environ: Mapping[str, str]) -> Path:
    """``$XDG_CACHE_HOME/xaqueue`` or ``~/.cache/xaqueue``; a relative XDG_CACHE_HOME counts as not set, as XDG says."""
    given = environ.get("XDG_CACHE_HOME", "")
    home = environ.get("HOME")
    base = Path(given) if Path(given).is_absolute() else (Path(home) if home else Path.home()) / ".cache"
    return base / "xaqueue"
