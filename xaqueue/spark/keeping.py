"""What a stream consumes is reserved for it while it is read, and removed once Spark will not ask for it again.

Both go to the owner of the space, the only one who changes its files. Both are idempotent, so whatever a crash left
undone is done by the next call: a range is reserved by the offsets that Spark has written down already, and consumed
through a number, whichever call says it. Spaces are asked beside each other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from xaqueue.errors import InvalidArgument, OperationalError, SpaceError
from xaqueue.reservation import Reservation
from xaqueue.space.model.format import why_behind
from xaqueue.spark.asking import Asker
from xaqueue.spark.checkpoint import harden_done
from xaqueue.spark.offsets import Numbers
from xaqueue.spark.options import ARCHIVE, Options

PATIENCE_S = 150.0
"""For how long an owner is waited for, who may have a large space to open first."""
POLL_S = 0.05
TOLD = 5

_log = logging.getLogger("xaqueue.spark")


class Owner(Protocol):
    """A session with the owner of a space, as far as a stream needs one."""

    def reserve(self, queue: str, stream: str, after: int, upto: int) -> Reservation:
        """See ``xa.Streams``."""

    def consume(self, queue: str, stream: str, upto: int, archive: bool = False) -> Reservation:
        """See ``xa.Streams``."""


def reach_owner(path: str, server: str | None) -> Owner:
    """A session with the owner of the space, who is started where there is none."""
    from xaqueue.spark import owner

    session: Any = owner.reach(path, server)
    checked: Owner = session
    return checked


class Keeper:
    """Reserves and consumes for one stream. Its state is a cache of what was done already."""

    def __init__(self, options: Options, reach: Callable[[str, str | None], Owner] | None = None) -> None:
        self._options = options
        self._reach = reach or reach_owner
        self._asker = Asker()
        self._sessions: dict[str, Owner] = {}
        self._reserved: set[tuple[str, str]] = set()
        self._consumed: dict[tuple[str, str], int] = {}
        self._hardened: Numbers = {}
        self._told: frozenset[str] = frozenset()
        self._patience_s = options.space_timeout_s if options.skips_missing else PATIENCE_S

    def connect(self, paths: Iterable[str]) -> dict[str, str]:
        """Sessions with these spaces; why others have none, so that nothing is planned there."""
        new = [path for path in paths if path not in self._sessions]
        _, failures = self._asker.ask(new, self._session, self._patience_s)
        for failure in failures.values():
            if not _is_missing(failure):
                raise failure
        return {path: f"{path}: its owner cannot be reached: {failure}" for path, failure in failures.items()}

    def opened(self, path: str) -> None:
        """After its machine went down nobody may have opened the space yet: returns once it is, or it takes too long.

        Raises SpaceError where its owner cannot be reached.
        """
        try:
            self._session(path)
        except OperationalError as failure:
            raise SpaceError(f"{path}: its owner cannot be reached: {failure}") from failure
        deadline = time.monotonic() + PATIENCE_S
        while why_behind(path) and time.monotonic() < deadline:  # its owner is at it
            time.sleep(POLL_S)

    def reserve(self, stream: str, wanted: Mapping[str, Mapping[str, tuple[int, int]]]) -> None:
        """Keeps (after, upto] of these queues. Raises QueueReserved, and what keeps it from being done in any space."""

        def keep(path: str) -> None:
            session = self._session(path)
            for queue, (after, upto) in wanted[path].items():
                _check_same(path, session.reserve(queue, stream, after, upto), upto)
                self._reserved.add((path, queue))

        _, failures = self._asker.ask(wanted, keep, PATIENCE_S)
        self._raise(failures, "reserved")

    def consume(self, stream: str, through: Numbers) -> None:
        """All up to these numbers is done with. A missing space is told of, and done with a later call."""
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

        if wanted:
            self._harden_checkpoint(stream, through)
        _, failures = self._asker.ask(wanted, take, self._patience_s)
        if self._options.skips_missing:
            left_out = {path: failure for path, failure in failures.items() if _is_missing(failure)}
            failures = {path: failure for path, failure in failures.items() if path not in left_out}
            if left_out and self._told != frozenset(left_out):
                _log.warning("consumed later, once they can be reached: %s", "; ".join(map(str, left_out.values())))
            self._told = frozenset(left_out)
        self._raise(failures, "consumed")

    def _harden_checkpoint(self, stream: str, through: Numbers) -> None:
        """Before anything is removed: what Spark has forgotten that it is done it would want once more."""
        if self._options.checkpoint and through != self._hardened:
            harden_done(self._options.checkpoint, stream)
            self._hardened = through

    def _session(self, path: str) -> Owner:
        session = self._sessions.get(path)
        if session is None:
            session = self._reach(path, self._options.server_of(path))
            self._sessions[path] = session
        return session

    def _raise(self, failures: Mapping[str, BaseException], done: str) -> None:
        for failure in failures.values():
            if not _is_missing(failure):
                raise failure
        if failures:
            told = "; ".join(f"{path}: {failure}" for path, failure in list(failures.items())[:TOLD])
            raise SpaceError(
                f"what the stream reads cannot be {done}: {told}; see to the space's server, give option "
                '"server" its URL, or read with consume=keep, which needs none'
            )


def _check_same(path: str, kept: Reservation, upto: int) -> None:
    """InvalidArgument where option ``server`` leads to another space than the path."""
    if kept.latest < upto:
        raise InvalidArgument(
            f"the server of {path} knows queue {kept.queue!r} to {kept.latest} only, and {upto} was published there: "
            'it serves another space. Mend option "server"'
        )


def _is_missing(failure: BaseException) -> bool:
    return isinstance(failure, (OperationalError, OSError))
