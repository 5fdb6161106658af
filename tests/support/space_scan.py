"""The invariants of a closed space's directories, read without the engine: what a test asserts after each crash."""

from __future__ import annotations

from pathlib import Path

from xaqueue.core.model import layout
from xaqueue.core.model.block import decode
from xaqueue.core.model.message_name import PLAIN_NAME, tags_of
from xaqueue.errors import DamagedBlock


def scan(root: str | Path, *, times: bool = True) -> list[str]:
    """What is wrong, in words. A settled space has no branches, no decisions and nothing in quarantine.

    times: whether commit times must rise, too.
    """
    space = Path(root)
    wrong = [
        f"{directory} is not empty: {child.name}"
        for directory in (layout.ACTIVE, layout.PREPARED, layout.HEURISTIC, layout.QUARANTINE)
        for child in (space / directory).iterdir()
    ]
    for directory in (space / layout.COMMITTED).iterdir():
        queue = layout.parse_queue_directory(directory.name)
        wrong += _queue(directory, queue, times) if queue is not None else [f"{directory.name} is no queue"]
    return wrong


def _queue(directory: Path, queue: str, rising: bool) -> list[str]:
    wrong: list[str] = []
    path = directory / ".watermark"
    data = path.read_bytes() if path.exists() else b""
    watermark = layout.parse_watermark(data)
    if watermark is None:
        unused = not data and not list(directory.glob("range=*/*"))  # its first message was on its way
        return [] if unused else [f"the watermark of {queue} is damaged"]
    found: list[tuple[int, bytes, int]] = []
    beside = {one.name for one in directory.glob(".retries/*")}
    for path in sorted(directory.glob("range=*/*")):
        parsed = layout.parse_message(path.name)
        beside.discard(path.name[:PLAIN_NAME])
        if parsed is None or layout.parse_range(path.parent.name) != parsed[0] >> layout.RANGE_BITS:
            wrong.append(f"{path} is no message of its range")
            continue
        wrong += _message(path, queue, parsed[1])
        found.append((*parsed, path.stat().st_mtime_ns))
    wrong += [f"{name} in .retries/ of {queue} is of no message" for name in beside]
    if len({message_id for _, message_id, _ in found}) < len(found):
        wrong.append(f"a message stands in {queue} twice")
    if any(seq > watermark.reserved for seq, _, _ in found):
        wrong.append(f"a message of {queue} is above the reserved number {watermark.reserved}")
    times = [when for _, _, when in found]
    if rising and times != sorted(times):
        wrong.append(f"commit times in {queue} do not rise with the sequence")
    return wrong


def _message(path: Path, queue: str, message_id: bytes) -> list[str]:
    try:
        block = decode(path.read_bytes())
    except DamagedBlock as damage:
        return [f"{path}: {damage}"]
    right = block.message_id == message_id and block.properties.queue == queue
    right = right and path.name.endswith(message_id.hex() + tags_of(block.properties))
    return [] if right else [f"{path} is not the message that its name says"]
