"""A space is brought up from the files that are left: what an open cannot do without is made again, and an open, which
recovers, and a check with repair do the rest.

    FORMAT       from what its last owner wrote down, else with a new id
    queues.toml  from its last good copy, else from the queues that have a directory
    messages     what stands in quarantine and is a whole message comes back into the queue in whose directory it stood,
                 by an ordinary transaction; its id and properties are those of its block, its number is a new one.
                 Of a block of many all whole ones come that are not there, but for those that were gone of it

Of what is made again the damaged file is set aside first, and each is written new and renamed. A message comes back
before its file in quarantine is marked; so whatever a crash cuts off, the same command goes on, and finds by the id
what it has done. Nothing here gives up a part of the journal: that is ``salvage``, and who needs it is told so.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from xaqueue.connection import Connection
from xaqueue.core.engine import quarantine
from xaqueue.core.engine.redo import make_dirs
from xaqueue.core.engine.session import Session
from xaqueue.core.engine.taking import message_of
from xaqueue.core.model import block_files, definitions, layout
from xaqueue.core.model.block import FORMAT_VERSION, split_message
from xaqueue.core.model.block_files import listed, read_checked
from xaqueue.core.model.format import checked_name, is_lost, parse, read_format, signs_of
from xaqueue.core.model.layout import COMMITTED, FORMAT, GONE, QUARANTINE, QUEUES
from xaqueue.core.model.message_block import decode_gone
from xaqueue.core.model.message_name import Named, parse_any
from xaqueue.core.owner.definitions_file import damage_of, read_good
from xaqueue.core.owner.open import NEW_QUEUES
from xaqueue.core.owner.record import read_owner
from xaqueue.core.recovery.load import Progress
from xaqueue.core.storage.fs import FileSystem, replace_file
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import DamagedBlock, Error, InvalidArgument, SpaceError
from xaqueue.features.defining import edits
from xaqueue.features.session import whole
from xaqueue.features.snapshots.restored import RESTORE_READY
from xaqueue.features.streams.message_files import Block, gone_of, whole_table
from xaqueue.message import Message, MessageId
from xaqueue.offline import aside
from xaqueue.offline.check import repair
from xaqueue.offline.plan import BROUGHT_BACK, LEFT, MADE_AGAIN, Item, Plan, Site, site_of


def reconstruct(
    place: Site | str | os.PathLike[str],
    queue: str = "",
    *,
    only_metadata: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Brings up a space that nobody has open, or brings back the messages of one queue.

    only_metadata: FORMAT and queues.toml, and the space is not opened.
    Raises SpaceInUse, SpaceError, InvalidArgument, ResourceFailed where the journal is damaged, OSError.
    """
    site = site_of(place)
    if queue:
        with site.opened(progress) as session:
            found = whole(session).repair(queue)
            plan = Plan(notes=found.left, opened=str(session.space.report))
            plan.set_aside(found.moved)
            bring_back(session, plan, queue)
        return plan
    plan = Plan(remake(site))
    return plan if only_metadata else repair(site, progress, bring_back, plan)


def remake(place: Site | str | os.PathLike[str]) -> list[Item]:
    """Makes FORMAT and queues.toml again, as far as these are gone or damaged."""
    site = site_of(place)
    root = site.root
    if os.path.lexists(root / RESTORE_READY):
        raise SpaceError(f"a restore of {root} was cut off: `xaqueue restore --space {root}` finishes it")
    if not os.path.lexists(root / FORMAT) and not signs_of(root):
        raise SpaceError(f"{root} was no queue space: nothing is there to be reconstructed")
    with site.held(keep_unsynced=True) as fs:
        if not fs.is_dir(QUARANTINE):
            fs.make_dir(QUARANTINE)
        return [*make_format(fs, root), *make_definitions(fs, root), *make_committed(fs)]


def make_format(fs: FileSystem, root: Path) -> list[Item]:
    """By what the last owner wrote down; raises SpaceError where it is of another version."""
    why = _why_lost(root)
    if not why:
        return []
    owner = read_owner(root)
    known = owner is not None and parse(owner.space) is not None
    if owner is not None and known:
        line = owner.space
    else:
        line = f"xaqueue {FORMAT_VERSION} {checked_name(root.resolve().name)} {uuid.uuid4()}"
    _replace(fs, FORMAT, line + "\n", why)
    if known:
        return [Item(FORMAT, why, MADE_AGAIN, f"{line!r}, as its last owner says")]
    how = f"{line!r}, with a new id: who remembers how far it had read takes it for another space"
    return [Item(FORMAT, why, MADE_AGAIN, how, lost="the space's id")]


def make_definitions(fs: FileSystem, root: Path) -> list[Item]:
    """From the last good copy, else with every queue that has a directory, in the order that queues have by default."""
    wrong = damage_of(root)
    if not wrong:
        return []
    try:
        definitions.parse(good := read_good(root))
    except (OSError, UnicodeDecodeError, InvalidArgument):
        return _define_anew(fs, root, wrong)
    _replace(fs, QUEUES, good, wrong)
    return [Item(QUEUES, wrong, MADE_AGAIN, "from its last good copy")]


