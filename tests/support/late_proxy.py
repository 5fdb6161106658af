"""Between a client and its PostgreSQL: a COMMIT is kept back here until it is let go, as on a slow network."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

SOCKET = ".s.PGSQL.5432"
PATIENCE_S = 60.0


class LateProxy:
    """Listens in ``directory``. awaited: of the connection that sends this the next COMMIT is kept back, once, and none
    of threads that give signs beside it."""

    def __init__(self, directory: Path, server: Path) -> None:
        self._server = server / SOCKET
        self.awaited = b""
        self.has_come, self.let_go = threading.Event(), threading.Event()
        self._clients: list[socket.socket] = []
        self._servers: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(directory / SOCKET))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def hang_up(self) -> None:
        """On all clients; what they have sent arrives all the same."""
        for client in self._clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(PATIENCE_S)
        self.let_go.set()
        self.hang_up()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for one in (*self._clients, *self._servers, self._listener):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.connect(str(self._server))
            self._clients.append(client)
            self._servers.append(server)
            for source, target, is_request in ((client, server, True), (server, client, False)):
                self._threads.append(threading.Thread(target=self._pass, args=(source, target, is_request)))
                self._threads[-1].start()

    def _pass(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        is_it = False
        with suppress(OSError):  # the other way was cut
            while data := source.recv(65536):
                is_it |= is_request and bool(self.awaited) and self.awaited in data
                if is_it and b"COMMIT" in data:
                    self.awaited, is_it = b"", False
                    self.has_come.set()
                    assert self.let_go.wait(PATIENCE_S)
                with suppress(OSError):
                    target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
