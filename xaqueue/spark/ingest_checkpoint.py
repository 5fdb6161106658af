"""Spark's checkpoint is read for what a batch is, and hardened before the batch appears, which Spark itself leaves out.

Spark writes the offsets of a batch before it runs it, by a rename without a sync: after a power loss a batch could be
in its target with its offsets forgotten, and would be planned anew with other messages.
"""

from __future__ import annotations

import json
from pathlib import Path

from xaqueue.errors import InvalidArgument
from xaqueue.storage.fs import DirectoryFileSystem

METADATA = "metadata"
OFFSETS = "offsets"
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
            raise InvalidArgument(f"{self.path} is no checkpoint of Spark's: its {METADATA} is damaged") from None
        return str(found)

    def has_commits(self) -> bool:
        """Whether a batch of it was ever finished."""
        return self._fs.is_dir(COMMITS) and any(name.isdigit() for name in self._fs.list(COMMITS))

    def offsets(self, number: int) -> str:
        """Which messages a batch has: the end of its ranges; they begin where the batch before ends."""
        return self._fs.read(f"{OFFSETS}/{number}").decode().splitlines()[-1]

    def harden(self, number: int) -> None:
        """The query's id and the offsets of a batch are on disk."""
        for path in (METADATA, f".{METADATA}.crc", f"{OFFSETS}/{number}", f"{OFFSETS}/.{number}.crc"):
            if self._fs.exists(path):
                self._fs.sync_file(path)
        for path in (OFFSETS, ""):
            self._fs.sync_dir(path)

    def close(self) -> None:
        self._fs.close()


def check(checkpoint: Checkpoint, query: str | None, target: Path) -> None:
    """InvalidArgument unless checkpoint and target are of one stream. ``query``: the id that the target remembers."""
    found = checkpoint.query()
    if query is None and not checkpoint.has_commits():
        return  # the first batch is not in place yet
    if query is None:
        raise InvalidArgument(
            f"{checkpoint.path} is the checkpoint of a stream whose rows are not in {target}: "
            "name another checkpoint, or the target that it belongs to"
        )
    if found is None:
        raise InvalidArgument(
            f"{target} was written by a stream whose checkpoint is not in {checkpoint.path}: name it with "
            "--checkpoint; if it is lost, ingest into another target"
        )
    if found != query:
        raise InvalidArgument(
            f"{target} was written by another stream than that of {checkpoint.path}: "
            "name its checkpoint with --checkpoint, or another target"
        )
