"""What a directory is to another one: the file ``replication``, one JSON document at the top of a space.

    replica     it follows a space that is served elsewhere, and is opened by nobody
    promoted    it was a replica, and is the space now; the former one is fenced as soon as it answers
    replaced    its replica is the space now: nobody opens it

Crash safety: it is written whole and takes its name at once; whether it is there decides what the directory is.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from xaqueue.errors import SpaceError
from xaqueue.space.model.layout import REPLICATION
from xaqueue.storage.fs import FileSystem, discard

REPLICA, PROMOTED, REPLACED = "replica", "promoted", "replaced"
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


def read(fs: FileSystem) -> Replicated | None:
    """None for a space that is nothing to another one. Raises SpaceError where it is damaged, OSError."""
    if not fs.exists(REPLICATION):
        return None
    try:
        found = Replicated(**json.loads(fs.read(REPLICATION, MOST_BYTES)))
    except (ValueError, TypeError) as error:
        raise SpaceError(
            f"{REPLICATION} is damaged ({error}), and tells whether this is a replica or was replaced by one: put it "
            "back from a copy, or remove it if this directory alone is the space"
        ) from error
    return found


def write(fs: FileSystem, found: Replicated) -> None:
    """Durably. Raises OSError."""
    new = f".{REPLICATION}.new"
    discard(fs, new)
    fs.create(new, [encode(found)])
    fs.sync_file(new)
    fs.rename(new, REPLICATION)
    fs.sync_dir("")


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
