"""The queues that flow into a table: of one space or several, by name or by pattern, looked up again at each look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

from xaqueue.endpoint import is_url
from xaqueue.errors import Error, InvalidArgument, SpaceError
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
        self._settled = set[str]()
        self._consumes, self._server = False, ""
        self._failures: dict[tuple[str, str], Error] = {}

    def consume(self, server: str | None) -> None:
        """From now on each comes with a session with the owner of its space. server: its URL, if it is to be given."""
        if server and not is_url(self._space) and len(spaces_of(self._space)) > 1:
            raise InvalidArgument("--server is one URL and there are several spaces: run one ingest for each")
        self._consumes, self._server = True, server or ""

    @contextmanager
    def alone(self, space: str, queue: str = "") -> Iterator[None]:
        """What fails here is said at the end, and holds up no other space or queue."""
        try:
            yield
        except Error as error:
            self.fail(space, queue, error)

    def fail(self, space: str, queue: str, error: Error) -> None:
        """Raises what is wrong with what was asked, by itself."""
        if isinstance(error, InvalidArgument):
            raise error
        self._failures[space, queue] = error

    def has(self, one: Source) -> bool:
        """Whether nothing of it has failed."""
        return (one.space, one.queue) not in self._failures

    def check_failures(self) -> None:
        """Raises what has failed, once all else is done."""
        if len(self._failures) > 1 or len(self._paths()) > 1:
            failed = [(f"{space}: " * (space not in str(why)), why) for (space, _), why in self._failures.items()]
            if failed:
                raise SpaceError("; ".join(f"{where}{why}" for where, why in failed)) from failed[0][1]
        for error in self._failures.values():
            raise error

    def check(self) -> None:
        """Raises UnknownQueue for a name that no space defines and none has had a message of."""
        known = set[str]()
        for path in self._paths():
            with self.alone(path):
                known |= self._reached(path).place.known().names
        if len(self._failures) == len(self._paths()):
            self.check_failures()
        for name in self._named if not self._failures else ():
            check_known(self._space, name, known, f", {name}* waits for it")

    def look(self) -> list[Source]:
        """All there are now, but of what fails. Raises what has failed where that is all."""
        found = list[Source]()
        for path in self._paths():
            if (path, "") not in self._failures:
                with self.alone(path):
                    found += self._look_at(path)
        if not found:
            self.check_failures()
        return found

    def _paths(self) -> list[str]:
        return [self._space] if is_url(self._space) else spaces_of(self._space)

    def _look_at(self, path: str) -> Iterator[Source]:
        space = self._reached(path)
        if self._is_only_look and path not in self._settled:
            self._settled.add(path)
            for queue, late in space.place.settle(self._is_wanted).items():
                self._failures[path, queue] = late
        names = (name for name in self._names(space.place) if (path, name) not in self._failures)
        for found in space.place.positions(sorted(names)):
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
        there = place.names() if len(self._named) < len(self._parts) else ()
        return {*self._named, *filter(self._is_wanted, there)}

    def _is_wanted(self, name: str) -> bool:
        return name in self._named or any(fnmatchcase(name, part) for part in self._parts if _is_pattern(part))

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
        self._spaces[path] = _Space(space_id, place, owner)
        return self._spaces[path]


def _is_pattern(text: str) -> bool:
    return not {"*", "?", "["}.isdisjoint(text)
