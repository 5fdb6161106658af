"""The queues that flow into a table: of one space or several, by name or by pattern, looked up again at each look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase

from xaqueue.endpoint import is_url
from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.lake.place import Place, QueueScan, check_known, place_at
from xaqueue.message import check_queue_name
from xaqueue.offline.spans import Position
from xaqueue.offline.verify import spaces_of
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.client.server_launcher import reach


@dataclass(slots=True)
class Source:
    """A queue. ``key``: its name in tables. ``found``: how far it was at the last look. ``done``: up to where it is in
    the table, and ``dead``: up to where its dead letters are."""

    key: str
    queue: str
    space: str
    reader: QueueScan
    owner: RemoteManager | None
    found: Position
    done: int = 0
    dead: int = 0

    @property
    def lag(self) -> int:
        return max(0, self.found.seen - self.done)


@dataclass(frozen=True, slots=True)
class _Space:
    id: str
    place: Place
    owner: RemoteManager | None


class Sources:
    """``space`` and ``queue``: one, several (a,b), or a pattern; a space may be the URL of its server."""

    def __init__(self, space: str, queue: str, held: ExitStack, *, is_only_look: bool = False) -> None:
        """held: what is open until the end. is_only_look: none comes later that would find what files lack."""
        self._space, self._held, self._is_only_look = space, held, is_only_look
        self._parts = [part.strip() for part in queue.split(",")]
        self._named = [check_queue_name(part) for part in self._parts if not _is_pattern(part)]
        self._spaces: dict[str, _Space] = {}
        self._sources: dict[str, Source] = {}
        self._consumes, self._server = False, ""

    def consume(self, server: str | None) -> None:
        """From now on each comes with a session with the owner of its space. server: its URL, if it is to be given."""
        if server and not is_url(self._space) and len(spaces_of(self._space)) > 1:
            raise InvalidArgument("--server is one URL and there are several spaces: run one ingest for each")
        self._consumes, self._server = True, server or ""

    def check(self) -> None:
        """Raises UnknownQueue for a name that no space defines and none has had a message of."""
        known = {name for path in self._paths() for name in self._reached(path).place.known().names}
        for name in self._named:
            check_known(self._space, name, known, f", {name}* waits for it")

    def look(self) -> list[Source]:
        """All there are now. Raises SpaceError for a space that is gone, or another one now."""
        return [source for path in self._paths() for source in self._look_at(path)]

    def _paths(self) -> list[str]:
        return [self._space] if is_url(self._space) else spaces_of(self._space)

    def _look_at(self, path: str) -> Iterator[Source]:
        space = self._reached(path)
        for found in space.place.positions(sorted(self._names(space.place))):
            key = f"xaqueue:{space.id}:{found.queue}"
            if key not in self._sources:
                reader = space.place.queue(found.queue)
                self._sources[key] = Source(key, found.queue, path, reader, space.owner, found)
            source = self._sources[key]
            if source.space != path:
                raise InvalidArgument(f"{source.space} and {path} are one space, or its copy: name one of them")
            source.found = found
            yield source

    def _names(self, place: Place) -> set[str]:
        patterns = [part for part in self._parts if _is_pattern(part)]
        there = place.names() if patterns else ()
        return {*self._named, *(name for name in there if any(fnmatchcase(name, one) for one in patterns))}

    def _reached(self, path: str) -> _Space:
        known = self._spaces.get(path)
        url = path if is_url(path) else ""
        place = known.place if known else place_at(path, url)
        if known is None:
            self._held.callback(place.close)
        space_id = place.id()
        if known is not None and known.id != space_id:
            raise SpaceError(f"{path} became another space meanwhile: run it again")
        owner = known.owner if known else None
        if self._consumes and owner is None:
            owner = reach(path, self._server or url)
            self._held.callback(owner.close)
            if owner.space_id != space_id:
                raise InvalidArgument(f"the server {self._server} serves another space than {path}: mend --server")
        place.check()
        if known is None and self._is_only_look:
            place.settle()
        self._spaces[path] = _Space(space_id, place, owner)
        return self._spaces[path]


def _is_pattern(text: str) -> bool:
    return not {"*", "?", "["}.isdisjoint(text)
