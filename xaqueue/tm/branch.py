"""One participant's part in a live transaction: its branch, on a connection that is its own until the end."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from xaqueue.carried import CarriedChange, Life
from xaqueue.errors import ConnectionLost, Error, ProtocolError, ResourceFailed, RolledBack
from xaqueue.tm import awaiting, driver, guard
from xaqueue.tm.driver import Abilities, Dialect
from xaqueue.tm.gtrid import FORMAT_ID
from xaqueue.tm.guard import Guard, MovedElsewhere, TransactionEnded
from xaqueue.tm.last_resource import DecisionRow, DecisionRows, RowGone
from xaqueue.tm.participant import ConnectionSource
from xaqueue.tm.voting import Reply
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

_TOKEN = secrets.token_hex(4)
"""In the names of savepoints: nobody else's are named so, by hand."""
READ_S = 10.0
"""A database that was lost in the commit that decides is asked for so long what it has."""


def enlist(source: ConnectionSource, gtrid: bytes) -> EnlistedBranch:
    """Opens a connection and begins the branch on it. Raises what the driver raises."""
    kept = source.take_idle()
    if kept is not None:
        connection, can, cursor = kept
        try:
            return (EnlistedBranch if can.has_two_phases else PlainBranch)(source, connection, gtrid, can, cursor)
        except Exception:  # it was lost while it was idle, and nothing was done on it yet
            driver.close(connection)
            source.drop_idle()
        except BaseException:
            driver.close(connection)
            raise
    connection = source.open()
    try:
        can = source.abilities(connection)
        cursor = connection.cursor() if can.has_dear_cursors else None
        return (EnlistedBranch if can.has_two_phases else PlainBranch)(source, connection, gtrid, can, cursor)
    except BaseException:
        driver.close(connection)
        raise


class SqlSavepoint:
    """Of a database that is asked by SQL."""

    def __init__(self, connection: Any, name: str) -> None:
        self._connection, self._name = connection, name
        driver.order(connection, f"SAVEPOINT {name}")

    def rollback(self) -> None:
        driver.run(self._connection, f"ROLLBACK TO SAVEPOINT {self._name}")  # of which psycopg wants to know

    def release(self) -> None:
        driver.order(self._connection, f"RELEASE SAVEPOINT {self._name}")


