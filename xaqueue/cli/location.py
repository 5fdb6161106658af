"""Which space a command means, a directory or a server's URL, and how it reaches it.

Where the directory is being served, work goes to its owner by itself: the owner file says under which URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from xaqueue.cli.output import progress_bar
from xaqueue.connection import Connection
from xaqueue.core.model import layout
from xaqueue.core.model.format import read_format
from xaqueue.core.storage.ids import fresh_id
from xaqueue.endpoint import is_url, parse_open_string
from xaqueue.errors import InvalidArgument, SpaceError

if TYPE_CHECKING:
    from xaqueue.core.engine.state import Space
    from xaqueue.features.session import Session
    from xaqueue.rpc.client.manager import RemoteManager

SPACE_VARIABLE = "XAQUEUE_SPACE"
OPEN_STRING_VARIABLE = "NDRX_XA_OPEN_STR"
"""Of Enduro/X, which names the space in an environment that was made for its disk queue."""
DEFAULT = "queue"
"""The space where none is named: in the current directory, as what a project or a service has of its own."""
CONNECT_S = 1.0
"""For how long a command tries to reach a server that does not answer."""
SERVER_S = 5.0
"""And one that is gone from its directory, which the command has for a moment then."""


def _given(ctx: typer.Context, space: str | None) -> str | None:
    """The option behind the verb, else the one before it, else the environment's."""
    space = space if space is not None else ctx.find_root().params.get("space")
    empty = "--space" if space == "" else SPACE_VARIABLE if not space and SPACE_VARIABLE in os.environ else ""
    if empty:  # who writes --space "$SHOP" and has no SHOP does not mean the one that is here
        raise InvalidArgument(f"{empty} is empty: is a variable unset? Name a directory or a URL, or leave it out")
    return space


def _option(metavar: str, what: str) -> Any:
    text = f"{what}; without it {SPACE_VARIABLE}, then ./{DEFAULT}."
    return typer.Option("--space", metavar=metavar, help=text, show_default=False, callback=_given)


SpaceOption = Annotated[str | None, _option("DIR|URL", "The queue space, or its server")]
DirectoryOption = Annotated[str | None, _option("DIR", "The queue space's directory")]
"""Of a command that works on the directory itself."""
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it, and do not ask.")]
CatalogOption = Annotated[
    str | None, typer.Option("--catalog", metavar="NAME|URI", help="Of Iceberg, if not PyIceberg's default.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Change nothing; say what would be done, or why it is refused.")
]


@dataclass(frozen=True, slots=True)
class Location:
    """Where a space is: a directory of this machine, or else behind a server's URL."""

    directory: str = ""
    url: str = ""

    def __str__(self) -> str:
        return self.directory or self.url

    @property
    def place(self) -> str:
        """The same wherever it is looked from."""
        return self.url or str(Path(self.directory).resolve())


def no_url(given: Path | None) -> Path | None:
    """The callback of a parameter that names a directory: of a URL none of that name is made, or looked for."""
    if given is not None and is_url(str(given)):
        raise InvalidArgument(
            f"{given} is a URL, and the path of a directory is wanted here: run this on the machine that has it; "
            "`xaqueue serve --space DIR` there gives a space a URL"
        )
    return given


def location_of(space: str | None) -> Location:
    """The space that an option gives, or else its default. Raises InvalidArgument, SpaceError."""
    if not space and re.search("datadir|qspace", os.environ.get(OPEN_STRING_VARIABLE, "")):  # else it is a database's
        space = os.environ[OPEN_STRING_VARIABLE]
    elif not space:
        if not (Path(DEFAULT) / layout.FORMAT).is_file():
            raise InvalidArgument(
                f"no space is given, and ./{DEFAULT} is none: use --space DIR or URL, or set {SPACE_VARIABLE}, or make "
                f"one here with `xaqueue init {DEFAULT}`"
            )
        space = DEFAULT
    if is_url(space):
        return Location(url=space)
    directory, name = parse_open_string(space)
    try:
        found = read_format(directory).name
    except SpaceError:
        if re.fullmatch(r"[\w.-]+:\d+", directory):
            raise InvalidArgument(
                f"{directory} is no directory: the URL of a server there is xaq://{directory}"
            ) from None
        for inside in sorted(Path(directory).glob(f"*/{layout.FORMAT}")):
            raise SpaceError(f"{directory} is no queue space, and has some in it: take {inside.parent}") from None
        raise
    if name not in (None, found):
        raise SpaceError(f"{directory} is queue space {found!r}, not {name!r}")
    return Location(directory)


