"""What a directory is to another one: the file ``replication``, one JSON document at the top of a space.

    replica     it follows a space that is served elsewhere, and is opened by nobody
    promoted    it was a replica, and is the space now; the former one is fenced as soon as it answers
    replaced    its replica is the space now: nobody opens it

Crash safety: it is written whole and takes its name at once; whether it is there decides what the directory is.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from xaqueue.core.storage.fs import FileSystem, is_damage, replace_file
from xaqueue.errors import SpaceError

REPLICATION = "replication"
LAG = "lag"
"""How far a replica is behind, as it said last."""
UNSHIPPED = "unshipped.jsonl"
"""What a space that its replica has replaced had not shipped: a line a step."""
SOURCE, REPLICA, PROMOTED, REPLACED = "source", "replica", "promoted", "replaced"
FRESH_US = 10_000_000
"""What a replica has said of itself longer ago is not so any more."""
MOST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Replicated:
    role: str
    url: str = ""
    """Of the space that it follows, or that it has replaced; of who has replaced it, where that is known."""
    space: str = ""
    """The id of the space, which all have in common."""
    epoch: int = 0
    """Of the space when it was copied; of the promoted one."""
    journal: int = 0
    lsn: int = 0
    """Where the copy began, and from where on the promoted one has nothing of the other: epoch and LSN of a journal."""
    at: int = 0
    """When, microseconds UTC."""
    is_done: bool = False
    """The space that it has replaced is fenced."""


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """What a space, or a replica, is to the other one, and how far apart they are."""

    role: str
    """"source", "replica", "promoted" or "replaced"."""
    url: str = ""
    waits: bool = False
    """A source's steps wait for the replica."""
    connected: bool = False
    """They were in touch just now."""
    lag_bytes: int = 0
    """Of the journal, which the replica has not acknowledged, or does not have."""
    lag_s: float = 0.0
    """How old what it has is, as a replica says of itself; of a source, since when no replica was heard of."""

    def __str__(self) -> str:
        behind = f"{self.lag_bytes:,} bytes behind" if self.lag_bytes else "up to date"
        if self.role == SOURCE:
            heard = behind if self.connected else f"{behind}, not heard of now"
            return f"ships its journal: the replica is {heard}" + (", and steps wait for it" if self.waits else "")
        if self.role == REPLICA:
            late = f" ({self.lag_s:.1f} s)" if self.lag_bytes else ""
            return f"a replica of {self.url}: {behind}{late}" + ("" if self.connected else ", and not connected")
        if self.role == PROMOTED:
            return f"was promoted in the place of {self.url}" + ("" if self.connected else ", which is not fenced yet")
        return "was replaced by its replica" + (f", at {self.url}" if self.url else "")


def status(fs: FileSystem, now_us: int) -> ReplicationStatus | None:
    """As the directory tells it. Raises SpaceError, OSError."""
    found = read(fs)
    if found is None:
        return None
    if found.role != REPLICA:
        return ReplicationStatus(found.role, found.url, connected=found.is_done)
    try:
        said = json.loads(fs.read(LAG, MOST_BYTES))
        is_fresh = said["connected"] and now_us - said["at"] < FRESH_US
        lag_s = said["lag_s"] if is_fresh else said["lag_s"] + max(now_us - said["at"], 0) / 1e6
        return ReplicationStatus(REPLICA, found.url, False, is_fresh, said["lag_bytes"], lag_s)
    except (OSError, ValueError, TypeError, KeyError):  # it has never said anything
        return ReplicationStatus(REPLICA, found.url, lag_s=max(now_us - found.at, 0) / 1e6)


def read(fs: FileSystem) -> Replicated | None:
    """None for a space that is nothing to another one. Raises SpaceError where it is damaged, OSError."""
    if not fs.exists(REPLICATION):
        return None
    try:
        found = Replicated(**json.loads(fs.read(REPLICATION, MOST_BYTES)))
    except (ValueError, TypeError, OSError) as error:
        if isinstance(error, OSError) and not is_damage(fs, REPLICATION, error):
            raise
        raise SpaceError(
            f"{REPLICATION} is damaged ({error}), and tells whether this is a replica or was replaced by one: put it "
            "back from a copy, or remove it if this directory alone is the space"
        ) from error
    return found


def write(fs: FileSystem, found: Replicated) -> None:
    """Durably. Raises OSError."""
    replace_file(fs, REPLICATION, encode(found))


def encode(found: Replicated) -> bytes:
    return json.dumps(asdict(found)).encode() + b"\n"


def refusal(found: Replicated | None, root: str) -> str:
    """Why nobody opens a directory that is this; empty where somebody may."""
    if found is None or found.role == PROMOTED:
        return ""
    if found.role == REPLICA:
        return (
            f"{root} is a replica of {found.url}: write there, and read here with `xaqueue browse` or Spark; "
            f"`xaqueue promote {root}` makes it the space"
        )
    where = f", at {found.url}" if found.url else ""
    return (
        f"{root} was replaced by its replica, which is the space now{where}: nothing is taken here any more."
        f" What it had not shipped is listed in unshipped.jsonl; `xaqueue replica {root} --from "
        "URL` makes it a replica of the other one, and keeps what is here in removed/"
    )
