"""One of a pair of owners: while it has the space, a standby may take it over, because it is silent.

It writes ``heartbeat`` once a second, without a sync, and changes the directory through ``PairFileSystem`` alone. An
owner that is in no pair comes by here as well, and is as it would be without: nothing is written, nothing in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from xaqueue.core.engine.features import Guard
from xaqueue.core.engine.state import Space, log
from xaqueue.core.model import layout
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.ids import fresh_id
from xaqueue.core.storage.modes import Modes
from xaqueue.core.storage.owner_file import OwnerFile, beat
from xaqueue.errors import InvalidArgument, ResourceFailed
from xaqueue.features.pair.pair_fs import PairFileSystem, retire
from xaqueue.features.retries.register import TRIES
from xaqueue.features.snapshots.store import retire_unfinished

BEAT_S = 1.0


def check_level(hardening: Hardening) -> None:
    """Raises InvalidArgument for a level at which nobody can take over from an owner that comes back."""
    if not hardening.journal:
        raise InvalidArgument(
            f"a standby needs sync = JOURNAL, and this space is to have {hardening}: only a journal tells a new owner "
            "what the former one may still be about to do. Change [space] sync in queues.toml, or serve it without "
            "--standby"
        )


class Pair(Guard):
    """Of one owner; see above."""

    def __init__(self, root: Path, lock: OwnerFile, hardening: Hardening, *, beats: bool) -> None:
        """beats: it is one of a pair, and says so. Raises InvalidArgument."""
        if beats:
            check_level(hardening)
        self.beats = beats
        self._root = root
        self._lock = lock
        self._files: PairFileSystem | None = None
        self._check: Callable[[], None] = self._check_lock
        self._stopped = threading.Event()

    def port(self, fs: FileSystem) -> FileSystem:
        retire(fs, layout.ACTIVE, self._check_lock)
        if not self.beats:
            return fs
        if not fs.is_dir(layout.ACTIVE):
            fs.make_dir(layout.ACTIVE)
        self._files = PairFileSystem(fs, layout.ACTIVE, fresh_id().hex(), self._check_lock, is_in_place)
        retire_unfinished(self._files)
        return self._files

    def begin(self, epoch: int, modes: Modes) -> None:
        if self._files is not None:
            beat = threading.Thread(target=self._run, args=(epoch, modes.file), name="xaqueue-heartbeat", daemon=True)
            beat.start()

    def recovered(self, space: Space) -> None:
        if self._files is not None:
            self._files.check = space.check_owner

            def check() -> None:
                space.check_owner()
                space.check_readable()

            self._check = check

    def stop(self) -> None:
        """Waits for no heartbeat: that may hang, and one that comes late says little."""
        self._stopped.set()
        if self._files is not None:
            self._files.leave()

    def _check_lock(self) -> None:
        reason = self._lock.lost()
        if reason:
            raise ResourceFailed(f"another process has taken the space over: {reason}")

    def _run(self, epoch: int, mode: int) -> None:
        """In a thread of its own: where a write hangs, it does, and that is what a standby is to see. It looks first:
        an owner that was stopped knows so as soon as it is continued."""
        number, complaint = 0, ""
        while not self._stopped.is_set():
            number += 1
            try:
                self._check()
                beat(self._root, b"%016x %016x\n" % (epoch, number), mode)
                complaint = ""
            except ResourceFailed:
                return
            except OSError as error:
                if str(error) != complaint:
                    log.warning("[heartbeat-unwritten] a standby takes that for silence: %s", error)
                complaint = str(error)
            self._stopped.wait(BEAT_S)


def is_in_place(path: str) -> bool:
    """Segments are named by the epoch of who began them; entries of tries that are torn are only not counted."""
    return path.startswith(f"{layout.JOURNAL}/") or path == TRIES
