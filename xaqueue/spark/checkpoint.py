"""Spark's checkpoint is read for what a batch is, and hardened where more than Spark relies on it.

Spark writes the offsets of a batch before it runs it, and that it is done afterwards, by renames without a sync. After
a power loss a batch could be in its target with its offsets forgotten, and would be planned anew with other messages;
or its messages could be removed while Spark has forgotten that it is done, and would be wanted again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path

from xaqueue.batch import OFFSETS_LIMIT, Plan
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import InvalidArgument
from xaqueue.spark.options import local_path

METADATA = "metadata"
OFFSETS = "offsets"
HEAD_LINES = 2
"""Of a file of offsets: the version, and when and under which settings the batch was planned. Then a line a source."""
COMMITS = "commits"


class Checkpoint:
    """The directory of one streaming query's checkpoint, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fs = DirectoryFileSystem(path, keep_unsynced=False)

    def query(self) -> str | None:
        """The id of the query; None before its first start."""
        try:
            found = json.loads(self._fs.read(METADATA))["id"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            found = None
        if not isinstance(found, str):
            raise InvalidArgument(f"{self.path} is no checkpoint of Spark's: its {METADATA} is damaged")
        return found

    def latest(self, directory: str = COMMITS) -> int | None:
        """The number of the last batch that Spark has done, or in OFFSETS has planned; None before the first."""
        names = self._fs.list(directory) if self._fs.is_dir(directory) else ()
        return max((int(name) for name in names if name.isdigit()), default=None)

    def plan_of(self, number: int) -> Plan:
        """What Spark has written down of a batch before it ran it.

        All of the file is digested, the batch's time and watermark as well: a batch that is repeated after a crash is
        read from the very same bytes, and one that is planned anew is another one, whose rows may be others.
        """
        content = self._fs.read(f"{OFFSETS}/{number}")
        offsets = "\n".join(content.decode("utf-8", "replace").splitlines()[HEAD_LINES:])
        return Plan(sha256(content).hexdigest(), offsets if len(offsets) <= OFFSETS_LIMIT else "")

    def is_of(self, stream: str, number: int) -> bool:
        """Whether a source of this batch is the stream, which is named like ``name#uuid``."""
        return stream.rpartition("#")[2].encode() in self._fs.read(f"{OFFSETS}/{number}")

    def harden(self, number: int) -> None:
        """The query's id and the offsets of a batch are on disk, each with the file of its checksum."""
        self._sync([METADATA, f".{METADATA}.crc", f"{OFFSETS}/{number}", f"{OFFSETS}/.{number}.crc"], (OFFSETS, ""))

    def harden_done(self, number: int) -> None:
        """The same, and then that the batch is done: with that alone Spark would run the batch before once more."""
        self.harden(number)
        self._sync([f"{COMMITS}/{number}", f"{COMMITS}/.{number}.crc"], (COMMITS,))

    def _sync(self, files: Iterable[str], directories: Iterable[str]) -> None:
        for path in files:
            if self._fs.exists(path):
                self._fs.sync_file(path)
        for path in directories:
            self._fs.sync_dir(path)

    def close(self) -> None:
        self._fs.close()


def _checkpoint_at(location: str) -> Checkpoint | None:
    """None for one that is no directory of this machine, or is not begun."""
    path = local_path(location) if location else None
    return Checkpoint(Path(path)) if path is not None and Path(path).is_dir() else None


def query_in(location: str) -> str | None:
    """The query's id, from its checkpoint; None for one that is not on this machine, or not begun."""
    found = _checkpoint_at(location)
    if found is not None:
        with closing(found), suppress(InvalidArgument, OSError):
            return found.query()
    return None


def hardened_plan(location: str, number: int) -> Plan:
    """What Spark has written down of the batch, on disk: Spark does not sync it, and after a power loss would plan the
    batch anew, with more messages. Where the checkpoint is on no disk of this machine that is its own, and nothing is
    known of the batch but its number.
    """
    found = _checkpoint_at(location)
    if found is None or not (found.path / OFFSETS / str(number)).is_file():
        return Plan()
    with closing(found):
        found.harden(number)
        return found.plan_of(number)


def check_of(location: str, stream: str) -> None:
    """InvalidArgument for a directory that is not the checkpoint of the stream's query, which Spark begins before it
    asks a source. One in another file system is not looked at.
    """
    path = local_path(location) if location else None
    if path is None:
        return
    with closing(Checkpoint(Path(path))) as found:
        planned = found.latest(OFFSETS)
        if found.query() is None or (planned is not None and not found.is_of(stream, planned)):
            raise _not_of(location, stream)


def _not_of(location: str, stream: str) -> InvalidArgument:
    return InvalidArgument(
        f'{location} is not the checkpoint of stream {stream}: give the source the option "checkpointLocation" that '
        "the query has (with its scheme where it is in another file system, such as hdfs:), or leave it out there"
    )


def harden_done(location: str, stream: str) -> None:
    """What Spark knows to be done of this stream is on disk, where its checkpoint is in a directory of this machine.

    Raises InvalidArgument for the checkpoint of another query.
    """
    found = _checkpoint_at(location)
    if found is None:
        return
    with closing(found):
        number = found.latest()
        if number is None or not found.is_of(stream, number):
            raise _not_of(location, stream)
        found.harden_done(number)
