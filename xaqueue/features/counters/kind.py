"""The file of counters, as an open and a look find it."""

from __future__ import annotations

from xaqueue.core.model import layout
from xaqueue.core.model.record_kinds import Looking, Opening, RecordKind
from xaqueue.core.storage.fs import FileSystem, replace_file
from xaqueue.features.counters import counters
from xaqueue.features.counters.values import COUNTERS, Counting, encode
from xaqueue.features.streams.message_files import message_names


class _Uncounted:
    """Of the space, by queue: how many messages more it had when it was closed than its counters say."""

    def __init__(self) -> None:
        self.queues: dict[str, int] = {}


class CounterKind(RecordKind):
    others = (COUNTERS, f".{COUNTERS}.new")
    copied = (COUNTERS,)

    def made(self, fs: FileSystem, now_us: int) -> None:
        """From then on a space that has no file of them has lost it."""
        if not fs.exists(COUNTERS):
            replace_file(fs, COUNTERS, encode(Counting(now_us, now_us, 0, closed=True), {}))

    def begin(self, opening: Opening) -> None:
        """The queues go on from what was counted before."""
        space = opening.space
        file, note = counters.file_of(space), opening.note if space.read_only is None else (lambda _: None)
        for name, before in file.load(space.now_us(), note).items():
            counters.go_on(space.queue(name), before)
        for name, there in file.closed_with.items():
            space.memory_of(_Uncounted).queues[name] = there - counters.counters_of(space.queue(name)).balance

    def finish(self, opening: Opening) -> None:
        """Tells what was there when the space was closed, and left by no way that is counted; others may use it by
        now."""
        space = opening.space
        for name, more in sorted(space.memory_of(_Uncounted).queues.items()):
            place = layout.queue_path(name)
            with space.lock:
                queue = space.queue(name)
                gone = counters.counters_of(queue).balance + more - len(queue.index)
            gone -= sum(f"{place}/" in text for text in space.report.quarantined)
            if gone > 0:
                opening.note(
                    f"{gone:,} messages of queue {name} are gone: they were in {place}/ when the space was closed. "
                    "Bring the directory back from a copy, with nobody at work, or send them again"
                )

    def check_space(self, look: Looking) -> None:
        counted = counters.read(look.fs)
        if counted is None:
            if look.fs.exists(COUNTERS):
                look.leftover(COUNTERS, "cannot be read: the next open begins to count anew")
        elif not look.live:
            self._gone(look, counted[0])

    def _gone(self, look: Looking, counting: Counting) -> None:
        """What was there when the space was closed, where nobody had it open since."""
        for queue, there in counting.messages.items() if counting.closed and counting.epoch == look.epoch else ():
            gone = there - len(message_names(look.fs, queue))
            if gone > 0:
                problem = f"{gone:,} of {there:,} messages that were here when the space was closed are gone"
                look.broken(layout.queue_path(queue), problem)
