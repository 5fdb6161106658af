"""Who restores a space owns it meanwhile, and leaves it closed; or opens it behind that, where it restores itself."""

from __future__ import annotations

import logging
import os
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from xaqueue.core.engine.session import Session
from xaqueue.core.model import layout
from xaqueue.core.model.format import is_lost, parse
from xaqueue.core.owner.definitions_file import usable_definitions
from xaqueue.core.owner.record import find_group, format_owner, in_use, open_to, read_owner
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.modes import PRIVATE
from xaqueue.core.storage.owner_file import OwnerFile
from xaqueue.errors import InvalidArgument, OperationalError, SpaceError
from xaqueue.features.kinds import KINDS
from xaqueue.features.opening import attach
from xaqueue.features.snapshots import restore as restoring
from xaqueue.features.snapshots.options import policy_of
from xaqueue.features.snapshots.restore import Done

log = logging.getLogger("xaqueue")


def restore(
    path: str | os.PathLike[str],
    number: int | None = None,
    *,
    at_us: int = 0,
    exact: bool = False,
    as_new: bool = False,
) -> Done:
    """Puts a snapshot back, the newest that is clean without a number, or what was there at a moment (int
    microseconds UTC); see ``xaqueue.features.snapshots.restore``.

    A space that can be opened is opened first, so that the newest messages are in its directories. Raises SpaceInUse,
    SpaceError.
    """
    root = Path(path)
    space_id = _id_of(root)
    if not (root / layout.SNAPSHOTS).is_dir():
        if not root.is_dir():
            raise SpaceError(f"{root} is no directory: give that of the space which is to be restored")
        raise SpaceError(f"{root} has no snapshots: `xaqueue snapshot take` makes one")
    if at_us > time.time_ns() // 1000:
        raise InvalidArgument("--at is in the future: name a moment that has been")
    if at_us and number is not None:
        raise InvalidArgument("--at takes the newest snapshot before that moment: leave --snapshot out")
    group, queues, is_whole = None, "", False
    has_branches = (root / layout.PREPARED).is_dir()  # an open makes it
    with suppress(InvalidArgument):
        definitions, wrong = usable_definitions(root)
        group = find_group(definitions.readers)
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
                raise in_use(root, read_owner(root), alone=True)
            modes = open_to(root, group) if group is not None else PRIVATE
            with closing(DirectoryFileSystem(root, keep_unsynced=False, modes=modes)) as fs:

                def close() -> None:
                    owner = read_owner(root)
                    if owner is not None:
                        line = fs.read(f"{restoring.PLACE}/{layout.FORMAT}").decode().strip()
                        closed = replace(owner, epoch=owner.epoch + 1, boot="", journalled=False, unclosed="")
                        closed = replace(closed, trouble="", state="", space=line)
                        lock.write(fs, format_owner(closed))

                now_us = time.time_ns() // 1000
                return restoring.restore(
                    fs,
                    number,
                    now_us,
                    kinds=KINDS,
                    at_us=at_us,
                    exact=exact,
                    queues=queues,
                    is_whole=is_whole,
                    space_id=space_id,
                    as_new=as_new,
                    close=close,
                )
        finally:
            lock.release()
    except OSError as error:
        raise SpaceError(
            f"{root} cannot be restored: {error.filename or ''} {error.strerror}. Nothing is lost: mend that, and call "
            "`xaqueue restore` again"
        ) from error


def _id_of(root: Path) -> str:
    """Of the space there, also where only its last owner says it; empty where nobody does."""
    owner, line = read_owner(root), ""
    with suppress(OSError, UnicodeDecodeError):
        line = (root / layout.FORMAT).read_bytes().decode()
    found = parse(line) or parse(owner.space if owner is not None else "")
    return found.id if found is not None else ""


def attach_or_restore(path: str | os.PathLike[str], **options: Any) -> Session:
    """As ``attach``; where the space cannot be used, and ``[snapshots] restore`` is "auto", the newest snapshot that is
    clean takes its place before. A standby's lock, in the options, stays as it is: then nothing is restored."""
    try:
        session = attach(path, **options)
    except SpaceError as error:
        if options.get("lock") is not None or not _restores_itself(Path(path)):
            raise
        why: BaseException = error
    else:
        damage = session.space.read_only
        if damage is None or not policy_of(session.space.definitions).restores or options.get("lock") is not None:
            return session
        session.close()
        why = damage
    try:
        done = restore(path)
    except SpaceError as error:
        raise SpaceError(f"{why}. No snapshot has taken its place: {error}") from error
    text = "[restored] %s: snapshot %d is in its place, and what it has replaced is in %s"
    log.error(text, why, done.snapshot, "; ".join([done.removed, *done.passed]))
    return attach(path, **options)


def _restores_itself(root: Path) -> bool:
    """Whether something is lost that a snapshot has, and nobody is to be asked."""
    if not is_lost(root) and (root / layout.COMMITTED).is_dir():
        return False
    try:
        return policy_of(usable_definitions(root)[0]).restores
    except InvalidArgument:
        return False
