"""Who restores a space owns it meanwhile, and leaves it closed; or opens it behind that, where it restores itself."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from xaqueue.core.engine.session import Session
from xaqueue.core.model import layout
from xaqueue.core.model.format import is_lost, parse
from xaqueue.core.owner.definitions_file import usable_definitions
from xaqueue.core.owner.record import find_group, read_owner
from xaqueue.errors import InvalidArgument, OperationalError, SpaceError
from xaqueue.features.kinds import KINDS
from xaqueue.features.opening import attach
from xaqueue.features.snapshots import restore as restoring
from xaqueue.features.snapshots.manifest import SNAPSHOTS
from xaqueue.features.snapshots.options import policy_of
from xaqueue.features.snapshots.restore import Done, Wanted
from xaqueue.offline.plan import BROUGHT_BACK, REPLACED, Item, Plan, Site, counted, site_of, when

log = logging.getLogger("xaqueue")


def restore(
    place: Site | str | os.PathLike[str],
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
    site = site_of(place)
    root = site.root
    space_id = _id_of(root)
    if not (root / SNAPSHOTS).is_dir():
        if not root.is_dir():
            raise SpaceError(f"{root} is no directory: give that of the space which is to be restored")
        raise SpaceError(f"{root} has no snapshots: `xaqueue snapshot take` makes one")
    if at_us > time.time_ns() // 1000:
        raise InvalidArgument("--at is in the future: name a moment that has been")
    if at_us and number is not None:
        raise InvalidArgument("--at takes the newest snapshot before that moment: leave --snapshot out")
    queues, is_whole = "", False
    has_branches = (root / layout.PREPARED).is_dir()  # an open makes it
    with suppress(InvalidArgument):
        _, wrong = usable_definitions(root, lambda asked: find_group(asked.readers))
        queues = "" if exact else layout.GOOD_QUEUES if wrong else layout.QUEUES
    if not exact and not at_us and not (root / restoring.READY).exists():
        with suppress(OperationalError, InvalidArgument), site.opened() as session:  # what is wrong, the restore mends
            is_whole = session.space.read_only is None and has_branches
    try:
        with site.held() as fs:

            def close() -> None:
                owner = site.owner()
                if owner is not None:
                    line = fs.read(f"{restoring.PLACE}/{layout.FORMAT}").decode().strip()
                    closed = replace(owner, epoch=owner.epoch + 1, boot="", journalled=False, unclosed="")
                    site.write_owner(fs, replace(closed, trouble="", state="", space=line))

            wanted = Wanted(number, at_us, exact, as_new, queues, is_whole, space_id)
            return restoring.restore(fs, wanted, time.time_ns() // 1000, kinds=KINDS, close=close)
    except OSError as error:
        raise SpaceError(
            f"{root} cannot be restored: {error.filename or ''} {error.strerror}. Nothing is lost: mend that, and call "
            "`xaqueue restore` again"
        ) from error


def plan_of(done: Done) -> Plan:
    how = f"by snapshot {done.snapshot} of {when(done.taken_at)}"
    how += f", and what the journal tells from there to {when(done.at)}" if done.at else ""
    lost = f"{counted(done.lost, 'message')} added after it, unreadable" if done.lost else ""
    unknown = "in doubt then, and nobody can tell whether it was decided since"
    branches = [
        Item(f"{layout.PREPARED}/{xid}", unknown, BROUGHT_BACK, "see `xaqueue indoubt`") for xid in done.branches
    ]
    replaced = Item(".", "", REPLACED, f"{how}; what was there is in {done.removed}", lost)
    return Plan([replaced, *branches], list(done.passed))


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
