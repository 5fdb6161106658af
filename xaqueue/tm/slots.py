"""Several processes share one directory of decisions: each has a slot of it, a decision log of its own.

    LOGDIR/             slot 0: all that a directory is which one process has
      slots/1/ 2/ ...   each a decision log as any other, with its own lock and its own node id

A process takes the first slot that nobody has locked, and makes one where all are. What a process has left that has
ended is finished by whoever opens its slot next: a process that starts, or one that lives and *adopts* it. That one
opens the log as any start does, under the lock and the next epoch, recovers all its participants, and closes it. So an
adopted slot is no other case than a log that is opened again: what was not decided by then never will be.

A free slot is adopted if its log has a decision that is not done, if a participant lists a branch of its node, or if a
space waits for its node as a carrier; not without any: each opening costs syncs and an epoch. A participant may list a
branch long after its process has ended, and only that node's log can tell what becomes of it: so slots are never
removed, and are looked at for as long as anybody lives. Where a participant lists a branch of an epoch that the log has
not come to, the log is an older copy. It is left alone, since a few more openings would make that branch look like one
that was never decided.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Protocol, TypeVar

from xaqueue.carried import Carriers
from xaqueue.core.storage.owner_file import is_owned
from xaqueue.errors import DecisionLogError, DecisionLogInUse, Error
from xaqueue.tm.gtrid import ListedBranch
from xaqueue.tm.log import DecisionLog
from xaqueue.tm.log_directory import LogView, every_log, is_slot, log_of_slot, open_log, view_log
from xaqueue.tm.records import NODE, Heuristic, InDoubtTransaction, TransactionState
from xaqueue.tm.recovery import RecoveryResult

ROUND_S = 10.0
"""For so long a participant is waited for that does not answer, while others may have slots to be finished, too."""
LONGEST_PAUSE_S = 600.0
T = TypeVar("T")

log = logging.getLogger("xaqueue")


def open_slot(path: str | os.PathLike[str]) -> DecisionLog:
    """Opens the first log of a shared directory that nobody has; one that is named as a slot, or none.

    Raises DecisionLogInUse for that one, DecisionLogDamaged, DecisionLogError, InvalidArgument.
    """
    if is_slot(path):
        return open_log(path)
    while True:
        place = next(one for one in map(partial(log_of_slot, path), count()) if not is_owned(one))
        with suppress(DecisionLogInUse):  # another process was faster
            return open_log(place)


class Heir(Protocol):
    """A transaction manager over an adopted slot, with the participants of whoever has adopted it."""

    @property
    def node(self) -> str: ...
    @property
    def hangs(self) -> bool: ...
    def recover(self, timeout_s: float | None = None) -> RecoveryResult: ...
    def in_doubt(self) -> list[InDoubtTransaction]: ...
    def forget(self, gtrid: bytes | str) -> list[Heuristic]: ...
    def release(self, space: str) -> list[bytes]: ...
    def close(self) -> None: ...


class Slots:
    """Those of one directory, as the process sees them that has ``own``. Safe for threads."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        own: DecisionLog,
        heir_of: Callable[[DecisionLog], Heir],
        interval_s: float,
    ) -> None:
        """heir_of: over that log. interval_s: it looks so often, where it hears of nothing."""
        assert own.owner is not None
        self._path, self._own, self._node = path, own.owner.root, own.node
        self._heir_of, self._interval_s = heir_of, interval_s
        self._listed: dict[str, dict[str, int]] = {}
        """By participant, nodes of which it lists branches, or which it awaits as carriers, and their highest epoch."""
        self._left: dict[Path, tuple[float, float]] = {}
        """Adopted, and not finished: when that is tried again, by the monotonic clock, and the pause until then."""
        self._said: dict[Path, str] = {}
        self._last: dict[Path, Heir] = {}
        """Who has adopted it last, here."""
        self._adopting = threading.Lock()
        self._heir: Heir | None = None
        self._heard = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="xaqueue-tm-slots", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, patience_s: float) -> None:
        """Nothing is adopted any more, and what was is left to others."""
        self._is_stopped = True
        self._heard.set()
        if (heir := self._heir) is not None:
            heir.close()
        if self._thread.is_alive():
            self._thread.join(patience_s)

    def _run(self) -> None:
        while not self._is_stopped:
            self._heard.clear()
            try:
                self.adopt(ROUND_S)
            except OSError as error:
                self._say(self._own, f"the directory cannot be read: {error}")
            self._heard.wait(self._interval_s)

    def hear(self, participant: str, listed: Collection[ListedBranch], carriers: Carriers | None) -> None:
        """A participant's whole list, and who carries for it."""
        awaited = [one for one in carriers.carriers if one.is_awaited] if carriers is not None else []
        nodes = {one.carrier.partition(".")[0]: 0 for one in awaited}
        for branch in listed:
            if not branch.gtrid.database:
                nodes[branch.gtrid.node] = max(branch.gtrid.epoch, nodes.get(branch.gtrid.node, 0))
        nodes.pop(self._node, None)
        self._listed[participant] = nodes
        if nodes:
            self._heard.set()

    def _free(self) -> Iterator[tuple[Path, LogView | None]]:
        """Those that nobody has. None: of one that is damaged, or in which nothing was made yet."""
        for path in every_log(self._path):
            if path != self._own and not is_owned(path):
                view = None
                with suppress(DecisionLogError):
                    view = view_log(path)
                yield path, view

    def in_doubt(self) -> list[InDoubtTransaction]:
        """What is not over in those that nobody has."""
        return [one for _, view in self._free() if view is not None for one in view.open]

    def adopt(self, timeout_s: float | None, *, at_once: bool = False) -> list[RecoveryResult]:
        """Finishes what is left in free slots. at_once: also in those that were tried a moment ago."""
        paths = (path for path, view in self._free() if self._is_wanted(path, view, at_once))
        return self._each(paths, partial(self._finish, timeout_s))

    def release(self, space: str) -> set[bytes]:
        """As the transaction manager's, in all that nobody has."""

        def release(_: Path, heir: Heir) -> list[bytes]:
            heir.recover(ROUND_S)
            return heir.release(space)

        return {gtrid for gone in self._each((path for path, _ in self._free()), release) for gtrid in gone}

    def forget(self, gtrid: bytes) -> list[Heuristic]:
        """As the transaction manager's, where nobody has the one that has them; none where that is not so."""
        paths = (path for path, view in self._free() if view and any(one.gtrid == gtrid for one in view.open))
        return [one for forgotten in self._each(paths, lambda _, heir: heir.forget(gtrid)) for one in forgotten]

    def _each(self, paths: Iterable[Path], call: Callable[[Path, Heir], T]) -> list[T]:
        """Adopts these one by one, and makes the call in each."""
        found: list[T] = []
        with self._adopting:
            for path in paths:
                if self._is_stopped:
                    break
                try:
                    self._heir = heir = self._heir_of(open_log(path))
                    with closing(heir):
                        if not self._is_stopped:
                            found.append(call(path, heir))
                    self._last[path] = heir
                except DecisionLogInUse:
                    continue  # another process was faster
                except Error as error:
                    self._fail(path, str(error))
                finally:
                    self._heir = None
        return found

    def _is_wanted(self, path: Path, view: LogView | None, at_once: bool) -> bool:
        if not at_once and self._left.get(path, (0.0, 0.0))[0] > time.monotonic():
            return False
        if path in self._last and self._last[path].hangs:
            return False  # or there would be more and more threads
        if view is None:
            return (path / NODE).exists()  # its opening says what is wrong; else a process is making it
        epochs = [nodes[view.node] for nodes in list(self._listed.values()) if view.node in nodes]
        if max(epochs, default=0) > view.epoch:
            self._say(path, f"it is an older copy, of epoch {view.epoch}: a branch of epoch {max(epochs)} is in doubt")
            return False
        return bool(epochs or view.table.open)

    def _finish(self, timeout_s: float | None, path: Path, heir: Heir) -> RecoveryResult:
        result = heir.recover(timeout_s)
        if result.complete and all(one.state is TransactionState.HEURISTIC for one in heir.in_doubt()):
            self._left.pop(path, None)
            for nodes in list(self._listed.values()):
                nodes.pop(heir.node, None)
        else:
            self._fail(path, "")  # recovery has said what is in the way
        return result

    def _fail(self, path: Path, why: str) -> None:
        pause_s = min(2 * self._left.get(path, (0.0, self._interval_s / 2))[1], LONGEST_PAUSE_S)
        self._left[path] = time.monotonic() + pause_s, pause_s
        self._say(path, why)

    def _say(self, path: Path, why: str) -> None:
        """Once."""
        if why and self._said.get(path) != why and not self._is_stopped:
            self._said[path] = why
            log.warning("[slot-left] what a process has left in %s waits: %s", path, why)
