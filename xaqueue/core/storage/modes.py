"""Who may read what is made in a directory: its user alone, whatever the umask, or a group as well.

Nothing here costs a call while files are made: the mode goes with the open. Only where the umask takes bits that a
group is to have, or root works in a directory that is another user's, is what was made set right behind that.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_UMASK = re.compile(r"^Umask:\s*([0-7]+)", re.MULTILINE)


class Modes(NamedTuple):
    """Of new files and directories."""

    file: int = 0o600
    directory: int = 0o700
    masked: bool = False
    """Whether the umask takes some of these bits, which are then set behind it."""


PRIVATE = Modes()
BY_UMASK = Modes(0o644, 0o755)
"""For what belongs to no space: the umask decides."""


def for_group() -> Modes:
    """In directories that hand their group on."""
    shared = Modes(0o640, 0o2750)
    return shared._replace(masked=bool(_umask() & (shared.file | shared.directory)))


def heir_of(directory: str | os.PathLike[str]) -> int | None:
    """The user whose directory root works in: what root makes there is to be that user's. None for all others."""
    if os.geteuid() != 0:
        return None
    with suppress(OSError):
        return os.stat(directory).st_uid or None  # noqa: PTH116
    return None


def give(fd: int, heir: int | None) -> None:
    """Where root may not, by the mount or for want of a capability, it stays root's."""
    if heir is not None:
        with suppress(PermissionError):
            os.fchown(fd, heir, -1)


def _umask() -> int:
    """Told without setting it, which would concern every thread; all bits where the system does not tell."""
    try:
        found = _UMASK.search(Path("/proc/self/status").read_text("utf-8", "replace"))
    except OSError:
        found = None
    return int(found[1], 8) if found else 0o777
