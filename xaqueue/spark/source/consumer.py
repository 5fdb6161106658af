"""What a stream consumes is reserved for it while it is read, and removed once Spark will not ask for it again.

Both go to the owner of the space, the only one who changes its files. Both are idempotent, so whatever a crash left
undone is done by the next call: a range is reserved by the offsets that Spark has written down already, and consumed
through a number, whichever call says it. Spaces are asked beside each other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from xaqueue.core.model.format import read_format, why_behind
from xaqueue.endpoint import is_url
from xaqueue.errors import InvalidArgument, OperationalError, SpaceError
from xaqueue.spark.checkpoint import harden_done
from xaqueue.spark.source.options import ARCHIVE, SourceOptions
from xaqueue.spark.source.plan import Numbers
from xaqueue.spark.source.snapshot import call_with_deadline

if TYPE_CHECKING:
    from xaqueue.rpc.client.manager import RemoteManager

OWNER_S = 150.0
"""For how long an owner is waited for, who may have a large space to open first."""
POLL_S = 0.05
NAMED = 5
"""Spaces that an error names."""

_log = logging.getLogger("xaqueue.spark")


def reach_owner(path: str, server: str | None) -> RemoteManager:
    """A session with the owner of the space, who is started where there is none."""
    from xaqueue.rpc.client import server_launcher  # executors, who consume nothing, do without RPC

    return server_launcher.reach(path, server)


class Consumer:
    """Reserves and consumes for one stream. Its state is a cache of what was done already."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._stuck: dict[str, Future[Any]] = {}
        self._sessions: dict[str, RemoteManager] = {}
        self._reserved: set[tuple[str, str]] = set()
        self._consumed: dict[tuple[str, str], int] = {}
        self._hardened: Numbers = {}
        self._logged: frozenset[str] = frozenset()
        self._timeout_s = options.space_timeout_s if options.skips_missing else OWNER_S

    def connect(self, paths: Iterable[str]) -> dict[str, str]:
        """Sessions with these spaces; why others have none, so that nothing is planned there."""
        new = [path for path in paths if path not in self._sessions]
        _, failures = call_with_deadline(self._session, new, self._timeout_s, self._stuck)
        return {path: f"{path}: its owner cannot be reached: {failure}" for path, failure in failures.items()}

    def opened(self, path: str) -> None:
        """After its machine went down nobody may have opened the space yet: returns once it is, or it takes too long.

        Raises SpaceError where its owner cannot be reached.
        """
        try:
            self._session(path)
        except OperationalError as failure:
            raise SpaceError(f"{path}: its owner cannot be reached: {failure}") from failure
        deadline = time.monotonic() + OWNER_S
        while why_behind(path) and time.monotonic() < deadline:  # its owner is at it
            time.sleep(POLL_S)

    def reserve(self, stream: str, wanted: Mapping[str, Mapping[str, tuple[int, int]]]) -> None:
        """Keeps (after, upto] of these queues. Raises QueueReserved, and what keeps it from being done in any space."""

        def keep(path: str) -> None:
            session = self._session(path)
            for queue, (after, upto) in wanted[path].items():
                latest = session.reserve(queue, stream, after, upto).latest
                if latest < upto:
                    raise InvalidArgument(
                        f"the server of {path} knows queue {queue!r} to {latest} only, and {upto} was published there: "
                        'it serves a copy of the space. Mend option "server"'
                    )
                self._reserved.add((path, queue))

        _, failures = call_with_deadline(keep, wanted, OWNER_S, self._stuck)
        _raise(failures, "reserved")

    def consume(self, stream: str, through: Numbers) -> None:
        """All up to these numbers is done with. A missing space is logged, and done with a later call."""
        archive = self._options.consume == ARCHIVE
        wanted = {
            path: left
            for path, queues in through.items()
            if (left := {queue: seq for queue, seq in queues.items() if seq > self._consumed.get((path, queue), 0)})
        }

        def take(path: str) -> None:
            session = self._session(path)
            for queue, seq in wanted[path].items():
                if (path, queue) not in self._reserved:  # after a restart, before it reads of it again
                    session.reserve(queue, stream, seq, seq)
                    self._reserved.add((path, queue))
                session.consume(queue, stream, seq, archive)
                self._consumed[path, queue] = seq

        if wanted and self._options.checkpoint and through != self._hardened:
            # before anything is removed: what Spark has forgotten that it is done it would want once more
            harden_done(self._options.checkpoint, stream)
            self._hardened = through
        _, failures = call_with_deadline(take, wanted, self._timeout_s, self._stuck)
        if self._options.skips_missing:
            if failures and self._logged != frozenset(failures):
                _log.warning("[consumed-later] until they can be reached: %s", "; ".join(map(str, failures.values())))
            self._logged, failures = frozenset(failures), {}
        _raise(failures, "consumed")

    def _session(self, path: str) -> RemoteManager:
        """Raises InvalidArgument for a server of another space: it would remove that one's messages."""
        if path not in self._sessions:
            server = self._options.server_of(path)
            session = reach_owner(path, server)
            if server and not is_url(path) and session.space["space"] != read_format(path, is_expected=True).id:
                session.close()
                raise InvalidArgument(f'the server {server} serves another space than {path}: mend option "server"')
            self._sessions[path] = session
        return self._sessions[path]


def _raise(failures: Mapping[str, BaseException], done: str) -> None:
    if failures:
        reasons = "; ".join(f"{path}: {failure}" for path, failure in list(failures.items())[:NAMED])
        raise SpaceError(
            f"what the stream reads cannot be {done}: {reasons}; see to the space's server, give option "
            '"server" its URL, or read with consume=keep, which needs none'
        )
