"""A participant is a way to open PEP 249 connections; those that are idle and usable are kept for the next transaction.

In a transaction it has a branch, on a connection of its own (``EnlistedBranch``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from xaqueue.carried import CarriedChange
from xaqueue.errors import ConnectionLost, Error, InvalidArgument, ProtocolError, ResourceFailed, RolledBack
from xaqueue.tm import awaiting, driver, last_resource
from xaqueue.tm.awaiting import Loop
from xaqueue.tm.driver import Dialect
from xaqueue.tm.gtrid import checked_name
from xaqueue.tm.last_resource import DecisionRow
from xaqueue.tm.voting import Reply
from xaqueue.xa import Outcome

KEPT_S = 60.0
"""A connection that was idle for longer is not used again: firewalls forget it, and say so to nobody."""
READ_S = 10.0
"""A database that was lost in the commit that decides is asked for so long what it has."""
INTERRUPTIONS = 16
"""Interruptions of one participant that are on their way at a time, at most: each has a thread, and may hang."""

Connect = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Participant:
    """How one participant is opened.

    connect: opens a connection, not in autocommit. sort_key: participants are begun on and prepared in the order of
    their keys; without one, the connection's ``sortKey()`` or the participant's name. parallel: whether another thread
    may prepare and commit on its connections while their own one waits; without it, its driver's ``threadsafety`` says.
    idle: how many connections are kept open between transactions, as the last one left them.
    """

    connect: Connect
    sort_key: str | None = None
    parallel: bool | None = None
    idle: int = 4


class _OwnConnection:
    """One that only the thread may use, or close, that it is of. It ends with this object, and this with its thread."""

    def __init__(self, connection: Any) -> None:
        self._since = time.monotonic()
        self._connection = connection

    def taken(self) -> tuple[float, Any]:
        connection, self._connection = self._connection, None
        return self._since, connection

    def __del__(self) -> None:
        if self._connection is not None:
            driver.close(self._connection)


class ConnectionSource:
    """Connections of one participant. Safe for threads."""

    def __init__(
        self,
        name: str,
        participant: Participant,
        *,
        may_decide: bool = True,
        may_carry: bool = True,
        loop: Loop | None = None,
    ) -> None:
        """may_decide: its own commit may decide for all. may_carry: and take the changes of a queue with it.
        loop: that of its async connections."""
        self.name = checked_name(name)
        self.participant = participant
        self.may_decide = may_decide
        self.may_carry = may_decide and may_carry
        self.loop = loop or Loop()
        self._mutex = threading.Lock()
        self._idle: list[tuple[float, Any]] = []
        """Each with the time since when it is kept, by the monotonic clock; the longest kept first."""
        self._own = threading.local()
        """Of each thread, as ``kept``, the one of sqlite3's that it keeps."""
        self.interruptions = threading.BoundedSemaphore(INTERRUPTIONS)
        self._closed = False

    def open(self) -> Any:
        """A connection that nobody used before. Raises what the driver raises."""
        connection = self.loop.connected(self.participant.connect)
        if driver.commits_itself(connection):
            driver.close(connection)
            raise InvalidArgument(
                f"participant {self.name!r} is in autocommit mode, so that its work would not wait for the "
                "transaction's end: open it with autocommit off"
            )
        if not (driver.has_two_phases(connection) or (self.may_decide and driver.takes_sql(connection))):
            driver.close(connection)
            raise InvalidArgument(
                f"participant {self.name!r} has no two-phase commit ({awaiting.kind_of(connection).__module__} has no "
                "tpc_begin): only a last_resource needs none, a database of which a transaction may have one"
            )
        return connection

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """A connection for one question, which is closed behind it."""
        connection = self.open()
        try:
            yield connection
        finally:
            driver.close(connection)

    def take_idle(self) -> Any | None:
        """One that was kept and looks usable; None without one."""
        while True:
            own: _OwnConnection | None = self._own.__dict__.pop("kept", None)
            with self._mutex:
                if own is not None:
                    since, connection = own.taken()
                elif self._idle:
                    since, connection = self._idle.pop()
                else:
                    return None
            is_fresh = time.monotonic() - since < KEPT_S
            if is_fresh and driver.is_at_rest(connection) and not driver.is_left(connection):
                return connection if awaiting.is_of_tasks(connection) else self.loop.adapted(connection, is_async=False)
            driver.close(connection)

    def give_back(self, connection: Any) -> None:
        """Keeps it for the next, where it is outside of any transaction; the one that was kept longest goes for it.

        A thread keeps its own one of sqlite3's, unless it has a SELECT that was not read to its end and keeps its
        snapshot in it. A new one each time would cost another sync: SQLite syncs the directory of a file it has opened.
        """
        connection = awaiting.plain(connection)
        is_of_its_thread = not (driver.has_two_phases(connection) or driver.is_shared(connection))
        if (is_of_its_thread and not driver.has_read_all(connection)) or not driver.is_at_rest(connection):
            driver.close(connection)
            return
        if is_of_its_thread:
            if self.participant.idle and not self._closed:
                self._own.kept = _OwnConnection(connection)
            else:
                driver.close(connection)
            return
        with self._mutex:
            kept = [*self._idle, (time.monotonic(), connection)]
            too_many = max(0, len(kept) - (0 if self._closed else self.participant.idle))
            gone, self._idle = kept[:too_many], kept[too_many:]
        for _, dropped in gone:
            driver.close(dropped)

    def drop_idle(self) -> None:
        """One connection was lost: its siblings most likely are, too."""
        with self._mutex:
            dropped, self._idle = self._idle, []
        for _, connection in dropped:
            driver.close(connection)
        self._own.__dict__.pop("kept", None)

    def close(self) -> None:
        """Those of other threads end with these."""
        self._closed = True
        self.drop_idle()

    def sort_key(self, connection: Any) -> str:
        if self.participant.sort_key is not None:
            return self.participant.sort_key
        own = getattr(connection, "sortKey", None)
        return str(own()) if callable(own) else self.name

    def is_parallel(self, connection: Any) -> bool:
        """Whether another thread may work on it while this one waits; never on one without two phases."""
        given = self.participant.parallel
        return driver.has_two_phases(connection) and (driver.is_shared(connection) if given is None else given)


