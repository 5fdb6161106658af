"""What a task finds under a path that its driver has looked at: the same space, or an error that says who sees what.

Driver and executors agree on a path alone, and another machine may have another space under it, a copy, or nothing. So
a task is given the space's id and compares it before it reads or writes. A copy has the same id: a reader asks for what
the driver saw in its records as well (``source.reader``), and for a writer the driver finds none of what was prepared.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from socket import gethostname

from xaqueue.core.model.format import read_format
from xaqueue.errors import OperationalError, SpaceError

SAME = "executors need the driver's directory under this path: mount it there, or keep this machine out of the job"


def here() -> str:
    """This machine, and as whom the task runs."""
    uid = os.geteuid()
    try:
        return f"{gethostname()} (user {pwd.getpwuid(uid).pw_name})"
    except KeyError:  # a container whose users have no names
        return f"{gethostname()} (user {uid})"


def check_same(path: str, space_id: str) -> None:
    """SpaceError unless the space under this path has the id."""
    driver = f"the space {space_id[:8]} that the driver sees as {path}"
    with readable(path):
        try:
            found = read_format(path, is_expected=True).id
        except SpaceError as failure:
            if _denied(failure):
                raise
            raise SpaceError(f"{here()} does not see {driver}: {failure}; {SAME}") from failure
    if found != space_id:
        raise SpaceError(f"{here()} sees another space, {found[:8]}, than {driver}; {SAME}")


@contextmanager
def readable(path: str) -> Iterator[None]:
    """What this user may not read is an error with the remedy."""
    try:
        yield
    except (OSError, SpaceError) as failure:
        if not (denied := _denied(failure)):
            raise
        raise SpaceError(
            f"{here()} may not read the space {path}, as the driver does ({denied}): run executors as the driver's "
            "user, or let a group read it, `group` of [access] in its queues.toml"
        ) from failure


@contextmanager
def writable(path: str) -> Iterator[None]:
    """The space's owner is reached, or started, by the user that the space belongs to; others are told so."""
    try:
        yield
    except (OSError, OperationalError) as failure:
        no_server = type(failure) is SpaceError and not os.access(path, os.W_OK)
        if os.geteuid() in (0, os.stat(path).st_uid) or not (no_server or _denied(failure)):  # noqa: PTH116
            raise
        raise SpaceError(
            f"{here()} does not own the space {path} and cannot write to it ({failure}): run executors as its owner, "
            'or give option "server" the URL of its server'
        ) from failure


def _denied(failure: Exception) -> BaseException | None:
    """What the system does not permit this user, where it is that."""
    cause = failure if isinstance(failure, OSError) else failure.__cause__
    return cause if isinstance(cause, PermissionError) else None
