"""What cannot be read is moved aside with its reason, never deleted; the rest of the space goes on.

A file is renamed to ``quarantine/<where it stood, with dots>``, and ``<that name>.reason`` beside it says in words
what was wrong, when, and what to do. The reason is written first, so that no crash leaves a file without one; only a
full disk does, where the reason is logged instead: the space must start there, too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from zlib import crc32

from xaqueue.core.model import layout
from xaqueue.core.model.block_files import listed
from xaqueue.core.storage.fs import NO_ROOM, FileSystem, discard
from xaqueue.xid import Xid

_NAME_LIMIT = 240
"""In bytes; with what may stand before and behind it, it is a name yet."""
_RESOLVED = "resolved."
_FOREIGN = "foreign."
TWICE = "stands in its queue twice"
"""In the reason of a message that is there under another name: it never comes back."""
_STOOD = "stood at "
_REASON_BYTES = 16 * 1024

log = logging.getLogger("xaqueue")


def move(fs: FileSystem, path: str, reason: str, now_us: int, *, foreign: bool = False, stood: str = "") -> str:
    """Quarantines a file or directory and returns its new path. The caller syncs both directories. Raises OSError.

    foreign: it is nothing of the space, where something of it is made again, and nobody is to take it for that.
    stood: where, if it is a copy of what stood elsewhere.
    """
    stood = stood or path
    name = f"{_FOREIGN}{_name_of(stood)}" if foreign else _name_of(stood)
    target, copies = f"{layout.QUARANTINE}/{name}", 1
    while fs.exists(target) or fs.exists(target + ".reason"):
        copies += 1
        target = f"{layout.QUARANTINE}/{name}~{copies}"
    when = datetime.fromtimestamp(now_us / 1e6, UTC).isoformat(timespec="seconds")
    text = f"{reason}\n{_STOOD}{stood}\nmoved here {when}\nThe file is as it was found; nothing reads it any more.\n"
    try:
        fs.create(target + ".reason", [os.fsencode(text)])
        fs.sync_data(target + ".reason")
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        log.exception("[quarantined] no room for the reason why %s is quarantined as %s: %s", path, target, reason)
    try:
        fs.rename(path, target)
    except OSError:
        with suppress(OSError):
            fs.unlink(target + ".reason")
        raise
    return target


def holds(fs: FileSystem, paths: Iterable[str]) -> bool:
    """Whether what stood at one of these was set aside before."""
    return any(names_of(fs, path) for path in paths)


def names_of(fs: FileSystem, path: str) -> list[str]:
    """In quarantine, of what stood there, whenever that was."""
    wanted = _name_of(path)
    return [name for name in listed(fs, layout.QUARANTINE) if name.removeprefix(_RESOLVED).split("~")[0] == wanted]


def has_message(fs: FileSystem, queue: str, message_id: bytes, first: int | None = None) -> bool:
    """Whether a message of this queue and id was set aside, others may have the same one; or the block of many that it
    is the first of, by its number."""
    start, number, end = f"{queue}.range=", f".{first:016x}+" if first is not None else "", f".{message_id.hex()}"
    names = listed(fs, layout.QUARANTINE)
    return any(name.startswith(start) and number in name and end in name for name in names)


def lost_blocks(fs: FileSystem) -> dict[Xid, list[str]]:
    """Blocks of prepared branches that stand in quarantine unresolved: their branches stay in doubt."""
    lost: dict[Xid, list[str]] = {}
    start = f"{layout.PREPARED}."
    for name in listed(fs, layout.QUARANTINE):
        if name.startswith(start) and not name.endswith(".reason"):
            block = layout.parse_block(name.removeprefix(start).split("~")[0])
            if block is not None:
                lost.setdefault(block[0], []).append(name)
    return lost


def origin(fs: FileSystem, name: str) -> tuple[str, str]:
    """Where what has this name in quarantine stood, and why it was moved; empty where nobody knows, or needs it."""
    if name.startswith((_RESOLVED, _FOREIGN)) or name.endswith(".reason"):
        return "", ""
    try:
        text = fs.read(f"{layout.QUARANTINE}/{name}.reason", _REASON_BYTES).decode("utf-8", "replace")
    except OSError:
        return "", ""
    reason, _, rest = text.rpartition(f"\n{_STOOD}")
    return rest.partition("\n")[0], reason


def mark(fs: FileSystem, name: str, harden: Callable[[], object] = lambda: None) -> None:
    """What has this name in quarantine is needed no more; it stays there under another name.

    harden: called when the file has it, and the reason beside it not yet.
    """
    for suffix in ("", ".reason"):
        source = f"{layout.QUARANTINE}/{name}{suffix}"
        if fs.exists(source):
            fs.rename(source, f"{layout.QUARANTINE}/{_RESOLVED}{name}{suffix}")
            discard(fs, source)  # which a crash may have left as another name of the same file
            harden()


def resolve(fs: FileSystem, xid: Xid) -> None:
    """A decision was made on a branch that lost blocks: they are evidence now and hold it in doubt no longer."""
    for name in lost_blocks(fs).get(xid, ()):
        mark(fs, name)


def _name_of(path: str) -> str:
    """Under which it is set aside, the first time."""
    name = path.removeprefix(f"{layout.COMMITTED}/queue=").replace("/", ".")
    in_bytes = os.fsencode(name)
    if len(in_bytes) <= _NAME_LIMIT:
        return name
    return f"{in_bytes[: _NAME_LIMIT - 9].decode('utf-8', 'ignore')}.{crc32(in_bytes):08x}"
