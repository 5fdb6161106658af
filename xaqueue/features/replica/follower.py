"""A replica follows a space that is served elsewhere: it copies a snapshot once, and then what the journal says.

    DIR is empty, or a replica, or a space that its replica has replaced
    -> .restoring/ gets the snapshot's files, and is put in place as a restore does it
    -> pieces of the journal: written, synced, acknowledged by asking for the next one; the directories follow

Where the source has not kept what the replica lacks, it copies a snapshot again; until that is whole the older copy
stands, and may be promoted. What a replaced space had is kept in removed/.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from xaqueue.core.engine import redo
from xaqueue.core.model import definitions, format, layout
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.format import read_format
from xaqueue.core.owner.record import Owner, format_owner, in_use, read_owner
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem, replace_file
from xaqueue.core.storage.modes import PRIVATE
from xaqueue.core.storage.owner_file import OwnerFile, boot_id
from xaqueue.endpoint import Endpoint, parse
from xaqueue.errors import ConnectionLost, InvalidArgument, JournalDamaged, ResourceFailed, RetryLater, SpaceError
from xaqueue.features.replica import replicated
from xaqueue.features.replica.journal_copy import Diverged, JournalCopy
from xaqueue.features.replica.options import policy_of
from xaqueue.features.replica.replicated import LAG, REPLICA, REPLICATION, UNSHIPPED, Replicated
from xaqueue.features.replica.shipping import Piece
from xaqueue.features.snapshots import manifest, restore, store
from xaqueue.features.snapshots.restored import REMOVED, RESTORED
from xaqueue.features.streams.record import STREAMS
from xaqueue.rpc.client.manager import RemoteManager, dialer, hello_of

WAIT_S = 1.0
"""The source waits so long for something to ship, so that a replica that is up to date is heard of."""
PAUSE_S = 0.1
"""Between two questions where nobody waits for the answer."""
FOLLOW_S = 0.25
"""Between two turns of the directories: what comes and goes within one is never made."""
ANSWER_S = 10.0
"""A source that takes longer for an answer, beside what it was asked to wait, is asked again."""
RETRY_S = 1.0
LONG_S = 3600.0
"""For a snapshot."""
_OWN = {layout.LOCK, restore.PLACE, LAG, f".{LAG}.new"}
"""What there is before anything was copied."""
FORMER = 2
"""So many former spaces are kept."""
LAG_S = 1.0
"""How often a replica says how far it is behind."""

log = logging.getLogger("xaqueue")


@contextmanager
def owned(root: Path) -> Iterator[tuple[FileSystem, OwnerFile]]:
    """The directory of a replica, which this process has until the end. Raises SpaceInUse, SpaceError."""
    try:
        root.mkdir(PRIVATE.directory, parents=True, exist_ok=True)
        lock = OwnerFile(root)
    except OSError as error:
        raise SpaceError(f"{root} cannot be opened for writing: {error.strerror}") from error
    try:
        if not lock.hold():
            raise in_use(root, read_owner(root))
        with closing(DirectoryFileSystem(root, keep_unsynced=False)) as fs:
            yield fs, lock
    finally:
        lock.release()


class ReplicaFollower:
    """Of one replica, which this process has."""

    def __init__(self, root: Path, fs: FileSystem, lock: OwnerFile, url: str, stopped: threading.Event) -> None:
        """Raises SpaceError where the directory is something else, InvalidArgument for a URL that is none."""
        self._lock = lock
        self.root = root
        self.url = url
        endpoint = parse(url)
        self._endpoint = endpoint if endpoint.timeout_s is not None else replace(endpoint, timeout_s=ANSWER_S)
        self._fs = fs
        self._stopped = stopped
        self._copy: JournalCopy | None = None
        self._following: _Directories | None = None
        self._definitions = b""
        self._is_waited_for = True
        self._asks = False
        """Its answer may never come."""
        self._said_at = 0.0
        self._behind = (0, 0.0)
        self._had_all_us = time.time_ns() // 1000
        """When it had all that there was, as its source says."""
        if restore.is_cut_off(fs):
            restore.finish(fs)
        found = replicated.read(fs)
        if found is None and set(fs.list("")) - _OWN:
            raise SpaceError(f"{root} holds something else: name a directory that is empty, or a replica")
        if found is not None and found.role == replicated.PROMOTED:
            raise SpaceError(f"{root} was promoted, and is a space of its own: name another directory")
        self._found = found if found is not None and found.role == REPLICA else None

    def stop(self) -> None:
        """For a signal, in the thread that runs. Raises ConnectionLost where an answer is waited for."""
        self._stopped.set()
        if self._asks:
            raise ConnectionLost("the replica was told to stop")

    def _ask(self, source: RemoteManager, method: str, *params: Any, waits_s: float = 0.0) -> Any:
        self._asks = True
        try:
            if self._stopped.is_set():
                raise ConnectionLost("the replica was told to stop")
            return source.call(method, *params, waits_s=waits_s)
        finally:
            self._asks = False

    def run(self, *, once: bool = False) -> None:
        """Until it is stopped; once: until it is up to date. Raises SpaceError, and what the source refuses with."""
        complaint = ""
        try:
            while not self._stopped.is_set():
                try:
                    if self._follow(once):
                        return
                except (ConnectionLost, ResourceFailed, RetryLater) as error:
                    if once:
                        raise
                    if self._stopped.is_set():
                        return
                    if str(error) != complaint:
                        log.warning("[replica-waits] the replica waits for %s: %s", self.url, error)
                    complaint = str(error)
                    self._say(is_connected=False)
                    self._stopped.wait(RETRY_S)
                except (Diverged, JournalDamaged) as error:
                    log.warning("[replica-anew] the replica is copied anew: %s", error)
                    self._start_over()
        except OSError as error:
            where = f"{self.root} cannot be written ({error.strerror or error})"
            raise SpaceError(
                f"{where}: make room there, or mend the disk, and start the replica again; it goes on where it was"
            ) from error
        finally:
            self._leave()

    def _follow(self, once: bool) -> bool:
        """Over one connection. Whether it is to end."""
        hello = partial(_hello, self._endpoint, self._found.space if self._found is not None else "")
        with_source = RemoteManager(dialer(self._endpoint), connect_s=0.0, hello=hello)
        try:
            if self._found is None:
                self._copy_snapshot(with_source)
            while not self._stopped.is_set():
                is_acknowledged = self._next(with_source)
                if once and is_acknowledged:
                    self._opened().follow()
                    self._said_at = 0.0
                    self._say(is_connected=True)
                    return True
        finally:
            with_source.drop()
        return True

    def _next(self, source: RemoteManager) -> bool:
        """Takes the next piece. Whether there was none, so that all is acknowledged."""
        copy = self._opened()
        asked = copy.epoch, copy.lsn, copy.hardened, WAIT_S, crc32(self._definitions)
        answer = self._ask(source, "replicate", *asked, waits_s=WAIT_S)
        if answer is None:
            log.warning("[replica-snapshot] the source has not kept what this replica lacks: a snapshot is copied")
            self._start_over()
            self._copy_snapshot(source)
            return False
        piece, now_us, text = _piece_in(answer)
        if text is not None:
            self._define(text)
        copy.take(piece)
        self._know_source()
        assert self._following is not None
        self._following.check()
        is_up_to_date = (copy.epoch, copy.lsn) >= piece.end
        lacking = piece.end[1] - copy.lsn if piece.end[0] == copy.epoch else piece.end[1]
        if is_up_to_date:
            self._had_all_us = now_us
        self._behind = lacking, max(now_us - self._had_all_us, 0) / 1e6
        self._say(is_connected=True)
        if is_up_to_date and not self._is_waited_for:
            self._stopped.wait(PAUSE_S)
        return is_up_to_date and not piece.data

    def _know_source(self) -> None:
        """It was copied from another one, and goes on with this: whose place it would take is this one's."""
        assert self._found is not None
        if self._found.url != self.url:
            self._found = replace(self._found, url=self.url)
            replicated.write(self._fs, self._found)

    def _opened(self) -> JournalCopy:
        if self._copy is None:
            assert self._found is not None
            self._copy = JournalCopy(self._fs, self._found.journal, self._found.lsn)
            self._copy.follow()
            if self._fs.is_dir(STREAMS):  # a snapshot may have what was consumed, and not yet removed
                self._copy.remove_consumed(self._fs.list(STREAMS))
            self._own(self._found)
            self._following = _Directories(self._copy)
            with suppress(OSError):
                self._know(self._fs.read(layout.QUEUES))
        return self._copy

    def _own(self, found: Replicated) -> None:
        """The directories have what the journal has, as long as this host is up: readers know from the boot."""
        since = datetime.now(UTC).isoformat(timespec="seconds")
        line, host = read_format(self.root).line, socket.gethostname()
        here = Owner(found.epoch, host, os.getpid(), since, "JOURNAL", boot=boot_id(), space=line)
        self._lock.write(self._fs, format_owner(here))

    def _start_over(self) -> None:
        self._leave()
        self._found = None

    def _leave(self) -> None:
        if self._following is not None:
            self._following.stop()
        self._copy = self._following = None

    def _know(self, text: bytes) -> None:
        self._definitions, self._is_waited_for = text, True
        with suppress(InvalidArgument, UnicodeDecodeError):
            self._is_waited_for = policy_of(definitions.parse(text.decode())).waits

    def _define(self, text: bytes) -> None:
        replace_file(self._fs, layout.QUEUES, text)
        self._know(text)

    def _say(self, *, is_connected: bool) -> None:
        """How far it is behind, for those who look; without a sync."""
        now = time.monotonic()
        if now - self._said_at < LAG_S and is_connected:
            return
        self._said_at = now
        lacking, lag_s = self._behind
        if not is_connected:
            lag_s = max(time.time_ns() // 1000 - self._had_all_us, 0) / 1e6
        said = {
            **{"host": socket.gethostname(), "pid": os.getpid(), "at": time.time_ns() // 1000},
            **{"connected": is_connected, "lag_bytes": lacking, "lag_s": lag_s},
        }
        replace_file(self._fs, LAG, json.dumps(said).encode() + b"\n", durable=False)

    # The first copy

    def _copy_snapshot(self, source: RemoteManager) -> None:
        """The copy that stands is replaced once the new one is whole."""
        begun = _begun_in(self._ask(source, "replica_begin", waits_s=LONG_S))
        self._check_space(begun["space"])
        fs = self._fs
        if fs.is_dir(restore.PLACE):
            store.remove_tree(fs, restore.PLACE)
        for directory in layout.directories():
            redo.make_dirs(fs, f"{restore.PLACE}/{directory}")
        count = 0
        while page := self._ask(source, "replica_next"):
            count += len(page)
            for path, when_ns, offset, data in page:
                _check_numbers(when_ns, offset)
                self._put(path, when_ns, offset, data)
        if begun["restored"] is not None:
            fs.create(f"{restore.PLACE}/{RESTORED}", [begun["restored"]])
        space = begun["space"].split()[-1]
        where = begun["epoch"], begun["journal"], begun["lsn"]
        found = Replicated(REPLICA, self.url, space, *where, at=time.time_ns() // 1000)
        fs.create(f"{restore.PLACE}/{REPLICATION}", [replicated.encode(found)])
        source.call("replica_end", begun["number"])
        before = replicated.read(fs)
        removed = restore.free_place(fs, found.at)
        restore.put_in_place(fs, restore.Done(begun["number"], found.at, removed, count, 0, 0, []))
        if before is None or before.role == REPLICA:
            store.remove_tree(fs, removed)  # only an older copy, or nothing
        self._prune_removed()
        self._found = found
        log.info("[replica-snapshot] snapshot %d of %s is copied: %d files", begun["number"], self.url, count)

    def _prune_removed(self) -> None:
        """Of the former spaces, which have a list of what was not shipped, the newest are kept; those whose list is
        empty push out none of the others."""
        fs = self._fs
        places = [f"{REMOVED}/{name}" for name in sorted(listed(fs, REMOVED))]
        lists = [place for place in places if fs.exists(f"{place}/{UNSHIPPED}")]
        full = [place for place in lists if fs.size(f"{place}/{UNSHIPPED}")]
        empty = [place for place in lists if place not in full]
        for place in (*full[:-FORMER], *empty[:-FORMER]):
            log.info("[former-removed] the former space in %s is removed, since %d newer ones are kept", place, FORMER)
            store.remove_tree(fs, place)

    def _check_space(self, line: str) -> None:
        if self._fs.exists(layout.FORMAT) and read_format(self.root).id != line.split()[-1]:
            raise SpaceError(
                f"{self.root} is a copy of another space than the one at {self.url}: name another directory"
            )

    def _put(self, path: str, when_ns: int, offset: int, data: bytes) -> None:
        """A part of a file; the last one says when it was changed."""
        if not isinstance(path, str) or not manifest.is_copied(path) or not isinstance(data, bytes):
            raise SpaceError(f"the source has sent the path {path!r}, which is none of a space")
        target = f"{restore.PLACE}/{path}"
        if offset == 0:
            redo.make_dirs(self._fs, target.rpartition("/")[0])
            self._fs.create(target, [data])
        else:
            self._fs.write_at(target, offset, [data])
        if when_ns:
            self._fs.set_modified_ns(target, when_ns)


def _check_numbers(*said: Any) -> None:
    """Of what a source has said, which may say anything. Raises SpaceError."""
    for one in said:
        if type(one) is not int or not 0 <= one < 2**63:
            raise SpaceError(f"the source has sent {one!r:.100} for a number: see that who answers there is the space")


def _piece_in(answer: Any) -> tuple[Piece, int, bytes | None]:
    """With the time there, and queues.toml where it is another one. Raises SpaceError."""
    with suppress(TypeError, ValueError):
        epoch, start, size, following, lsn, data, hardened, (last_epoch, last_lsn), now_us, text = answer
        _check_numbers(epoch, start, size, following, lsn, hardened, last_epoch, last_lsn, now_us)
        if isinstance(data, bytes) and isinstance(text, bytes | None):
            return Piece(epoch, start, size, following, lsn, data, hardened, (last_epoch, last_lsn)), now_us, text
    raise SpaceError("the source has sent what is no piece of a journal: see that who answers there is the space")


def _begun_in(answer: Any) -> dict[str, Any]:
    """What a copy begins with. Raises SpaceError."""
    with suppress(TypeError, KeyError, AttributeError):
        _check_numbers(*(answer[name] for name in ("number", "epoch", "journal", "lsn")))
        space = format.parse(answer["space"])
        if space is not None and isinstance(answer["restored"], bytes | None):
            format.check_version(space, "the source")
            return dict(answer)
    raise SpaceError("the source has begun no copy of a space: see that who answers there is the space")


class _Directories:
    """Has them follow in a thread of its own, so that no acknowledgement waits for them."""

    def __init__(self, copy: JournalCopy) -> None:
        self._copy = copy
        self._error: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xaqueue-replica", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises what has ended it."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(FOLLOW_S):
            try:
                self._copy.follow()
            except BaseException as error:
                self._error = error
                return


def _hello(endpoint: Endpoint, space: str) -> dict[str, Any]:
    """space: the id of the one that it is a copy of, as far as it is."""
    return {**hello_of(endpoint), "replica": space or True}
