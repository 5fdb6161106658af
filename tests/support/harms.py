"""Spaces that are to be mended: each of these makes one, where there is none."""

from __future__ import annotations

import time
from pathlib import Path

import xaqueue
from support import broken_journal
from support.block_space import put_block, put_message
from xaqueue.core.model import layout
from xaqueue.features.opening import create
from xaqueue.features.snapshots.restored import REMOVED

RANGE = f"{layout.queue_path('orders')}/range=0000000000000"


def harmed(root: Path) -> Path:
    """Damaged: a message's body, a message under a strange name, and a file that is nothing."""
    broken_journal.make(root)
    xaqueue.connect(root).close()  # which lets the journal go
    _, second, third, *_ = sorted((root / RANGE).iterdir())
    content = bytearray(second.read_bytes())
    content[-1] ^= 1
    second.write_bytes(content)
    third.rename(third.with_name("strange"))
    (root / layout.PREPARED / "junk").write_bytes(b"junk")
    return root


def blocks(root: Path) -> Path:
    """Of blocks of many messages a body, a table, a bitmap; both tables; and a bitmap whose block is gone."""
    create(root)
    (root / layout.QUEUES).write_text("[default]\n")
    put_message(root, 1)
    made = [put_block(root, first, 16, gone=0b101) for first in range(0x10, 0x60, 0x10)]
    for index in (0, 5, 7):
        made[0].harm_body(index)
    made[1].harm_table()
    made[2].harm_gone()
    made[3].harm_table()
    made[3].harm_copy()
    made[4].harm_copy()
    put_block(root, 0x60, 16, gone=0b1).file.unlink()
    return root


def overdue(root: Path) -> Path:
    """What is damaged has expired, and was not removed yet."""
    with xaqueue.connect(root, create=True) as connection:
        connection.enqueue("orders", b"first", ttl=0.02)
        connection.enqueue("orders", b"second")
    time.sleep(0.02)
    for path in (root / RANGE).iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    return root


def garbled(root: Path) -> Path:
    """What an open cannot do without, too."""
    harmed(root)
    (root / layout.FORMAT).unlink()
    (root / layout.QUEUES).write_text("[garbled")
    return root


def torn(root: Path) -> Path:
    """Killed, and a record of the journal is lost."""
    broken_journal.make(root)
    broken_journal.damage(root, 2)
    return root


def replaceable(root: Path) -> Path:
    """A snapshot was taken, and then a message, and all of it was damaged; a branch of then is decided."""
    broken_journal.make(root)
    with xaqueue.connect(root) as connection:
        connection.snapshot()
        connection.enqueue("orders", b"later")
        connection.commit()
        connection.enqueue("later", b"later")
    for path in (root / layout.queue_path("later")).rglob("*.*"):
        path.write_bytes(b"garbled")
    (root / layout.QUEUES).write_text("[garbled")
    return root


def littered(root: Path) -> Path:
    """Years ago, and just now; the next open does so as well."""
    broken_journal.make(root)
    (root / RANGE / "strange").write_bytes(b"strange")
    (root / REMOVED / "20200101T000000Z").mkdir(parents=True)
    (root / REMOVED / "20200101T000000Z" / "old").write_bytes(b"old")
    (root / REMOVED / "mine").mkdir()
    (root / layout.QUARANTINE / "junk").write_bytes(b"junk")
    return root


def spent(root: Path) -> Path:
    """What is damaged is the only message of a range to which none comes any more."""
    with xaqueue.connect(root, create=True) as connection:
        connection.enqueue("orders", b"first")
    used = layout.Watermark(layout.RANGE_SIZE, layout.RANGE_SIZE)
    (root / layout.watermark_path("orders")).write_bytes(layout.format_watermark(used))
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"second")
    (first,) = (root / RANGE).iterdir()
    first.write_bytes(first.read_bytes()[:-1] + b"x")
    return root
