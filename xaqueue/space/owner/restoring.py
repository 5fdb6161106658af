"""Who restores a space owns it meanwhile, and leaves it closed."""

from __future__ import annotations

import os
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from xaqueue.errors import InvalidArgument, OperationalError, SpaceError
from xaqueue.space.model import layout
from xaqueue.space.owner.definitions_file import usable_definitions
from xaqueue.space.owner.open import attach
from xaqueue.space.owner.record import find_group, format_owner, in_use, open_to, read_owner
from xaqueue.space.snapshot import restore as restoring
from xaqueue.space.snapshot.restore import Done
from xaqueue.storage.directory_fs import DirectoryFileSystem
from xaqueue.storage.modes import PRIVATE
from xaqueue.storage.owner_file import OwnerFile


def restore(path: str | os.PathLike[str], number: int | None = None, *, at_us: int = 0, exact: bool = False) -> Done:
    """Puts a snapshot back, the newest that is clean without a number, or what was there at a moment (int
    microseconds UTC); see ``xaqueue.space.snapshot.restore``.

    A space that can be opened is opened first, so that the newest messages are in its directories. Raises SpaceInUse,
    SpaceError.
    """
    root = Path(path)
    if not (root / layout.SNAPSHOTS).is_dir():
        raise SpaceError(f"{root} has no snapshots: `xaqueue snapshot take` makes one")
    if at_us > time.time_ns() // 1000:
        raise InvalidArgument("--at is in the future: name a moment that has been")
    if at_us and number is not None:
        raise InvalidArgument("--at takes the newest snapshot before that moment: leave --snapshot out")
    group, queues, is_whole = None, "", False
    has_branches = (root / layout.PREPARED).is_dir()  # an open makes it
    with suppress(InvalidArgument):
        definitions, wrong = usable_definitions(root)
        group = find_group(definitions.group)
        queues = "" if exact else layout.GOOD_QUEUES if wrong else layout.QUEUES
    if not exact and not at_us and not (root / restoring.READY).exists():
        with suppress(OperationalError, InvalidArgument):  # what is wrong with it, the restore mends
            session = attach(root, watch=False)
            is_whole = session.space.read_only is None and has_branches
            session.close()
    try:
        lock = OwnerFile(root)
        try:
            if not lock.hold():
                raise in_use(root, read_owner(root))
            modes = open_to(root, group) if group is not None else PRIVATE
            with closing(DirectoryFileSystem(root, keep_unsynced=False, modes=modes)) as fs:

                def close() -> None:
                    owner = read_owner(root)
                    if owner is not None:
                        line = fs.read(f"{restoring.PLACE}/{layout.FORMAT}").decode().strip()
                        closed = replace(
                            owner, boot="", journalled=False, unclosed="", trouble="", state="", space=line
                        )
                        lock.write(fs, format_owner(closed))

                now_us = time.time_ns() // 1000
                return restoring.restore(
                    fs,
                    number,
                    now_us,
                    at_us=at_us,
                    exact=exact,
                    queues=queues,
                    is_whole=is_whole,
                    close=close,
                )
        finally:
            lock.release()
    except OSError as error:
        raise SpaceError(
            f"{root} cannot be restored: {error.filename or ''} {error.strerror}. Nothing is lost: mend that, and call "
            "`xaqueue restore` again"
        ) from error
