"""A server in a thread of this process: as fast to start as a space is to open, and its space can be looked at."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from xaqueue.rpc.doors import Listen
from xaqueue.rpc.limits import Limits
from xaqueue.rpc.server import Server
from xaqueue.space.engine.state import Space
from xaqueue.space.owner import open as attach_room

PATIENCE_S = 60.0


class ServerThread:
    """Serves ``root`` at ``path`` until ``stop`` or ``kill``."""

    def __init__(
        self,
        root: Path,
        path: Path,
        *,
        sync: str | None = None,
        limits: Limits | None = None,
        listen: Listen | None = None,
    ) -> None:
        self.root = root
        self.path = path
        self._made: Server | None = None
        self._failure: BaseException | None = None
        ready = threading.Event()

        async def main() -> None:
            server = Server(root, sync=sync, limits=limits)
            await server.recover()
            try:
                await server.doors.listen(replace(listen or Listen(), unix=(path,)))
            except BaseException:
                await server.give_up()
                raise
            self._made = server
            await server.serve(ready.set)

        def run() -> None:
            try:
                asyncio.run(main())
            except BaseException as error:
                self._failure = error
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, name="server")
        self._thread.start()
        assert ready.wait(PATIENCE_S)
        if self._failure is not None:
            raise self._failure

    @property
    def url(self) -> str:
        return f"xaq+unix://{self.path}"

    @property
    def server(self) -> Server:
        assert self._made is not None
        return self._made

    @property
    def space(self) -> Space:
        return self.server.space

    def call(self, call: Callable[[], Any]) -> Any:
        """The result of a call in the loop's thread."""
        done = threading.Event()
        results: list[Any] = []

        def perform() -> None:
            results.append(call())
            done.set()

        self.server.loop.call_soon_threadsafe(perform)
        assert done.wait(PATIENCE_S)
        return results[0]

    def stop(self) -> None:
        if self._thread.is_alive():
            self.server.loop.call_soon_threadsafe(self.server.stop)
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive()

    def kill(self) -> None:
        """The memory is gone, the kernel's cache and the lock on the directory are as a dead process leaves them."""

        def die() -> None:
            attached = attach_room._attached.pop(self.root.resolve(), None)
            if attached is not None:
                if attached.watch is not None:
                    attached.watch.stop()
                attached.space.abandon()
                attached.lock.release()
                if attached.watchdog is not None:
                    attached.watchdog.stop()
            for session in self.server.sessions:
                session._transport.abort()

        def stop_background() -> None:
            attached = attach_room._attached.get(self.root.resolve())
            for thread in attached.background if attached is not None else []:
                thread.stop()

        stop_background()
        self.call(die)
        self.stop()
