"""What the names and files of a queue tell of its messages: how many are ready, since when, and what they weigh.

No message's file is opened. Where there are very many, the sizes of some stand for all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from xaqueue.core.model import message_name, records
from xaqueue.core.model.entry import Retry
from xaqueue.core.model.message_name import ID_DIGITS, PLAIN_NAME
from xaqueue.core.storage.fs import FileSystem
from xaqueue.features.streams.message_files import QueueMessages
from xaqueue.offline.redo_view import of_those_there

MEASURED = 4096
"""So many files are measured in one look, at most about; each queue has its share of that, and at least so many:"""
SHARE = 4


class Glance(NamedTuple):
    """``oldest``: when the first message that is ready was committed, int microseconds UTC; None where none is."""

    ready: int
    delayed: int
    held: int
    in_doubt: int
    exhausted: int
    oldest: int | None
    size_bytes: int
    is_estimated: bool


def share(queues: int) -> int:
    """So many files of each of so many queues are measured."""
    return max(MEASURED // max(queues, 1), SHARE)


def sum_of(sizes: Collection[int], messages: int) -> int:
    """The bytes of so many messages, of which some, or all, have these."""
    return sum(sizes) * messages // len(sizes) if 0 < len(sizes) < messages else sum(sizes)


class QueueFiles:
    """Of the queues of a space, as they are now."""

    def __init__(self, fs: FileSystem, now_us: int, most: int) -> None:
        """most: so many files of each queue are measured."""
        self._fs = fs
        self._now_us = now_us
        self._most = most

    def glance(self, queue: str, messages: QueueMessages, held: Mapping[str, bool], max_tries: int) -> Glance:
        """held: ids, in hex, of messages that branches hold, and whether one in doubt does."""
        ready, holders, delayed, exhausted = list[str](), list[bool](), 0, 0
        named, retries = sorted(messages.names), records.read_retries(self._fs, queue)
        for name in named:
            place = message_name.parse(name) if retries or len(name) > PLAIN_NAME else None
            retry = retries.get(place[:2]) if place is not None else None
            if held and name[ID_DIGITS] in held:
                holders.append(held[name[ID_DIGITS]])
            elif retry is not None and 0 < max_tries <= retry.tries:
                exhausted += 1
            elif place is not None and self._is_delayed(place[2], retry):
                delayed += 1
            else:
                ready.append(name)
        files = sorted(messages.files)
        some = files[:: -(-len(files) // self._most) or 1]
        sizes = list(of_those_there(self._fs.size, map(messages.path, some)))
        times = list(of_those_there(self._fs.modified_ns, map(messages.path, ready[:1])))
        since = times[0] // 1000 if times else None
        counts = len(ready), delayed, len(holders), sum(holders), exhausted
        return Glance(*counts, since, sum_of(sizes, len(files)), len(some) < len(files))

    def _is_delayed(self, tags: str, retry: Retry | None) -> bool:
        until = max((retry.not_before if retry is not None else 0) or 0, message_name.read_tags(tags).not_before or 0)
        return until > self._now_us
