"""The NODE file: whose decisions a log holds, and how often it was opened. Durable before either names anything."""

from __future__ import annotations

from typing import NoReturn

from xaqueue.errors import DecisionLogDamaged, DecisionLogError
from xaqueue.storage.fs import FileSystem
from xaqueue.tm.gtrid import Gtrid

NODE = "NODE"
"""One line: ``xaqueue-tm 1 <node id> <boot epoch>``."""
_NEW = ".NODE.new"
_MAGIC = "xaqueue-tm"
_VERSION = "1"


def read_node(fs: FileSystem) -> tuple[str, int]:
    """Node id and epoch; "" and 0 where there was never a log. Raises DecisionLogDamaged, DecisionLogError, OSError."""
    try:
        line = fs.read(NODE, 4096).decode("ascii", "replace")
    except FileNotFoundError:
        return "", 0
    words = line.split()
    if len(words) > 1 and words[0] == _MAGIC and words[1] != _VERSION:
        raise DecisionLogError(
            f"{NODE} has format {words[1]}; this xaqueue reads format {_VERSION}: use a newer one. Nothing was changed"
        )
    try:
        magic, _, node, epoch = words
        if magic != _MAGIC or not line.endswith("\n"):
            raise ValueError  # noqa: TRY301
        Gtrid(node, int(epoch), 0)
    except ValueError:  # InvalidArgument is one
        damaged(f"{NODE} cannot be read")
    return node, int(epoch)


def write_node(fs: FileSystem, node: str, epoch: int) -> None:
    """Replaces it, durably. Raises OSError."""
    if fs.exists(_NEW):
        fs.unlink(_NEW)
    fs.create(_NEW, [f"{_MAGIC} {_VERSION} {node} {epoch}\n".encode()])
    fs.sync_file(_NEW)
    fs.rename(_NEW, NODE)
    fs.sync_dir("")


def damaged(what: str) -> NoReturn:
    """Raises DecisionLogDamaged, which says what to do."""
    raise DecisionLogDamaged(
        f"the decision log is damaged: {what}. Decisions may be lost with it, so nothing was changed and nothing is "
        "rolled back. Put the files back from a copy. Without one, move the directory away and keep it: a new log has "
        "a new node id and leaves the old branches alone; finish those by hand, each participant's list of what is in "
        "doubt has them (`xaqueue indoubt advise` compares)"
    )
