"""Copies of snapshots in a directory that people name: on another disk, for when this one is lost.

It has them as a space has its own, in ``snapshots/``: the commands that list, check and restore those take it as well.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from xaqueue.core.engine.state import Space
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.modes import PRIVATE
from xaqueue.errors import SpaceError
from xaqueue.features.snapshots import manifest, store
from xaqueue.features.snapshots.manifest import MANIFEST, SNAPSHOTS
from xaqueue.features.snapshots.options import policy_of
from xaqueue.features.snapshots.restore import lives_of


def copy(root: Path, number: int, to: Path, pause: Callable[[], object] = lambda: None) -> None:
    """Of the space there. The whole copy takes its name at once, and is synced before. pause: called before each file;
    raises where it is given up. Raises OSError."""

    def copy_file(source: str, target: str) -> None:
        pause()
        shutil.copy2(source, target)

    making = to.with_name(f".{to.name}.new")
    shutil.rmtree(making, ignore_errors=True)
    shutil.copytree(root / SNAPSHOTS / str(number), making, symlinks=True, copy_function=copy_file)
    with closing(DirectoryFileSystem(making.parent, keep_unsynced=False)) as fs:
        made = replace(manifest.read(fs, making.name), is_held=False)  # put back, it is one as any other
        (making / MANIFEST).write_bytes(manifest.encode(made))
        fs.sync_all()
        fs.rename(making.name, to.name)
        fs.sync_dir("")


def copy_and_keep(space: Space, root: Path, number: int, pause: Callable[[], object]) -> None:
    """To where ``[snapshots] path`` says, if it does, under a number of its own; as many stay there as in the space.
    Raises SpaceError, OSError, and what pause does."""
    policy = policy_of(space.definitions)
    if not policy.path:
        return
    place = root / policy.path
    if not place.is_dir() or place.samefile(root):
        raise SpaceError(f"{place} is no directory beside the space: make it, on another disk")
    (place / SNAPSHOTS).mkdir(PRIVATE.directory, exist_ok=True)
    with closing(DirectoryFileSystem(place, keep_unsynced=False)) as fs:
        lives = lives_of(space.fs, space.id) or {space.id}  # what nobody can tell of is not removed
        others = {one.space for one in store.listed(fs) if one.space.split()[-1] not in lives}
        if others:
            raise SpaceError(f"{place} has snapshots of another space ({others.pop()}): name a directory of its own")
        copy(root, number, place / SNAPSHOTS / str(store.next_number(fs)), pause)
        store.keep(fs, policy.keep, space.now_us())
