"""Many files are read at once, and come in the order in which they were asked for.

On a cold disk this takes a third of the time; from memory it takes a little longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")

READERS = 4
SLICE = 128
"""Files that one thread reads at a time."""


class Readers:
    """A few threads, begun where they are needed."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Readers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, read: Callable[[str], T], paths: Sequence[str]) -> Iterator[T]:
        if len(paths) <= SLICE:
            return map(read, paths)
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(READERS, "xaqueue-load")
        slices = (paths[first : first + SLICE] for first in range(0, len(paths), SLICE))
        return chain.from_iterable(self._pool.map(lambda part: [read(path) for path in part], slices))