class EnlistedBranch:
    """One participant's part in one live transaction: each verb is tried once, and its failure becomes a reply.

    What a reply leaves open is for recovery, on a connection of its own. A connection on which anything went wrong is
    closed and never used again: psycopg's believes itself prepared after a failed prepare, and a lost one is lost.
    """

    has_two_phases = True
    error: Exception | None = None
    """The first thing that went wrong."""
    failed_at = 0.0
    """When that was."""
    _is_usable = True
    _interrupted = False
    _is_interrupting = False
    """Whether a thread is at it now."""
    _asked = False
    """Whether it may be prepared."""
    is_deferred = False
    """Its commit is decided in a database that is asked again after a crash: it need not wait for the disk."""
    identity = ""
    """What its participant says of itself, where others are to finish what this process leaves."""
    check_identity: Callable[[Any], object] | None = None
    """Raises MovedElsewhere where that is not so on this connection."""
    carrier = ""
    """The database that is to carry its work, instead of a prepare."""
    carried: CarriedChange | None = None
    """What it carries."""
    is_unanswered = False
    """Whether it may be in doubt yet, or again, behind the end of all this."""
    commits_alone = False
    """Whether it may be committed without a decision of anybody else."""
    _savepoints = 0
    """How many it had, by which they are named."""

    def __init__(
        self, source: ConnectionSource, connection: Any, gtrid: bytes, can: Abilities, cursor: Any = None
    ) -> None:
        """cursor: for the statements of the transaction manager, where each one would make its own too dearly."""
        self.source = source
        self.name = source.name
        self.connection = connection
        self.gtrid = gtrid
        self.can = can
        self._cursor = cursor
        if can.is_adapted:
            awaiting.check_usable(connection, self.name)
        self._begin()

    def _begin(self) -> None:
        if self.can.is_ours:
            self.connection.tpc_begin(Xid._make((FORMAT_ID, self.gtrid, self.source.bqual)))  # which are right
            return
        self.connection.tpc_begin(driver.xid_on(self.connection, self.gtrid, self.name))
        if self.can.takes_sql:
            guard.mark(self.connection, self.can.dialect)

    @property
    def sort_key(self) -> str:
        return self.source.sort_key(self.connection)

    @property
    def is_parallel(self) -> bool:
        return self.source.is_parallel(self.can)

    def lend(self) -> Any:
        """What the transaction's user works on: the connection, or what an adapter lends in its place."""
        return getattr(self.connection, "lent", self.connection)

    def savepoint(self) -> Any:
        """One of its own, with ``rollback`` and ``release``. Raises what the driver raises."""
        self.lend()
        if driver.offers(self.connection, "savepoint"):
            return self.connection.savepoint()
        if not self.can.takes_sql:
            raise ProtocolError(f"participant {self.name!r} has no savepoints: roll the whole transaction back")
        self._savepoints += 1
        return SqlSavepoint(self.connection, f"xaqueue_{_TOKEN}_{self._savepoints}")

    @property
    def refused(self) -> ProtocolError | None:
        """What its user is to be told who has tried to end its transaction, where the driver cannot say it."""
        return None

    def check_begun(self) -> None:
        """Raises ProtocolError where its transaction is known to be over, or can only be rolled back."""
        if not self.can.is_ours and self.connection is not None:
            self._check_status(driver.status_of(self.connection))

    def _check_status(self, status: int | None) -> None:
        if status == driver.IDLE:
            raise TransactionEnded(self.name)

    def prepare(self) -> Reply:
        self._asked = True
        try:
            if not self.can.is_ours:
                self._check_whole()
                if self.can.takes_sql and not guard.is_marked(self._cursor or self.connection):
                    raise TransactionEnded(self.name)  # noqa: TRY301
            if self.check_identity is not None:
                self.check_identity(self._cursor or self.connection)
            if self.carrier:
                self.carried = self.connection.tpc_carry(self.carrier)
            prepared = self.carried is not None or self.connection.tpc_prepare()
        except (TransactionEnded, MovedElsewhere) as error:
            self.refuse(error)
            return Reply.REFUSED
        except Exception as error:
            self._failed(error)
            self.is_unanswered = True
            has_failed = driver.status_of(self.connection) == driver.IN_ERROR  # PostgreSQL took it for a rollback
            return Reply.REFUSED if isinstance(error, RolledBack) and not has_failed else Reply.LOST
        if prepared is not False:
            return Reply.PREPARED
        try:
            self.connection.tpc_commit()  # nothing is left of the branch: this ends the transaction of the session
        except Exception as error:
            self._failed(error)
            self.error = None
        return Reply.READ_ONLY

    def commit(self) -> Reply:
        try:
            if self.is_deferred:
                self.connection.tpc_commit(late=True)
            else:
                self.connection.tpc_commit()
        except Exception as error:
            return self._unfinished(error)
        return Reply.DONE

    def explain(self, error: BaseException) -> None:
        """Why it is going to be rolled back, for a queue, whose message remembers it."""
        if driver.offers(self.connection, "explain_rollback") and not self._interrupted:
            with suppress(Exception):  # the rollback meets the same
                self.connection.explain_rollback(error)

    def rollback(self) -> Reply:
        if self._interrupted:
            self.discard()
            return Reply.DONE
        try:
            self.connection.tpc_rollback()
        except Exception as error:
            answer = self._unfinished(error)
            if answer is not Reply.PENDING or self._asked:
                return answer
            self.discard()  # with its session goes what was never prepared
        if self._asked and self.can.dialect is Dialect.MYSQL:
            self.is_unanswered = True  # nobody says that its rollback is synced: a crash may bring it back
        return Reply.DONE

    def commit_one_phase(self) -> Reply:
        try:
            if not self.can.is_ours:
                self._check_whole()
        except (RolledBack, ProtocolError) as error:
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
        self, row: DecisionRow, rows: DecisionRows, check: Callable[[], None], life: Life | None = None
    ) -> Reply:
        """Commits it together with the row that decides for those that prepared. LOST: nobody knows, not even the
        database just now; UNKNOWN: it does not know any more.

        rows: where it is to stand.
        check: raises where the log is not ours any more. Asked with the row in place, which keeps out a successor's.
        life: of the space whose change the row carries.
        """
        try:
            self._check_whole()
            place = self._cursor or self.connection
            dialect = self.can.dialect
            if not (
                rows.insert(place, row, dialect) if life is None else rows.insert_carried(place, row, life, dialect)
            ):
                raise TransactionEnded(self.name)  # noqa: TRY301
            check()
        except Exception as error:
            self.refuse(error)
            return Reply.REFUSED
        answer = self._commit_deciding()
        return self._read_decision(rows) if answer is Reply.LOST else answer

    def refuse(self, error: Exception) -> None:
        """It is not going to be committed, and this is why."""
        self._failed(error)
        self.discard()

    def _read_decision(self, rows: DecisionRows) -> Reply:
        """The commit got no answer: on a fresh connection its row can be read, or made impossible.

        A database that was killed is back in a moment, most often.
        """
        self.discard()
        pause_s, until = 0.02, time.monotonic() + READ_S
        while True:
            try:
                with self.source.opened() as connection:
                    outcome = rows.resolve_own(connection, self.gtrid).outcome
            except RowGone as error:
                self._failed(error)
                return Reply.UNKNOWN
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
        if not (self.has_two_phases and driver.offers(self.connection, "outcome")):  # of one without, its row tells
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
        connection = self.connection
        if self._is_usable and connection is not None:
            self.connection = None
            self.source.return_connection(connection, self.can, self._cursor)
        else:
            self.discard()

    def discard(self) -> None:
        connection, self.connection = self.connection, None
        self._is_usable = False
        if connection is not None:
            driver.close(connection)

    def _commit_at_once(self) -> None:
        self.connection.tpc_commit()

    def _unfinished(self, error: Exception) -> Reply:
        self._failed(error)
        if driver.is_unknown_xid(error):
            return Reply.UNKNOWN
        return driver.heuristic_answer(error) or Reply.PENDING

    def _failed(self, error: Exception) -> None:
        if self.error is None:
            self.error, self.failed_at = error, time.monotonic()
        self._is_usable = False
        if isinstance(error, (ConnectionLost, ResourceFailed)) or getattr(self.connection, "closed", False):
            self.source.drop_idle()

    def _check_whole(self) -> None:
        """Raises RolledBack or ProtocolError where it can only be rolled back: a database's."""
        status = driver.status_of(self.connection)
        if status == driver.IN_ERROR:
            raise RolledBack(
                f"a statement of participant {self.name!r} failed before, and its transaction with it: roll back, "
                "or use a savepoint around what may fail"
            )
        self._check_status(status)


class PlainBranch(EnlistedBranch):
    """Without two phases: a plain local transaction, whose commit decides where others have prepared."""

    has_two_phases = False

    def _begin(self) -> None:
        self._guard: Guard | None = None
        if self.can.dialect is Dialect.SQLITE:
            driver.sync_fully(self.connection)

    def lend(self) -> Any:
        """Begins its transaction, now that its database may decide. Raises what the driver raises: try again then."""
        if self._guard is None:
            made = Guard(self.connection, self.name)
            lent = super().lend()
            guard.mark(self.connection, self.can.dialect)
            self._guard = made
            return lent
        return super().lend()

    @property
    def refused(self) -> ProtocolError | None:
        return self._guard.refused if self._guard is not None else None

    def _check_status(self, status: int | None) -> None:
        if self._guard is not None:
            self._guard.check()

    def rollback(self) -> Reply:
        try:
            if not self._interrupted:
                self._lift()
                self.connection.rollback()
        except Exception as error:
            self._failed(error)
            self.source.drop_idle()
        if not self._is_usable:
            self.discard()
        return Reply.DONE

    def _commit_at_once(self) -> None:
        self._lift()
        self.connection.commit()

    def _lift(self) -> None:
        if self._guard is not None:
            self._guard.lift()