def sources(
    participants: Mapping[str, Connect | Participant],
    last: str | None,
    *,
    two_phase: bool = False,
    carry: bool = True,
    loop: Loop | None = None,
) -> dict[str, ConnectionSource]:
    """last: the only one whose commit may decide, where one is named; two_phase: none; carry: whether it may
    take the changes of a queue with it. loop: that of async connections. Raises InvalidArgument."""
    if last is not None and last not in participants:
        raise InvalidArgument(f"last_resource {last!r} is none of the participants {sorted(participants)}")
    if last is not None and two_phase:
        raise InvalidArgument("last_resource and two_phase=True exclude one another: give one of them")
    if len(last_resource.names_of(participants)) > last_resource.NAMES_LENGTH:
        raise InvalidArgument("the names of the participants are too long for a row of all of them: give shorter ones")
    made = {}
    for name, given in participants.items():
        participant = given if isinstance(given, Participant) else Participant(given)
        if not callable(participant.connect):
            raise InvalidArgument(f"participant {name!r} is {given!r}: give a function that opens a connection")
        made[name] = ConnectionSource(
            name, participant, may_decide=not two_phase and last in (None, name), may_carry=carry, loop=loop
        )
    return made


def enlist(source: ConnectionSource, gtrid: bytes) -> EnlistedBranch:
    """Opens a connection and begins the branch on it. Raises what the driver raises."""
    kept = source.take_idle()
    if kept is not None:
        try:
            awaiting.check_usable(kept, source.name)
            return _enlist_on(kept, source, gtrid)
        except Exception:  # it was lost while it was idle, and nothing was done on it yet
            driver.close(kept)
            source.drop_idle()
        except BaseException:
            driver.close(kept)
            raise
    connection = source.open()
    try:
        awaiting.check_usable(connection, source.name)
        return _enlist_on(connection, source, gtrid)
    except BaseException:
        driver.close(connection)
        raise


def _enlist_on(connection: Any, source: ConnectionSource, gtrid: bytes) -> EnlistedBranch:
    kind = EnlistedBranch if driver.has_two_phases(connection) else PlainBranch
    return kind(source, connection, gtrid)


