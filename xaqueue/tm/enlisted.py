"""One participant's part in one live transaction: each verb is tried once, and its failure becomes an answer.

What an answer leaves open is for recovery, on a connection of its own. A connection on which anything went wrong is
closed and never used again: psycopg's believes itself prepared after a failed prepare, and a lost one is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from xaqueue.errors import ConnectionLost, Error, ResourceFailed, RolledBack
from xaqueue.tm import marker
from xaqueue.tm.participants import (
    Source,
    ask,
    can_tell,
    close,
    has_failed,
    heuristic_answer,
    interruption_of,
    is_a,
    is_unknown_xid,
    xid_on,
)
from xaqueue.tm.voting import Answer
from xaqueue.xa import Outcome

UNCERTAIN = ("08", "40003")
"""SQLSTATEs, or their classes, of what may have been carried out: a connection broke, perhaps one behind a pooler."""


def enlist(source: Source, gtrid: bytes) -> Enlisted:
    """Opens a connection and begins the branch on it. Raises what the driver raises."""
    kept = source.take_idle()
    if kept is not None:
        try:
            return Enlisted(source, kept, gtrid)
        except Exception:  # it was lost while it was idle, and nothing was done on it yet
            close(kept)
            source.drop_idle()
    connection = source.open()
    try:
        return Enlisted(source, connection, gtrid)
    except BaseException:
        close(connection)
        raise


class Enlisted:
    """With two phases. ``error``: the first thing that went wrong."""

    def __init__(self, source: Source, connection: Any, gtrid: bytes) -> None:
        self.source = source
        self.name = source.name
        self.connection = connection
        self.gtrid = gtrid
        self.error: Exception | None = None
        self.failed_at = 0.0
        """When that was."""
        self.sort_key = source.sort_key(connection)
        self.is_parallel = source.is_parallel(connection)
        self._tells = can_tell(connection)
        self._sound = True
        self._interrupted = False
        self._asked = False
        """Whether it may be prepared."""
        self.commits_alone = False
        """Whether it may be committed without a decision of anybody else."""
        self._begin()

    def _begin(self) -> None:
        xid = xid_on(self.connection, self.gtrid, self.name)
        self.connection.tpc_begin(xid)

    def prepare(self) -> Answer:
        self._asked = True
        try:
            self._refuse_failed()
            prepared = self.connection.tpc_prepare()
        except Exception as error:
            self._failed(error)
            return Answer.REFUSED if isinstance(error, RolledBack) and not self._in_failed() else Answer.LOST
        if prepared is False:
            self._leave_read_only()
            return Answer.READ_ONLY
        return Answer.PREPARED

    def commit(self) -> Answer:
        return self._second_phase(self.connection.tpc_commit)

    def rollback(self) -> Answer:
        if self._interrupted:
            self.discard()
            return Answer.DONE
        answer = self._second_phase(self.connection.tpc_rollback)
        if answer is Answer.PENDING and not self._asked:
            self.discard()  # with its session goes what was never prepared
            return Answer.DONE
        return answer

    def commit_one_phase(self) -> Answer:
        self.commits_alone = True
        try:
            self._refuse_failed()
            self._commit_at_once()
        except Exception as error:
            self._failed(error)
            heuristic = heuristic_answer(error)
            if heuristic is not None:
                return heuristic
            if self._is_lost(error):
                return Answer.LOST
            self.discard()
            return Answer.REFUSED
        return Answer.DONE

    def ask(self) -> Answer:
        """What became of a branch that is not known on this connection, or of a commit that got no answer."""
        if not self._tells:
            return Answer.UNKNOWN
        try:
            if self._sound or is_unknown_xid(self.error or Error()):
                return ask(self.connection, xid_on(self.connection, self.gtrid, self.name))
            self.discard()
            connection = self.source.open()
            try:
                return ask(connection, xid_on(connection, self.gtrid, self.name))
            finally:
                close(connection)
        except Exception as error:
            self._failed(error)
            return Answer.UNKNOWN

    def interrupt(self) -> None:
        """Interrupts what its thread is waiting for, where the driver can; in another thread, since that may hang, too.

        From here on the branch can only be rolled back, and that by the end of its session: an interruption that
        arrives late is meant neither for the rollback nor for the next transaction.
        """
        interruption = interruption_of(self.connection)
        if interruption is None or not self.source.may_interrupt(self):
            return
        self._interrupted, self._sound = True, False
        name = f"xaqueue-interrupt-{self.name}"
        try:
            threading.Thread(target=self._interrupt, args=(interruption,), name=name, daemon=True).start()
        except RuntimeError:  # no thread can be had now: at the next look, perhaps
            self.source.interrupted(self)

    def _interrupt(self, interruption: Callable[[], object]) -> None:
        try:
            with suppress(Exception):  # its statement was over already
                interruption()
        finally:
            self.source.interrupted(self)

    def release(self) -> None:
        """The transaction is over for this connection."""
        if self._sound and self.connection is not None:
            self.source.give_back(self.connection)
            self.connection = None
        self.discard()

    def discard(self) -> None:
        connection, self.connection = self.connection, None
        self._sound = False
        if connection is not None:
            close(connection)

    def _commit_at_once(self) -> None:
        self.connection.tpc_commit()

    def _leave_read_only(self) -> None:
        try:
            self.connection.tpc_commit()  # nothing is left of the branch: this ends the transaction of the session
        except Exception as error:
            self._failed(error)
            self.error = None

    def _second_phase(self, verb: Any) -> Answer:
        try:
            verb()
        except Exception as error:
            self._failed(error)
            if is_unknown_xid(error):
                return Answer.UNKNOWN
            return heuristic_answer(error) or Answer.PENDING
        return Answer.DONE

    def _failed(self, error: Exception) -> None:
        if self.error is None:
            self.error, self.failed_at = error, time.monotonic()
        self._sound = False
        if isinstance(error, (ConnectionLost, ResourceFailed)) or getattr(self.connection, "closed", False):
            self.source.drop_idle()

    def _refuse_failed(self) -> None:
        if self._in_failed():
            raise RolledBack(
                f"a statement of participant {self.name!r} failed before, and its transaction with it: roll back, "
                "or use a savepoint around what may fail"
            )

    def _in_failed(self) -> bool:
        return self.connection is not None and has_failed(self.connection)

    def _is_lost(self, error: Exception) -> bool:
        """Whether it may have been carried out all the same."""
        if isinstance(error, Error):
            return isinstance(error, (ConnectionLost, ResourceFailed))
        if getattr(self.connection, "in_transaction", False):
            return False
        if getattr(self.connection, "closed", False):
            return True
        spoke = getattr(error, "sqlstate", None)
        if spoke is not None:
            return str(spoke).startswith(UNCERTAIN)
        return not is_a(error, "IntegrityError") and not is_a(error, "ProgrammingError")


class LastResource(Enlisted):
    """Without two phases: a plain local transaction, whose commit decides where others have prepared."""

    def _begin(self) -> None:
        """A local transaction begins by itself."""

    def commit_last(self, check: Callable[[], None] = lambda: None) -> Answer:
        """Commits it together with the row. LOST: nobody knows, not even the database just now.

        check: raises where the log is not ours any more. Asked with the row in place, which keeps out a successor's.
        """
        try:
            marker.insert(self.connection, self.gtrid)
            check()
        except Exception as error:
            self._failed(error)
            self.discard()
            return Answer.REFUSED
        answer = self.commit_one_phase()
        return self._read_decision() if answer is Answer.LOST else answer

    def rollback(self) -> Answer:
        try:
            if not self._interrupted:
                self.connection.rollback()
        except Exception as error:
            self._failed(error)
        if not self._sound:
            self.discard()
        return Answer.DONE

    def ask(self) -> Answer:
        return Answer.UNKNOWN

    def _commit_at_once(self) -> None:
        self.connection.commit()

    def _read_decision(self) -> Answer:
        """The commit got no answer: on a fresh connection its row can be read, or made impossible."""
        self.discard()
        try:
            connection = self.source.open()
            try:
                outcome = marker.resolve(connection, self.gtrid)
            finally:
                close(connection)
        except Exception as error:
            self._failed(error)
            return Answer.LOST
        return Answer.DONE if outcome is Outcome.COMMITTED else Answer.REFUSED
