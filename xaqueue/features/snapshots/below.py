"""The port of a directory below that of another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xaqueue.core.storage.fs import FileSystem


class Below:
    """The port of a directory below that of another one."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._above = f"{directory}/"
        self.room = fs.room
        self.sync_all = fs.sync_all

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Of every other call the arguments that are text are paths."""
        call, above = getattr(self._fs, name), self._above

        def below(*arguments: Any) -> Any:
            return call(*(f"{above}{one}".rstrip("/") if isinstance(one, str) else one for one in arguments))

        return below
