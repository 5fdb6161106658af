"""Pages of a space's files are made by a process beside the server, one at a time: who commits does not wait for it.

It reads the directory as any other process does, at a lower priority, and ends with the server. What it answers goes
to the client as it is.

    request    length, 4 bytes, and msgpack of [method, params]
    answer     0 or 1, length, 4 bytes, and msgpack: an error's map, or the result
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

import msgpack

from xaqueue.core.model.message_name import parse_any
from xaqueue.core.storage.scheduling import Threads
from xaqueue.errors import Error, RetryLater
from xaqueue.offline.spans import Found, Position, QueueFiles
from xaqueue.rpc.wire import PAGE, PAGE_BYTES, Packed, error_of, error_to, plain

NICE = 10
REQUEST, ANSWER = struct.Struct(">I"), struct.Struct(">BI")
TRIES = 2
BESIDE_COMMITS = 32 * 1024 * 1024
"""Bytes a second while others commit: to hand a page on takes the server a millisecond."""

SIZES = 10_000
"""Of one answer, at most."""
QUEUES = 1_000
"""Whose readers are kept."""
GOING = 32
"""Spans that are read page by page."""


class PageMaker:
    """Started where it is first asked."""

    def __init__(self, root: Path, waiting: Threads, commits: Callable[[], int], module: str = "") -> None:
        """commits: a number that grows as others commit, who are let before the next page. module: what runs there;
        this one, where no other is named."""
        self._root, self._waiting, self._commits, self._module = root, waiting, commits, module or __name__
        self._rests_until_s = 0.0
        self._lock = threading.Lock()
        self._free = waiting.condition(self._lock)
        self._is_busy = False
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, method: str, *params: Any) -> Packed:
        """Raises what it fails with there; RetryLater where there is no such process."""
        request = msgpack.packb((method, params))
        with self._lock:
            while self._is_busy or (rest_s := self._rests_until_s - monotonic()) > 0:
                self._free.wait(None if self._is_busy else rest_s)
            self._is_busy = True
        before, answer = self._commits(), Packed()
        try:
            answer = self._waiting.run(partial(self._exchange, REQUEST.pack(len(request)) + request))
            return answer
        finally:
            with self._lock:
                self._is_busy = False
                if self._commits() != before:
                    self._rests_until_s = monotonic() + len(answer) / BESIDE_COMMITS
                self._free.notify_all()

    def _exchange(self, request: bytes) -> Packed:
        for _ in range(TRIES):
            try:
                return self._answer_to(request)
            except (OSError, EOFError) as error:
                failed = error
                self.stop()
        raise RetryLater(f"the process that reads pages has ended ({failed}): ask again") from failed

    def _answer_to(self, request: bytes) -> Packed:
        process = self._process
        if process is None:
            command = [sys.executable, "-P", "-m", self._module, os.fspath(self._root)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
            self._process = process
            weakref.finalize(self, _end, process)  # of a server that was given up
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request)
        is_right, size = ANSWER.unpack(_exactly(process.stdout, ANSWER.size))
        answer = _exactly(process.stdout, size)
        if not is_right:
            raise error_of(msgpack.unpackb(answer))
        return Packed(answer)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


class Pages:
    """What the process that reads them answers."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._readers: dict[str, QueueFiles] = {}
        self._going: dict[tuple[str, int, int], Iterator[Found]] = {}
        """Spans of which a page was asked for, and more is there: a directory is listed once for all of them."""
        made = (self.positions, self.span, self.span_sizes, self.span_before, self.ranges, self.tries)
        self.calls: dict[str, Callable[..., Any]] = {call.__name__: call for call in made}

    def _reader(self, queue: str) -> QueueFiles:
        if queue not in self._readers:
            if len(self._readers) >= QUEUES:
                self._readers.clear()
            self._readers[queue] = QueueFiles(self._root, queue, even_behind=True)
        return self._readers[queue]

    def positions(self, named: Iterable[str]) -> list[Position]:
        return [self._reader(queue).position() for queue in named]

    def span(self, queue: str, after: int, upto: int) -> tuple[int, list[Found]]:
        reader, settled = self._reader(queue), upto
        files = self._going.pop((queue, after, upto), None)
        if files is None:
            settled = reader.watermark()  # before a directory is listed: up to there nothing comes any more
            files = reader.files(after, upto)
        found: list[Found] = []
        size_bytes = 0
        for one in files:
            found.append(one)
            size_bytes += len(one[3])
            if size_bytes >= PAGE_BYTES or len(found) >= PAGE:
                named = parse_any(one[1])
                last = min(named.last, upto) if named is not None else one[0]
                if upto <= settled:
                    self._keep((queue, last, upto), files)
                return last, found
        return upto, found

    def _keep(self, span: tuple[str, int, int], files: Iterator[Found]) -> None:
        while len(self._going) >= GOING:
            del self._going[next(iter(self._going))]
        self._going[span] = files

    def span_sizes(self, queue: str, after: int, upto: int) -> tuple[int, list[tuple[int, int]]]:
        some = list(islice(self._reader(queue).sizes(after, upto), SIZES))
        return (some[-1][0] if len(some) == SIZES else upto), some

    def span_before(self, queue: str, time_ms: int, upto: int) -> int:
        return self._reader(queue).last_before(time_ms, upto)

    def ranges(self, queue: str) -> list[int]:
        return self._reader(queue).ranges()

    def tries(self, queue: str) -> list[tuple[int, int]]:
        return list(self._reader(queue).tries().items())


def _exactly(stream: Any, size: int) -> bytes:
    found: bytes = stream.read(size)
    while len(found) < size:
        more = stream.read(size - len(found))
        if not more:
            raise EOFError("it said no more")
        found += more
    return found


def answer(calls: Mapping[str, Callable[..., Any]], asked: BinaryIO, said: BinaryIO) -> None:
    """What the process does until nobody asks any more."""
    while len(head := asked.read(REQUEST.size)) == REQUEST.size:
        method, params = msgpack.unpackb(asked.read(*REQUEST.unpack(head)))
        try:
            is_right, result = True, calls[method](*params)
        except OSError as error:
            result = RetryLater(f"the space's files cannot be read now ({error.strerror}): ask again")
            is_right, result = False, error_to(result)
        except Error as error:
            is_right, result = False, error_to(error)
        packed = msgpack.packb(result, default=plain)
        said.write(ANSWER.pack(is_right, len(packed)))
        said.write(packed)
        said.flush()


def serve(calls: Mapping[str, Callable[..., Any]]) -> None:
    with suppress(OSError):
        os.nice(NICE)
    answer(calls, sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    serve(Pages(sys.argv[1]).calls)
