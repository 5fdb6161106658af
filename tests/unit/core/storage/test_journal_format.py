"""A journal's bytes are fixed by the vectors in ``vectors/journal/``, and no damage to them goes unseen.

``journal.json`` says of each ``.bin`` file what it holds; the files are format 1 as spaces on disk have it, and are
never to change. To add one: write its entry, and run this in the directory of the tests: ``python -c
"import test_journal_format as t; v = t.RECORDS[-1]; t.path(v).open('xb').write(t.encoded(v))"``
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support import SUPPORT
from support.redo_story import Made
from xaqueue.core.model import change, message_block
from xaqueue.core.model.block import decode_head, pack_properties
from xaqueue.core.storage import journal_format
from xaqueue.core.storage.journal_format import (
    CHECKPOINT,
    LSN,
    PREFIX_BYTES,
    SECTOR_BYTES,
    SWITCH,
    BadHeader,
    Entry,
    NewerHeader,
    Segment,
    header_of,
    name_of,
    parse_header,
    parse_name,
    parse_record,
    record_of,
)
from xaqueue.features.kinds import KINDS
from xaqueue.message import Properties

BLOCKS = SUPPORT / "vectors"
HERE = BLOCKS / "journal"
VECTORS: dict[str, Any] = json.loads((HERE / "journal.json").read_text("utf-8"))
RECORDS: list[dict[str, Any]] = VECTORS["records"]
HEADERS: list[dict[str, Any]] = VECTORS["headers"]
STEPS = [*change.CoreStep, *(step for kind in KINDS for step in kind.steps)]
OWN = {"CHECKPOINT": CHECKPOINT, "SWITCH": SWITCH}


def path(vector: dict[str, Any]) -> Path:
    return HERE / f"{vector['name']}.bin"


def block(name: str) -> tuple[bytes, bytes]:
    if name == "hollow":
        ids = [number.to_bytes(16, "big") for number in range(20)]
        packed = pack_properties(Properties("q", enqueued_at=1_700_000_000_000_000))
        return message_block.encode(packed, ids, [b"%d" % number for number in range(20)], 7, hollow=range(1, 19))[:2]
    data = (BLOCKS / f"{name}.bin").read_bytes()
    offset = decode_head(data).body_offset
    return data[:offset], data[offset:]


def entry_of(vector: dict[str, Any]) -> Entry:
    """The entry that a vector's description means."""
    if vector["kind"] in OWN:
        return Entry(OWN[vector["kind"]], LSN.pack(vector["tells"]))
    made = Made(next(one for one in STEPS if one.name == vector["kind"]), vector["xid"])
    for verb, *values in vector["operations"]:
        if verb == "put":
            target, name, when_us = values
            made.put(target, *block(name), when_us)
        else:
            getattr(made, verb)(*values)
    return made.entry()


def encoded(vector: dict[str, Any]) -> bytes:
    return b"".join(record_of(entry_of(vector), vector["lsn"], vector["first"], vector["epoch"]))


def is_good(data: bytes, vector: dict[str, Any]) -> bool:
    placed = parse_record(data, vector["lsn"], 0)
    return placed is not None and (vector["kind"] in OWN or change.is_valid(placed.record))


def header(vector: dict[str, Any]) -> Segment:
    return Segment(vector["start"], vector["size"], checkpoint=vector["checkpoint"])


named = pytest.mark.parametrize("vector", RECORDS, ids=lambda vector: vector["name"])


@named
def test_a_record_has_the_committed_bytes(vector: dict[str, Any]) -> None:
    data = path(vector).read_bytes()
    assert encoded(vector) == data
    assert len(data) == entry_of(vector).size_bytes
    assert int.from_bytes(data[44:48], "little") == vector["crc32"]


@named
def test_the_committed_bytes_are_read_as_what_they_are(vector: dict[str, Any]) -> None:
    data, wanted = path(vector).read_bytes(), entry_of(vector)
    placed = parse_record(data, vector["lsn"], 0)
    assert placed is not None
    assert vector["kind"] in OWN or change.is_valid(placed.record)
    assert (placed.first, placed.epoch) == (vector["first"], vector["epoch"])
    assert placed.end == vector["lsn"] + len(data)
    record = placed.record
    assert (record.lsn, record.kind, record.meta) == (vector["lsn"], wanted.kind, wanted.meta)
    assert bytes(record.body) == b"".join(wanted.bodies)
    if vector["kind"] not in OWN:
        assert change.name_of(record) == vector["xid"]
        assert change.step_name(record.kind).upper() == vector["kind"]
        verbs = {change.PUT: "put", change.MOVE: "move", change.DROP: "drop"}
        told = [[verbs[operation[0]], operation[1]] for operation in change.operations_of(record)]
        assert told == [operation[:2] for operation in vector["operations"]]


def test_a_header_has_the_committed_bytes() -> None:
    for vector in HEADERS:
        data = path(vector).read_bytes()
        assert header_of(header(vector)) == data
        assert len(data) == SECTOR_BYTES
        assert int.from_bytes(data[32:36], "little") == vector["crc32"]
        assert parse_header(data) == header(vector)
        assert parse_header(data + b"records") == header(vector)


def test_there_is_a_file_for_each_vector_and_no_other() -> None:
    assert sorted(file.name for file in HERE.glob("*.bin")) == sorted(path(v).name for v in (*RECORDS, *HEADERS))


def test_the_vectors_cover_every_kind_and_every_operation() -> None:
    assert {vector["kind"] for vector in RECORDS} == {kind.name for kind in STEPS} | set(OWN)
    verbs = {operation[0] for vector in RECORDS for operation in vector.get("operations", ())}
    assert verbs == {"put", "move", "drop"}


@named
def test_every_flipped_bit_of_a_record_is_seen(vector: dict[str, Any]) -> None:
    data = path(vector).read_bytes()
    used = PREFIX_BYTES + len(entry_of(vector).meta) + sum(map(len, entry_of(vector).bodies))
    assert used + 7 >= len(data) >= used
    for bit in range(8 * used):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not is_good(bytes(flipped), vector)


@named
def test_every_cut_of_a_record_is_seen(vector: dict[str, Any]) -> None:
    data = path(vector).read_bytes()
    used = PREFIX_BYTES + len(entry_of(vector).meta) + sum(map(len, entry_of(vector).bodies))
    for size in range(used):
        assert not is_good(data[:size], vector)


@named
def test_a_record_is_good_in_its_place_only(vector: dict[str, Any]) -> None:
    data = path(vector).read_bytes()
    for elsewhere in (0, vector["lsn"] - 8, vector["lsn"] + 67108864):
        assert parse_record(data, elsewhere, 0) is None
    assert parse_record(bytes(512) + data, vector["lsn"] - 512, 512) is not None


def test_every_flipped_bit_of_a_header_is_seen() -> None:
    data = path(HEADERS[0]).read_bytes()
    for bit in range(8 * (journal_format.HEADER.size + journal_format.CRC.size)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((BadHeader, NewerHeader)) as refused:
            parse_header(bytes(flipped))
        assert refused.type is BadHeader


def test_names() -> None:
    assert name_of(0) == "0000000000000001.0000000000000000.log"
    assert parse_name(name_of(2**64 - 1, 7)) == (7, 2**64 - 1)
    whole = name_of(0)
    for name in (
        "0.log",
        "0000000000000000.log",
        whole.upper(),
        whole.replace("0.log", "A.log"),
        whole + ".new",
        whole[:-4],
        "FORMAT",
    ):
        assert parse_name(name) is None
