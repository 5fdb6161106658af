"""FORMAT says that a directory is a queue space, which one, and in which version; it is read before anything else."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from xaqueue.command import FORMAT_VERSION
from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.space import layout


@dataclass(frozen=True, slots=True)
class Format:
    """The content of FORMAT: what this directory is."""

    version: int
    name: str
    id: str


def read_format(path: str | os.PathLike[str]) -> Format:
    """What the directory says it is. Raises SpaceError for anything but a space of a known format."""
    root = Path(path)
    try:
        text = (root / layout.FORMAT).read_text("utf-8")
    except FileNotFoundError:
        raise SpaceError(f"{root} is no queue space: make it one with `xaqueue init {root}`") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpaceError(f"{root / layout.FORMAT} cannot be read: {error}") from error
    words = text.split()
    if len(words) != 4 or words[0] != "xaqueue" or not words[1].isdigit():
        raise SpaceError(f"{root / layout.FORMAT} is damaged: 'xaqueue <version> <name> <id>' is wanted, not {text!r}")
    if int(words[1]) != FORMAT_VERSION:
        raise SpaceError(f"{root} has format {words[1]}; this xaqueue reads format {FORMAT_VERSION}: use a newer one")
    return Format(int(words[1]), words[2], words[3])


def boot_id() -> str:
    """Names this boot of the host; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


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
        owner = json.loads((Path(path) / layout.OWNER).read_bytes())
        boot, host = owner.get("boot", ""), owner["host"]
    except (OSError, ValueError, AttributeError, KeyError):
        return ""
    if not boot or host != socket.gethostname() or boot == boot_id():
        return ""
    return (
        f"{os.fspath(path)} was not opened since the machine went down, and its journal is ahead of its "
        f"directories: open it once, for example with `xaqueue check --repair --space {os.fspath(path)}`"
    )


def checked_name(name: str) -> str:
    """A space name without spaces or other letters that FORMAT could not hold. Raises InvalidArgument."""
    cleaned = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)
    if not cleaned:
        raise InvalidArgument(f"space name {name!r} is refused: letters, digits and . _ - are wanted")
    return cleaned
