"""FORMAT says that a directory is a queue space, which one, and in which version; it is read before anything else."""

from __future__ import annotations

import errno
import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from xaqueue.core.model import layout, options
from xaqueue.core.model.block import FORMAT_VERSION
from xaqueue.core.storage.owner_file import boot_id, read_owner_file
from xaqueue.core.storage.regular import DAMAGE, FOLLOW, read_at_most
from xaqueue.errors import InvalidArgument, SpaceError

FORMAT_BYTES = 4096
WITH_BLOCKS = 2
"""Of a space that may have blocks of many messages: nothing else is other than in ``FORMAT_VERSION``."""
VERSIONS = (FORMAT_VERSION, WITH_BLOCKS)
_SIGNS = (layout.OWNER, layout.LOCK, layout.JOURNAL, layout.RESERVE, layout.OPERATORS, layout.ARCHIVE)
"""What an owner makes; a directory that was only begun to be made a space has none of it."""


@dataclass(frozen=True, slots=True)
class Format:
    """The content of FORMAT: what this directory is."""

    version: int
    name: str
    id: str

    @property
    def line(self) -> str:
        """As it stands in the file."""
        return f"xaqueue {self.version} {self.name} {self.id}"


def read_format(path: str | os.PathLike[str], *, is_expected: bool = False) -> Format:
    """What the directory says it is. Raises SpaceError for anything but a space of a known format.

    is_expected: to who asks a new one in its place is of no use, so the error does not speak of that.
    """
    root = Path(path)
    try:
        text = read_at_most(str(root / layout.FORMAT), FORMAT_BYTES, FOLLOW).decode()
    except FileNotFoundError:
        check_new(root)
        if is_expected:
            raise SpaceError(f"{root} is no queue space: mend the path, or bring back the disk that it is on") from None
        raise SpaceError(f"{root} is no queue space: make it one with `xaqueue init {root}`") from None
    except NotADirectoryError:
        raise SpaceError(f"{root} is no directory, and a queue space is one: give its directory") from None
    except (OSError, UnicodeDecodeError) as error:
        advice = f". {_advice(root)}" if is_lost(root) else ""
        raise SpaceError(f"{root / layout.FORMAT} cannot be read: {error}{advice}") from error
    found = parse(text)
    if found is None:
        raise SpaceError(
            f"{root / layout.FORMAT} is damaged: 'xaqueue <version> <name> <id>' is wanted, not {text!r}; nothing was "
            f"changed. {_advice(root)}"
        )
    check_version(found, str(root))
    return found


def check_version(found: Format, what: str) -> None:
    """SpaceError where it is a later one than this xaqueue reads."""
    if found.version not in VERSIONS:
        raise SpaceError(
            f"{what} has format {found.version}; this xaqueue reads formats up to {WITH_BLOCKS}: use a newer one"
        )


def parse(text: str) -> Format | None:
    """What a line says, of whatever version; None where it is damaged."""
    words = text.split()
    if len(words) != 4 or words[0] != "xaqueue" or not words[1].isdigit():
        return None
    return Format(int(words[1]), words[2], words[3])


def is_lost(root: Path) -> bool:
    """Whether nothing can be read there that says what the space is; one of another version, or of others, says it."""
    try:
        return parse(read_at_most(str(root / layout.FORMAT), FORMAT_BYTES, FOLLOW).decode("utf-8", "replace")) is None
    except OSError as error:
        return error.errno == errno.ENOENT or error.errno in DAMAGE


def check_new(root: Path) -> None:
    """SpaceError where a directory without FORMAT was a space, of which a new one would take what is left."""
    signs = signs_of(root)
    if signs:
        raise SpaceError(
            f"{root} was a queue space (it has {signs[0]}), and its {layout.FORMAT} is missing; nothing was changed. "
            f"{_advice(root)}"
        )


def check_committed(root: Path, *, was_in_use: bool) -> None:
    """SpaceError where a space that was in use has lost the directory of its messages: it is not begun anew."""
    if was_in_use and not (root / layout.COMMITTED).is_dir():
        raise SpaceError(
            f"{root} was in use, and its {layout.COMMITTED}/ with all messages is gone; nothing was changed. "
            f"{_from_copy(root)}, or `xaqueue reconstruct -m --space {root}` goes on without them"
        )


def _advised(root: Path, what: str) -> str:
    """What a feature has to say: a field of ``record_kinds.Advice``."""
    return next(filter(None, (getattr(kind.advice(root), what) for kind in options.everything().kinds())), "")


def _from_copy(root: Path) -> str:
    found = _advised(root, "copy")
    return f"Put it back from a copy, or {found}" if found else "Put it back from a copy"


def signs_of(root: Path) -> list[str]:
    """What is there that only an owner makes."""
    names = chain(_SIGNS, *(kind.signs for kind in options.everything().kinds()))
    signs = [name for name in names if os.path.lexists(root / name)]
    return signs + [name for name in layout.directories() if (root / name).is_dir() and any((root / name).iterdir())]


def _advice(root: Path) -> str:
    command = f"`xaqueue reconstruct -m --space {root}`"
    anew = f"{_from_copy(root)}, or {command} writes it anew: {_former_line(root)}"
    return _advised(root, "unfinished") or anew


def _former_line(root: Path) -> str:
    with suppress(OSError, ValueError, TypeError, KeyError):
        line = json.loads(read_owner_file(root))["space"]
        if line:
            return f"{line} (so its last owner says)"
    return (
        f"xaqueue {FORMAT_VERSION} NAME ID, where ID was the space's UUID; with a new one, readers that remember how "
        "far they came take it for another space"
    )


def check_recovered(path: str | os.PathLike[str]) -> None:
    """SpaceError where ``why_behind`` has a reason."""
    reason = why_behind(path)
    if reason:
        raise SpaceError(reason)


def why_behind(path: str | os.PathLike[str]) -> str:
    """Why the directories cannot be believed: the machine went down under an owner whose journal is ahead of them.

    They are true as long as the system that saw every change is up, and again once the space was opened; else empty.
    """
    try:
        content = read_owner_file(path)
    except OSError:
        return ""
    try:
        owner = json.loads(content)
        boot, host = owner.get("boot", ""), owner["host"]
    except (ValueError, AttributeError, KeyError):
        if not (Path(path) / layout.JOURNAL).is_dir():
            return ""
        return f"{os.fspath(path)}/{layout.OWNER} cannot be read, and the journal may be ahead: {_open_once(path)}"
    if not boot or host != socket.gethostname() or boot == boot_id():
        return ""
    return (
        f"{os.fspath(path)} was not opened since the machine went down, and its journal is ahead of its "
        f"directories: {_open_once(path)}"
    )


def _open_once(path: str | os.PathLike[str]) -> str:
    here = f"open it once, for example with `xaqueue check --repair --space {os.fspath(path)}`"
    return _advised(Path(path), "behind") or here


def checked_name(name: str) -> str:
    """A space name without spaces or other letters that FORMAT could not hold. Raises InvalidArgument."""
    cleaned = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)
    if not cleaned:
        raise InvalidArgument(f"space name {name!r} is refused: letters, digits and . _ - are wanted")
    return cleaned
