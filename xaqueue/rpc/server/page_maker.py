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
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

import msgpack

from xaqueue.core.storage.scheduling import Threads
from xaqueue.errors import Error, RetryLater
from xaqueue.rpc.wire import Packed, error_of, error_to, plain

NICE = 10
REQUEST, ANSWER = struct.Struct(">I"), struct.Struct(">BI")
TRIES = 2
BESIDE_COMMITS = 32 * 1024 * 1024
"""Bytes a second while others commit: to hand a page on takes the server a millisecond."""


class PageMaker:
    """Started where it is first asked."""

    def __init__(self, root: Path, waiting: Threads, commits: Callable[[], int]) -> None:
        """commits: a number that grows as others commit, who are let before the next page."""
        self._root, self._waiting, self._commits = root, waiting, commits
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
            command = [sys.executable, "-P", "-m", __name__, os.fspath(self._root)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
            self._process = process
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
            process.kill()
            process.communicate()


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


def main() -> None:
    from xaqueue.rpc.methods.pages import Pages

    with suppress(OSError):
        os.nice(NICE)
    pages = Pages(sys.argv[1])
    answer(pages.calls, sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