def directory_of(space: str | None) -> str:
    """As ``location_of``, for a command that works on the directory itself."""
    location = location_of(space)
    if location.url:
        raise InvalidArgument(
            f"{location.url} is a URL, and this command works on the directory: "
            "run it on the server's machine with --space DIR"
        )
    return location.directory


def unchecked_directory_of(space: str | None) -> str:
    """As ``directory_of``, for a command that takes one which may be no whole space."""
    return parse_open_string(space)[0] if space and not is_url(space) else directory_of(space)


def paths_of(space: str | None) -> str:
    """As ``directory_of``, for a command that takes several directories (a,b) and patterns, too."""
    if space and not is_url(space) and not {",", "*", "?", "["}.isdisjoint(space):
        return space
    return directory_of(space)


def served_at(location: Location) -> str:
    """The URL under which the space is served now; empty where no server owns it."""
    from xaqueue.rpc.client import reach  # here and below: a third of the start, and not each command needs it

    return location.url or reach.served_at(location.directory)


def _opened(directory: str, *, watch: bool) -> Session:
    from xaqueue.features.session import attach

    with progress_bar("reading messages") as bar:
        return attach(directory, watch=watch, progress=bar)


@contextmanager
def remote(url: str, *, answer_s: float | None = None) -> Iterator[RemoteManager]:
    """A session with a server. answer_s: for how long an answer is waited for, unless the URL says so.

    Raises ConnectionLost, InvalidArgument.
    """
    from xaqueue.rpc.client.manager import remote_manager

    with closing(remote_manager(url, connect_s=CONNECT_S, answer_s=answer_s)) as manager:
        yield manager


@contextmanager
def reached(location: Location, *, watch: bool = False) -> Iterator[Session | RemoteManager]:
    """A session with the space through its server, where one serves it; else this process owns it until the end."""
    if location.url:
        with remote(location.url) as manager:
            yield manager
        return
    from xaqueue.rpc.client import reach

    found = reach.session(location.directory, partial(_opened, location.directory, watch=watch), SERVER_S)
    with closing(found):
        yield found


@contextmanager
def connected(location: Location, *, watch: bool = False) -> Iterator[Connection]:
    """A connection to the space, through its server where one serves it."""
    with reached(location, watch=watch) as manager, _Checked(manager, fresh_id) as connection:
        connection.location = location
        yield connection


def space_of(connection: Connection) -> Space:
    """Of one that is embedded: this process has it open."""
    return cast("Session", connection._manager).space  # noqa: SLF001


class _Checked(Connection):
    """Where the command has the space open itself, what it commits is there behind it, or refused."""

    location = Location()

    def commit(self) -> None:
        if self.is_embedded:
            _check_all(self.location, space_of(self))
        super().commit()


def _check_all(location: Location, space: Space) -> None:
    """Of what is added. A message of a topic stays where one of its queues keeps it."""
    from xaqueue.core.model.block import ADDS
    from xaqueue.core.model.branch import State
    from xaqueue.core.model.entry import is_volatile

    branches = [branch for branch in space.branches.values() if branch.base is State.ACTIVE]
    lost, kept = dict[int, tuple[str, bool]](), set[int]()
    for one in (one for branch in branches for one in branch.blocks if one.kind in ADDS):
        definition, is_tagged = space.definitions.of(one.queue), is_volatile(one.entry, any)
        if is_tagged or (definition is not None and not definition.persistent):
            lost[id(one.shared or one)] = one.queue, is_tagged
        else:
            kept.add(id(one.shared or one))
    for message, (queue, is_tagged) in lost.items():
        if message not in kept:
            check_stays(location, queue, is_tagged=is_tagged)


def check_stays(location: Location, queue: str, *, is_tagged: bool) -> None:
    """A message that is not persistent comes to a server's space. Raises InvalidArgument.

    is_tagged: it says so itself, else its queue does.
    """
    if not served_at(location):
        what = f"a message for queue {queue}" if is_tagged else f"queue {queue}"
        otherwise = "put it without --not-persistent" if is_tagged else f"`xaqueue define {queue} persistent=true`"
        raise InvalidArgument(
            f"{what} is not persistent, and no server has {location}: it would be gone as this command ends. "
            f"Start `xaqueue serve --space {location}` before, or {otherwise}"
        )
