"""Whether committed/ has what the journal no longer tells of: a journal whose end was lost looks like one that ended.

A message gets its file only once its record is on disk, and numbers only go up. So where the records name messages of
a queue, no file of it and no watermark is above the highest of them; what is was acknowledged, and its record is lost.
A queue of which the records say nothing proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from xaqueue.space.engine import redo
from xaqueue.space.model import layout
from xaqueue.space.model.change import highest_numbers
from xaqueue.space.model.message_name import parse_seq
from xaqueue.storage.fs import NO_ROOM, FileSystem
from xaqueue.storage.journal_format import Record
from xaqueue.storage.journal_reader import damage_of


def check_end(fs: FileSystem, records: Sequence[Record], end: int) -> None:
    """JournalDamaged where the directories prove that records are lost behind these, which end at that LSN. Changes
    nothing.
    """
    for queue, seq in highest_numbers(records).items():
        beyond = _highest(fs, queue, seq)
        if beyond > seq:
            raise damage_of(
                layout.JOURNAL,
                f"it was cut short at LSN {end:#x}: committed/ has message {beyond} of queue {queue}, and the last one "
                f"that the journal tells of is {seq}",
                end,
            )


def _highest(fs: FileSystem, queue: str, seq: int) -> int:
    """The highest number of the queue from this one on, by its watermark and its files."""
    found = seq
    with _what_can_be_read():
        watermark = layout.parse_watermark(fs.read(layout.watermark_path(queue), layout.WATERMARK_BYTES))
        found = max(found, watermark.published if watermark is not None else 0)
    with _what_can_be_read():
        for name in fs.list(layout.queue_path(queue)):
            number = layout.parse_range(name)
            if number is not None and number >= seq >> layout.RANGE_BITS:
                with _what_can_be_read():
                    found = _highest_message(fs, f"{layout.queue_path(queue)}/{name}", found)
    return found


def _highest_message(fs: FileSystem, directory: str, above: int) -> int:
    """The highest number of a message there, or this one. A name alone proves nothing: anybody may have put it."""
    names = sorted(name for name in fs.list(directory) if (parse_seq(name) or 0) > above)
    paths = (f"{directory}/{name}" for name in reversed(names))
    proof = next((path for path in paths if redo.is_that(fs, path, path)), None)
    return above if proof is None else parse_seq(proof.rpartition("/")[2]) or 0


@contextmanager
def _what_can_be_read() -> Iterator[None]:
    """A file that cannot be read proves nothing; that there is no descriptor for it says nothing of it."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