class EnlistedBranch:
    """One participant's part in one live transaction: each verb is tried once, and its failure becomes a reply.

    What a reply leaves open is for recovery, on a connection of its own. A connection on which anything went wrong is
    closed and never used again: psycopg's believes itself prepared after a failed prepare, and a lost one is lost.
    """

    has_two_phases = True

    def __init__(self, source: ConnectionSource, connection: Any, gtrid: bytes) -> None:
        self.source = source
        self.name = source.name
        self.connection = connection
        self.gtrid = gtrid
        self.error: Exception | None = None
        """The first thing that went wrong."""
        self.failed_at = 0.0
        """When that was."""
        self.sort_key = source.sort_key(connection)
        self.is_parallel = source.is_parallel(connection)
        self.may_decide = source.may_decide and driver.takes_sql(connection)
        """Whether its own commit may decide for all."""
        self._tells = driver.can_tell(connection)
        self._is_usable = True
        self._interrupted = False
        self._is_interrupting = False
        """Whether a thread is at it now."""
        self._asked = False
        """Whether it may be prepared."""
        self.is_late = False
        self.can_carry = (
            self.may_decide and source.may_carry and driver.dialect_of(connection) in last_resource.CARRYING
        )
        """Whether it may take the work of a queue with its own."""
        self.can_be_carried = driver.can_be_carried(connection)
        self.carrier = ""
        """The database that is to carry its work, instead of a prepare."""
        self.carried: CarriedChange | None = None
        """What it carries."""
        self.commits_alone = False
        """Whether it may be committed without a decision of anybody else."""
        self._begin()

    def _begin(self) -> None:
        self.connection.tpc_begin(driver.xid_on(self.connection, self.gtrid, self.name))

    def prepare(self) -> Reply:
        self._asked = True
        try:
            self._refuse_failed()
            if self.carrier:
                self.carried = self.connection.tpc_carry(self.carrier)
            prepared = self.carried is not None or self.connection.tpc_prepare()
        except Exception as error:
            self._failed(error)
            return Reply.REFUSED if isinstance(error, RolledBack) and not self._in_failed() else Reply.LOST
        if prepared is not False:
            return Reply.PREPARED
        try:
            self.connection.tpc_commit()  # nothing is left of the branch: this ends the transaction of the session
        except Exception as error:
            self._failed(error)
            self.error = None
        return Reply.READ_ONLY

    def commit(self) -> Reply:
        if not self.is_late:
            return self._second_phase(self.connection.tpc_commit)
        return self._second_phase(partial(self.connection.tpc_commit, late=True))

    def be_late(self) -> None:
        """Its commit is decided in a database that is asked again after a crash: it need not wait for the disk."""
        self.is_late = driver.can_be_late(self.connection)

    def rollback(self) -> Reply:
        if self._interrupted:
            self.discard()
            return Reply.DONE
        answer = self._second_phase(self.connection.tpc_rollback)
        if answer is Reply.PENDING and not self._asked:
            self.discard()  # with its session goes what was never prepared
            return Reply.DONE
        return answer

    def commit_one_phase(self) -> Reply:
        try:
            self._refuse_failed()
        except RolledBack as error:
            self.refuse(error)
            return Reply.REFUSED
        return self._commit_deciding()

    def _commit_deciding(self) -> Reply:
        self.commits_alone = True
        try:
            self._commit_at_once()
        except Exception as error:
            self._failed(error)
            heuristic = driver.heuristic_answer(error)
            if heuristic is not None:
                return heuristic
            if driver.is_lost(self.connection, error):
                return Reply.LOST
            self.discard()
            return Reply.REFUSED
        return Reply.DONE

    def commit_last(
        self, prepared: Sequence[str], check: Callable[[], None], change: CarriedChange | None = None
    ) -> Reply:
        """Commits it together with the row that decides for those that prepared. LOST: nobody knows, not even the
        database just now.

        check: raises where the log is not ours any more. Asked with the row in place, which keeps out a successor's.
        change: it carries this for who has prepared.
        """
        try:
            self._refuse_failed()
            self._refuse_ended()
            row = DecisionRow(self.gtrid, Outcome.COMMITTED, tuple(prepared))
            if change is None:
                last_resource.insert_row(self.connection, row)
            else:
                last_resource.insert_carried(self.connection, row._replace(carried=change.encode()), change.life)
            check()
        except Exception as error:
            self.refuse(error)
            return Reply.REFUSED
        answer = self._commit_deciding()
        return self._read_decision() if answer is Reply.LOST else answer

    def refuse(self, error: Exception) -> None:
        """It is not going to be committed, and this is why."""
        self._failed(error)
        self.discard()

    def _read_decision(self) -> Reply:
        """The commit got no answer: on a fresh connection its row can be read, or made impossible.

        A database that was killed is back in a moment, most often.
        """
        self.discard()
        pause_s, until = 0.02, time.monotonic() + READ_S
        while True:
            try:
                with self.source.opened() as connection:
                    outcome = last_resource.resolve_row(connection, self.gtrid).outcome
            except Exception as error:
                self._failed(error)
                if time.monotonic() + pause_s > until:
                    return Reply.LOST
            else:
                return Reply.DONE if outcome is Outcome.COMMITTED else Reply.REFUSED
            self.source.loop.pause(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    def ask(self) -> Reply:
        """What became of a branch that is not known on this connection, or of a commit that got no answer."""
        if not self._tells:
            return Reply.UNKNOWN
        try:
            if self._is_usable or driver.is_unknown_xid(self.error or Error()):
                return driver.ask(self.connection, driver.xid_on(self.connection, self.gtrid, self.name))
            self.discard()
            with self.source.opened() as connection:
                return driver.ask(connection, driver.xid_on(connection, self.gtrid, self.name))
        except Exception as error:
            self._failed(error)
            return Reply.UNKNOWN

    def interrupt(self) -> None:
        """Interrupts what its thread is waiting for, where the driver can; in another thread, since that may hang, too.

        From here on the branch can only be rolled back, and that by the end of its session: an interruption that
        arrives late is meant neither for the rollback nor for the next transaction.
        """
        interruption = driver.interruption_of(self.connection)
        if interruption is None or self._is_interrupting or not self.source.interruptions.acquire(blocking=False):
            return
        self._interrupted, self._is_usable, self._is_interrupting = True, False, True
        name = f"xaqueue-interrupt-{self.name}"
        try:
            threading.Thread(target=self._interrupt, args=(interruption,), name=name, daemon=True).start()
        except RuntimeError:  # no thread can be had now: at the next look, perhaps
            self._end_interruption()

    def _interrupt(self, interruption: Callable[[], object]) -> None:
        try:
            with suppress(Exception):  # its statement was over already
                interruption()
        finally:
            self._end_interruption()

    def _end_interruption(self) -> None:
        self._is_interrupting = False
        self.source.interruptions.release()

    def release(self) -> None:
        """The transaction is over for this connection."""
        if self._is_usable and self.connection is not None:
            self.source.give_back(self.connection)
            self.connection = None
        self.discard()

    def discard(self) -> None:
        connection, self.connection = self.connection, None
        self._is_usable = False
        if connection is not None:
            driver.close(connection)

    def _commit_at_once(self) -> None:
        self.connection.tpc_commit()

    def _second_phase(self, verb: Any) -> Reply:
        try:
            verb()
        except Exception as error:
            self._failed(error)
            if driver.is_unknown_xid(error):
                return Reply.UNKNOWN
            return driver.heuristic_answer(error) or Reply.PENDING
        return Reply.DONE

    def _failed(self, error: Exception) -> None:
        if self.error is None:
            self.error, self.failed_at = error, time.monotonic()
        self._is_usable = False
        if isinstance(error, (ConnectionLost, ResourceFailed)) or getattr(self.connection, "closed", False):
            self.source.drop_idle()

    def _refuse_failed(self) -> None:
        if self._in_failed():
            raise RolledBack(
                f"a statement of participant {self.name!r} failed before, and its transaction with it: roll back, "
                "or use a savepoint around what may fail"
            )

    def _refuse_ended(self) -> None:
        if driver.has_ended(self.connection):
            raise ProtocolError(
                f"the transaction of participant {self.name!r} was ended by a COMMIT or ROLLBACK of its own: what it "
                "has committed so stays. Leave that to the transaction"
            )

    def _in_failed(self) -> bool:
        return self.connection is not None and driver.has_failed(self.connection)


class PlainBranch(EnlistedBranch):
    """Without two phases: a plain local transaction, whose commit decides where others have prepared."""

    has_two_phases = False

    def _begin(self) -> None:
        """A local transaction begins by itself, and nobody is asked for its outcome: its row tells."""
        self._tells = False
        if driver.dialect_of(self.connection) is Dialect.SQLITE:
            driver.sync_fully(self.connection)
            driver.has_read_all(self.connection)

    def rollback(self) -> Reply:
        try:
            if not self._interrupted:
                self.connection.rollback()
        except Exception as error:
            self._failed(error)
            self.source.drop_idle()
        if not self._is_usable:
            self.discard()
        return Reply.DONE

    def _commit_at_once(self) -> None:
        self.connection.commit()
