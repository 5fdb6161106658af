"""A space as a query finds it: in a directory, or at a server, which reads its own files for whoever asks.

Both are asked the same, and what they give is checked by who gets it. A session with a server is made where it is
first needed, in the driver and in each task, connects again by itself, and goes on behind the page that it had; of
several addresses it asks the next one. Each answer is looked at for the space that it is of: under an address another
one may come.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from xaqueue.core.model.format import check_recovered, read_format, why_behind
from xaqueue.core.model.layout import COMMITTED, watermark_path
from xaqueue.core.model.options import suggestion
from xaqueue.core.owner.definitions_file import usable_definitions
from xaqueue.errors import AccessDenied, ConnectionLost, ResourceFailed, SpaceError, UnknownQueue
from xaqueue.offline.reader import queues
from xaqueue.offline.redo_view import wait_followed
from xaqueue.offline.spans import Found, Position, QueueFiles

if TYPE_CHECKING:
    from xaqueue.rpc.client.manager import RemoteManager

CONNECT_S = 30.0
"""For how long a server that does not answer is tried again."""
POLL_S = 0.1
LARGE_BYTES = 8 * 1024 * 1024
"""Of a file, from which on no room is kept for another one."""


class QueueScan(Protocol):
    """A queue, whoever reads its files."""

    queue: str

    def position(self) -> Position: ...
    def ranges(self) -> list[int]: ...
    def tries(self) -> dict[int, int]: ...
    def files(self, after: int, upto: int) -> Iterator[Found]: ...
    def sizes(self, after: int, upto: int) -> Iterator[tuple[int, int]]: ...
    def last_before(self, time_ms: int, upto: int) -> int: ...


class Known(NamedTuple):
    """The names of a space's queues, and whether any other may come."""

    names: frozenset[str]
    any_queue: bool


