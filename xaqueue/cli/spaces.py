"""Which space a command means, and how it opens one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from xaqueue.cli.output import Bar
from xaqueue.connection import Connection
from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.space import openstring
from xaqueue.space.attach import attach
from xaqueue.space.format import read_format
from xaqueue.space.session import Session
from xaqueue.storage.ids import fresh_id

SPACE_VARIABLE = "XAQUEUE_SPACE"
_NOT_GIVEN = f"no space is given: use --space DIR, or set {SPACE_VARIABLE}"

SpaceOption = Annotated[
    str | None,
    typer.Option("--space", metavar="DIR", help=f"The queue space, if not {SPACE_VARIABLE}.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]


def directory_of(ctx: typer.Context, space: str | None) -> str:
    """The space's directory: the option behind the verb, else the one before it, else the environment's."""
    given = space or ctx.find_root().params.get("space")
    if not given:
        raise InvalidArgument(_NOT_GIVEN)
    if "://" in given:
        raise InvalidArgument(f"{given} is a URL: this version opens directories")
    directory, name = openstring.parse(given)
    found = read_format(directory).name
    if name not in (None, found):
        raise SpaceError(f"{directory} is queue space {found!r}, not {name!r}")
    return directory


@contextmanager
def owned(directory: str, *, watch: bool = False) -> Iterator[Session]:
    """A session with the space, which this process owns until the end. Raises SpaceInUse, SpaceError."""
    with Bar("reading messages") as bar:
        session = attach(directory, watch=watch, progress=bar)
    try:
        yield session
    finally:
        session.close()


@contextmanager
def connected(directory: str, *, watch: bool = False) -> Iterator[Connection]:
    """A connection to the space, which this process owns until the end."""
    with owned(directory, watch=watch) as session, Connection(session, fresh_id) as connection:
        yield connection
