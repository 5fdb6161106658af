"""What ``xaqueue bench`` is asked to measure, refused here when it cannot be measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from xaqueue.bench.peers import check_names
from xaqueue.bench.peers.peer import Wanted
from xaqueue.errors import InvalidArgument
from xaqueue.storage.hardening import Hardening


@dataclass(frozen=True, slots=True)
class Options:
    """``directory``: where; None is the directory for temporary files. ``seconds``: of a measurement."""

    directory: Path | None = None
    threads: tuple[int, ...] = (1, 8)
    flags: tuple[str, ...] = ("JOURNAL", "NONE", "FDATASYNC", "FDATASYNC;DSYNC", "FSYNC;DSYNC")
    size_bytes: int = 1024
    messages_per_branch: int = 1
    seconds: float = 3.0
    rounds: int = 3
    peers: tuple[str, ...] = ()
    postgres_dsn: str | None = None
    """Of a server that runs already; without it the peer starts one of its own."""

    server: bool = False
    """Measure through a server, too, with clients in processes."""

    checkpoints_s: float | None = None
    """A checkpoint every so many seconds, compared with none; None compares nothing."""

    def __post_init__(self) -> None:
        for flags in self.flags:
            Hardening.parse(flags)
        check_names(self.peers)
        if self.postgres_dsn is not None and "postgres" not in self.peers:
            raise InvalidArgument("bench: a DSN of PostgreSQL is for --peer postgres")
        if not self.threads or min(self.threads) < 1 or self.rounds < 1 or self.size_bytes < 0 or self.seconds <= 0:
            raise InvalidArgument("bench: threads and rounds from 1, a size from 0 and seconds above 0 are wanted")
        if self.checkpoints_s is not None and not 0 < self.checkpoints_s < self.seconds:
            raise InvalidArgument("bench: a checkpoint more often than a measurement takes is wanted")
        if self.messages_per_branch < 1:
            raise InvalidArgument("bench: messages per branch from 1 are wanted")

    @property
    def branch_bytes(self) -> int:
        return self.size_bytes * self.messages_per_branch

    @property
    def wanted(self) -> Wanted:
        return Wanted(max(self.threads), self.postgres_dsn)
