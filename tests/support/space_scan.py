"""The invariants of a closed space's directories, read without the engine: what a test asserts after each crash."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import msgpack

from xaqueue.core.model import layout
from xaqueue.core.model.block import decode
from xaqueue.core.model.message_name import tags_of
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
    gone = {one.name for one in directory.glob(".gone/*")}
    for path in sorted(directory.glob("range=*/*")):
        first, _, message_id = path.name.partition(".")
        numbers, number = first.split("+"), layout.parse_range(path.parent.name)
        try:
            if len(numbers) == 2:
                gone.discard(f"{numbers[0]}.{message_id}")
                messages = _block(directory, path, int(numbers[0], 16), int(numbers[1], 16))
            elif (parsed := layout.parse_message(path.name)) is not None:
                messages = [parsed]
                wrong += _message(path, queue, parsed[1])
            else:
                messages = []
        except (DamagedBlock, ValueError, struct.error) as damage:
            wrong.append(f"{path}: {damage}")
            continue
        if not messages or any(number != seq >> layout.RANGE_BITS for seq, _ in messages):
            wrong.append(f"{path} is no message of its range")
            continue
        found += [(*message, path.stat().st_mtime_ns) for message in messages]
    there = {f"{seq:016x}.{message_id.hex()}" for seq, message_id, _ in found}
    beside = {one.name for one in directory.glob(".retries/*")} - there
    wrong += [f"{name} in .retries/ of {queue} is of no message" for name in sorted(beside)]
    wrong += [f"{name} in .gone/ of {queue} is of no block" for name in sorted(gone)]
    if len({seq for seq, _, _ in found}) < len(found):
        wrong.append(f"a number of {queue} is given twice")
    if len({message_id for _, message_id, _ in found}) < len(found):
        wrong.append(f"a message stands in {queue} twice")
    if any(seq > watermark.reserved for seq, _, _ in found):
        wrong.append(f"a message of {queue} is above the reserved number {watermark.reserved}")
    times = [when for _, _, when in found]
    if rising and times != sorted(times):
        wrong.append(f"commit times in {queue} do not rise with the sequence")
    return wrong


def _block(directory: Path, path: Path, first: int, count: int) -> list[tuple[int, bytes]]:
    """Numbers and ids of those that are left in it, each body checked; by xaqueue(5) alone. Raises DamagedBlock,
    ValueError, struct.error."""
    data, bits = path.read_bytes(), _bits(directory / ".gone" / f"{first:016x}.{path.name[-32:]}", count)
    begin = 52 + struct.unpack_from("<I", data, 8)[0]
    places, rest_bytes = struct.unpack_from("<II", data, begin)
    ids = [data[at : at + 16] for at in range(begin + 8, begin + 8 + 16 * places, 16)]
    columns = struct.unpack_from(f"<{2 * places}I", data, begin + 8 + 16 * places)
    at = begin + 8 + 24 * places
    rest: list[Any] = msgpack.unpackb(data[at : at + rest_bytes], strict_map_key=False) if rest_bytes else ["", {}]
    held = list(range(count)) if len(rest) == 2 else [one for one in range(count) if rest[3][one // 8] >> one % 8 & 1]
    at += rest_bytes
    if data[4:6] != b"\1\5" or zlib.crc32(data[:48] + data[52:at]) != struct.unpack_from("<I", data, 48)[0]:
        raise ValueError("its table is damaged")
    if len(held) != places or (len(rest) > 2 and rest[2] != count) or data[28:44].hex() != path.name[-32:]:
        raise ValueError("its table is not that of the block that its name says")
    table, found = data[:at], []
    for index, message_id, size, checksum in zip(held, ids, columns[:places], columns[places:], strict=True):
        if bits >> index & 1 == 0:
            if zlib.crc32(data[at : at + size]) != checksum:
                raise ValueError(f"the body of its message {index} is damaged")
            found.append((first + index, message_id))
        at += size
    if data[at:] != table + struct.pack("<I", len(table)):
        raise ValueError("the copy of its table is damaged")
    if not found:
        raise ValueError("nothing of it is left, and it is there")
    return found


def _bits(path: Path, count: int) -> int:
    """Of the messages that are gone of a block. Raises DamagedBlock, ValueError."""
    data = path.read_bytes() if path.exists() else b""
    if not data.strip(b"\0"):  # a crash may leave the first one of a block so
        return 0
    block = decode(data)
    if block.message_id.hex() != path.name[-32:] or len(block.body) != (count + 7) // 8:
        raise ValueError(f"{path} is not what is gone of its block")
    return int.from_bytes(block.body, "little")


def _message(path: Path, queue: str, message_id: bytes) -> list[str]:
    try:
        block = decode(path.read_bytes())
    except DamagedBlock as damage:
        return [f"{path}: {damage}"]
    right = block.message_id == message_id and block.properties.queue == queue
    right = right and path.name.endswith(message_id.hex() + tags_of(block.properties))
    return [] if right else [f"{path} is not the message that its name says"]
