"""A proxy between a client and its server that cuts the connection at a chosen frame."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgpack

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Cut:
    """Where: before, in the middle of, or after the nth request or answer of one connection, from 1.

    After a request the server may or may not get to it; before an answer it has carried it out. Late: what comes behind
    the nth request is kept back, up to the next one, and gets to the server when it is let go. Early: nothing gets to
    the server that comes behind the request before it, not even what is pipelined.
    """

    frame: str
    number: int
    when: str

    def __str__(self) -> str:
        return f"{self.when} {self.frame} {self.number}"


class CuttingProxy:
    """Listens at ``path``; the connection that is armed is cut, those after it are not."""

    def __init__(self, path: Path, server: Path) -> None:
        self.path = path
        self._server = server
        self.cut: Cut | None = None
        self.connections = 0
        self.has_cut = threading.Event()
        self.let_go = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._pairs: list[_Pair] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"xaq+unix://{self.path}"

    def arm(self, cut: Cut | None) -> None:
        """For the next connection, and once."""
        self.cut = cut
        self.has_cut.clear()

    def hang_up(self) -> None:
        """On everybody; who connects then is served."""
        for pair in self._pairs:
            pair.hang_up()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # which ends the loop
        self._threads[0].join(PATIENCE_S)
        self.let_go.set()
        self.hang_up()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.connect(str(self._server))
            cut, self.cut = self.cut, None
            self.connections += 1
            pair = _Pair(client, server, cut, self.has_cut, self.let_go)
            self._pairs.append(pair)
            for way in (pair.requests, pair.answers):
                thread = threading.Thread(target=way)
                self._threads.append(thread)
                thread.start()


class _Pair:
    """One connection through the proxy."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        cut: Cut | None,
        has_cut: threading.Event,
        let_go: threading.Event,
    ) -> None:
        self._sockets = (client, server)
        self._let_go = let_go
        self._cut = cut
        self._has_cut = has_cut
        self._open = 2
        self._mute = False
        """Requests were cut: their answers are, too."""
        self._mutex = threading.Lock()

    def hang_up(self) -> None:
        for one in self._sockets:
            with suppress(OSError):  # it was, already
                one.shutdown(socket.SHUT_RDWR)

    def requests(self) -> None:
        self._pass(self._sockets[0], self._sockets[1], "request")

    def answers(self) -> None:
        self._pass(self._sockets[1], self._sockets[0], "answer")

    def _pass(self, source: socket.socket, target: socket.socket, frame: str) -> None:
        try:
            number, kept_back = 0, b""
            for data, counts in _frames(source):
                number += counts
                if self._cut is not None and (frame, self._cut.when) == ("request", "late"):
                    if number > self._cut.number or not counts:
                        kept_back += data
                        if not counts:
                            continue
                        self._has_cut.set()
                        self._sockets[0].shutdown(socket.SHUT_RDWR)
                        self._let_go.wait(PATIENCE_S)
                        target.sendall(kept_back)
                        return
                elif self._cut == Cut(frame, number + 1, "early") and not counts:
                    self._mute = True
                    self._has_cut.set()
                    return
                elif counts and self._cut is not None and (frame, number) == (self._cut.frame, self._cut.number):
                    kept = {"early": 0, "before": 0, "within": len(data) // 2, "after": len(data)}[self._cut.when]
                    self._mute = frame == "request"
                    self._has_cut.set()  # before anybody can act on what is let through
                    target.sendall(data[:kept])
                    return
                if self._mute and frame == "answer":
                    return
                target.sendall(data)
        except OSError:
            return  # the other way was cut
        finally:
            self.hang_up()
            with self._mutex:
                self._open -= 1
                last = not self._open
            if last:
                for one in self._sockets:
                    one.close()


def _frames(source: socket.socket) -> Iterator[tuple[bytes, bool]]:
    """The frames that come, each with whether it counts: a notification does not."""
    unpacker, data, begin = msgpack.Unpacker(raw=False), b"", 0
    while received := source.recv(65536):
        unpacker.feed(received)
        data += received
        for value in unpacker:
            end = unpacker.tell() - begin
            yield data[:end], value[0] != 2
            data, begin = data[end:], begin + end