def make_committed(fs: FileSystem) -> list[Item]:
    """Where it is gone: what else tells of messages brings them back behind that."""
    if fs.is_dir(COMMITTED):
        return []
    make_dirs(fs, COMMITTED)
    fs.sync_dir("")
    how = "empty, all that was there is gone"
    return [Item(f"{COMMITTED}/", "the directory is missing", MADE_AGAIN, how, lost="all messages there")]


def _define_anew(fs: FileSystem, root: Path, wrong: str) -> list[Item]:
    names = [name for one in listed(fs, COMMITTED) if (name := layout.parse_queue_directory(one))]
    if not names and not os.path.lexists(root / QUEUES):
        return []
    text = NEW_QUEUES
    for name in names:
        text = edits.with_queue(text, name, {"description": "found by reconstruct"})
    _replace(fs, QUEUES, text, wrong)
    how = f"anew, with {', '.join(names) or 'no queue'}: look through it for all else that was defined"
    return [Item(QUEUES, wrong, MADE_AGAIN, how, lost="all else that was defined")]


def bring_back(session: Session, plan: Plan, queue: str = "") -> None:
    """What is a whole message in quarantine, and stood in a queue's directory, is in its queue again."""
    fs = session.space.fs
    kept = {one.path: one.kept for one in aside.find(fs, 2**63)[1]}
    connection = Connection(whole(session), fresh_id)
    for name in listed(fs, QUARANTINE):
        stood, reason = quarantine.origin(fs, name)
        directory = stood.removeprefix(f"{COMMITTED}/").partition("/")[0]
        wanted = layout.parse_queue_directory(directory) if stood.startswith(f"{COMMITTED}/") else None
        if wanted is None or queue not in ("", wanted) or f"/{GONE}/" in stood:
            continue
        path, damaged = f"{QUARANTINE}/{name}", list[str]()
        try:
            if path in kept:
                raise DamagedBlock(kept[path])
            named = parse_any(stood.rpartition("/")[2])
            if named is not None and named.is_block:
                found, damaged = _in_block(fs, wanted, named, path)
                many = _restore(connection, found)
            elif quarantine.TWICE in reason:
                raise DamagedBlock(f"not brought back, for it {quarantine.TWICE}")
            else:
                data = read_checked(fs, path)
                many = _restore(connection, [message_of(wanted, 0, MessageId(split_message(data)[0]), data)])
        except Error as error:
            connection.rollback()
            plan.items.append(Item(path, reason, LEFT, str(error)))
            continue
        plan.back[wanted] = plan.back.get(wanted, 0) + many
        plan.items.append(Item(path, reason, BROUGHT_BACK, f"into queue {wanted}", "; ".join(damaged)))
        quarantine.mark(fs, name, partial(fs.sync_dir, QUARANTINE))


def _in_block(fs: FileSystem, queue: str, named: Named, path: str) -> tuple[list[Message], list[str]]:
    """Those that a block of many has, as far as it is known what of it is gone; and which of them are damaged. Raises
    DamagedBlock, OSError."""
    try:
        data = fs.read(path)
    except OSError as error:
        raise block_files.damage_of(fs, path, error) from error
    gone = gone_of(fs, queue, named)
    for name in quarantine.names_of(fs, layout.gone_path(queue, named)):
        with suppress(DamagedBlock, OSError):
            gone |= decode_gone(fs.read(f"{QUARANTINE}/{name}"), queue, named)
    block = Block(named, whole_table(data), data, gone)
    found, damaged = list[Message](), list[str]()
    for index in block.left(0):
        message_id = block.table.message_id(index)
        try:
            found.append(message_of(queue, 0, message_id, block.file(index)))
        except DamagedBlock as damage:
            damaged.append(f"message {message_id.hex()}: {damage}")
    if damaged and not found:
        raise DamagedBlock(damaged[0])
    return found, damaged


def _restore(connection: Connection, messages: Sequence[Message]) -> int:
    """How many of these the queue has not. Possible duplicates: they may have come back before, and been consumed,
    where that was cut off before their file was marked."""
    added = 0
    for message in messages:
        message.properties.possible_duplicate = True
        added += connection.restore(message)
    connection.commit()
    return added


def _why_lost(root: Path) -> str:
    """Empty where FORMAT says what the space is. Raises SpaceError where it is of another version, or of others."""
    try:
        read_format(root)
    except SpaceError as error:
        if not is_lost(root):
            raise
        return re.split(r"; nothing was changed|\. Put it back", str(error))[0]
    return ""


def _replace(fs: FileSystem, name: str, text: str, why: str) -> None:
    if fs.exists(name):
        quarantine.move(fs, name, why, time.time_ns() // 1000)
        fs.sync_dir(QUARANTINE)
        fs.sync_dir("")
    replace_file(fs, name, text.encode())
