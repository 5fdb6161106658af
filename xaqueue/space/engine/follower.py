"""The follower: a thread that has the directories follow the journal, a moment behind it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from xaqueue.errors import ResourceFailed
from xaqueue.space.engine.journal_log import LAG_S, RETRY_S, JournalLog
from xaqueue.storage.fs import NO_ROOM


class Follower:
    """Runs until ``stop``, or until the space fails; ``failed`` is called with an error that ends it."""

    def __init__(self, log: JournalLog, failed: Callable[[BaseException], object]) -> None:
        self._log = log
        self._failed = failed
        self._stopped = threading.Event()
        self._pending = threading.Event()
        log.notify = self._pending.set
        if log.pending:
            self._pending.set()
        self._thread = threading.Thread(target=self._run, name="xaqueue-follow", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._pending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._pending.wait()
            self._pending.clear()
            while self._log.pending and not self._stopped.is_set():
                self._stopped.wait(LAG_S)
                try:
                    self._log.follow()
                except ResourceFailed:
                    return  # whoever raised it has fenced the space
                except BaseException as error:
                    if not isinstance(error, OSError) or error.errno not in NO_ROOM:
                        self._failed(error)
                        return
                    self._stopped.wait(RETRY_S)