class Directory:
    """A space by its files."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._queues: dict[str, QueueFiles] = {}

    def id(self) -> str:
        """Raises SpaceError."""
        return read_format(self._path, is_expected=True).id

    def identity(self) -> object:
        """The same for the same space, by whatever path."""
        status = os.stat(self._path)  # noqa: PTH116
        return status.st_dev, status.st_ino

    def is_behind(self) -> bool:
        """Whether its files alone cannot be believed, since nobody has opened it behind a crash."""
        return bool(why_behind(self._path))

    def check(self) -> None:
        check_recovered(self._path)

    def settle(self, is_wanted: Callable[[str], bool]) -> dict[str, SpaceError]:
        """What was committed to these queues before it is called is in the files, but of those that it returns."""
        return wait_followed(self._path, is_wanted)

    def names(self) -> Iterable[str]:
        """Of the queues that had a message."""
        return queues(self._path)

    def known(self) -> Known:
        definitions, _ = usable_definitions(self._path)
        return Known(frozenset((*queues(self._path), *definitions.queues)), definitions.default is not None)

    def positions(self, names: Iterable[str]) -> list[Position]:
        return [self.queue(name).position() for name in names]

    def queue(self, name: str) -> QueueScan:
        if name not in self._queues:
            self._queues[name] = QueueFiles(self._path, name)
        return self._queues[name]

    def marks(self, names: Iterable[str], *, all_queues: bool) -> list[str]:
        """Files, of which one is another when something has come in these queues, or any; none where that is asked."""
        return [f"{self._path}/{path}" for path in (*map(watermark_path, names), *([COMMITTED] if all_queues else []))]

    def close(self) -> None:
        pass


class Served:
    """A space at a server. For several threads, one call at a time."""

    def __init__(self, url: str, space_id: str = "") -> None:
        """space_id: of the space that it is to be; else it is the one that is reached first."""
        self._session: RemoteManager | None = None
        self._url, self._space_id = url, space_id
        self._lock = threading.Lock()

    def id(self) -> str:
        """Raises SpaceError where it cannot be reached, what the server refuses with."""
        with self._lock:
            return self._reached().space_id

    def identity(self) -> object:
        return self.id()

    def is_behind(self) -> bool:
        return False  # its server has opened it

    def check(self) -> None:
        pass

    def settle(self, is_wanted: Callable[[str], bool]) -> dict[str, SpaceError]:
        return {}  # it sees to that where it is asked for positions

    def names(self) -> Iterable[str]:
        return [one["queue"] for one in self.ask("positions", [])]

    def known(self) -> Known:
        names = {*self.names()}
        with self._lock:
            said = self._reached().space
        return Known(frozenset(names | {*said["queues"]}), bool(said["any_queue"]))

    def marks(self, names: Iterable[str], *, all_queues: bool) -> list[str]:
        return []

    def positions(self, names: Iterable[str]) -> list[Position]:
        from xaqueue.rpc.wire import decode

        wanted = list(names)
        return decode(list[Position], self.ask("positions", wanted)) if wanted else []

    def queue(self, name: str) -> QueueScan:
        return ServedQueue(self, name)

    def ask(self, method: str, *params: Any) -> Any:
        """Raises SpaceError where it cannot be reached, or is another space, and what the server raises."""
        deadline = monotonic() + CONNECT_S
        with self._lock:
            while True:
                session = self._reached()
                try:
                    answer = session.call_with_retry(method, *params)
                    break
                except (ConnectionLost, AccessDenied) as error:
                    raise SpaceError(f"{self._url}: {error}") from error
                except ResourceFailed:  # it is fenced, and ends: whoever has the space then is asked
                    if monotonic() >= deadline:
                        raise
                    session.close()
                    self._session = None
                    sleep(POLL_S)
            if session.space_id != self._space_id:
                raise SpaceError(
                    f"{self._url} serves another space, {session.space_id[:8]}, than the one that is read, "
                    f"{self._space_id[:8]}: mend the address"
                )
            return answer

    def let_go(self) -> None:
        """Of the memory that a large answer took."""
        with self._lock:
            if self._session is not None:
                self._session.let_go()

    def _reached(self) -> RemoteManager:
        if self._session is None:
            from xaqueue.rpc.client.manager import remote_manager  # who reads files does without RPC

            try:
                self._session = remote_manager(self._url, connect_s=CONNECT_S)
            except (ConnectionLost, AccessDenied) as error:
                raise SpaceError(f"{self._url}: {error}") from error
            self._space_id = self._space_id or self._session.space_id
        return self._session

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    __del__ = close


class ServedQueue:
    """A queue of it."""

    def __init__(self, place: Served, queue: str) -> None:
        self._place = place
        self.queue = queue

    def position(self) -> Position:
        (found,) = self._place.positions([self.queue])
        return found

    def ranges(self) -> list[int]:
        return list(self._place.ask("ranges", self.queue))

    def tries(self) -> dict[int, int]:
        return dict(self._place.ask("tries", self.queue))

    def files(self, after: int, upto: int) -> Iterator[Found]:
        while after < upto:
            last, page = self._place.ask("span", self.queue, after, upto)
            if page and len(page[-1][3]) > LARGE_BYTES:
                self._place.let_go()
            page.reverse()
            while page:  # nobody holds what was read while the next page comes
                yield tuple(page.pop())
            after = last

    def kept(self, columns: list[str], after: int, upto: int) -> Iterator[bytes]:
        """What has left it, as streams of Arrow's."""
        while after < upto:
            after, page = self._place.ask("span_kept", self.queue, after, upto, columns)
            yield page

    def sizes(self, after: int, upto: int) -> Iterator[tuple[int, int]]:
        while after < upto:
            after, found = self._place.ask("span_sizes", self.queue, after, upto)
            yield from map(tuple, found)

    def last_before(self, time_ms: int, upto: int) -> int:
        return int(self._place.ask("span_before", self.queue, time_ms, upto))


Place = Directory | Served


def check_known(space: str, name: str, known: Collection[str], more: str = "") -> None:
    """Raises UnknownQueue for a name that nothing defines and that has had no message: a slip of the pen."""
    if name not in known:
        raise UnknownQueue(
            f"{space} has no queue {name}{suggestion(name, known)}; it has {', '.join(sorted(known)) or 'none yet'}. "
            f"`xaqueue define {name}` makes it{more}"
        )


def check_settled(place: Place, is_wanted: Callable[[str], bool]) -> None:
    """Raises SpaceError where one of these queues lacks in the files what was committed before."""
    for late in place.settle(is_wanted).values():
        raise late


def place_at(path: str, url: str = "", space_id: str = "") -> Place:
    """url: of the server that reads for this one; empty where the directory is at hand."""
    return Served(url, space_id) if url else Directory(path)
