"""queues.toml as a space's owner takes it: what cannot be used falls back to the last copy that could.

The copy is written new and renamed, and only of a file that an owner has taken: so a crash leaves this one or the one
before, and each of them was in force.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from xaqueue.core.model import definitions, options
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.layout import GOOD_QUEUES, QUEUES
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import discard, replace_file
from xaqueue.core.storage.hardening import DEFAULT, Hardening
from xaqueue.core.storage.modes import PRIVATE, for_group
from xaqueue.core.storage.regular import READ, read_at_most
from xaqueue.endpoint import endurox_flags
from xaqueue.errors import InvalidArgument

FLAGS_VARIABLE = "XAQUEUE_FLAGS"

log = logging.getLogger("xaqueue")


def read_definitions(path: str | os.PathLike[str]) -> Definitions:
    """The definitions in the directory's queues.toml. Raises InvalidArgument; a missing file defines nothing."""
    try:
        return definitions.parse(definitions.read(path))
    except FileNotFoundError:
        return Definitions()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"queues.toml cannot be read: {error}") from error


def damage_of(path: str | os.PathLike[str]) -> str:
    """Why queues.toml defines nothing: it is gone, damaged or refused; else empty."""
    if not os.path.lexists(Path(path) / QUEUES):
        return "queues.toml is missing"
    try:
        read_definitions(path)
    except InvalidArgument as error:
        return str(error)
    return ""


def usable_definitions(
    path: str | os.PathLike[str], check: Callable[[Definitions], object] = lambda _: None
) -> tuple[Definitions, str]:
    """Those of queues.toml, or where these cannot be used of its last good copy; and what is wrong, or empty. Raises
    InvalidArgument where that is so of both. check: raises that where the space cannot have them."""

    def checked(text: str) -> Definitions:
        check(found := definitions.parse(text))
        return found

    try:
        return checked(definitions.read(path)), ""
    except (OSError, UnicodeDecodeError, InvalidArgument) as error:
        damage, refusal = damage_of(path), str(error)
    try:
        good = checked(read_good(path))
    except (OSError, UnicodeDecodeError, InvalidArgument):
        if not os.path.lexists(Path(path) / QUEUES):
            return Definitions(), ""  # nobody has ever defined anything
        mend = f"mend it, or `xaqueue reconstruct -m --space {os.fspath(path)}` sets it aside and makes it anew"
        made = f"{damage}; there is no good copy of it: {mend} from the queues that are there"
        raise InvalidArgument(made if damage else refusal) from None
    mend = "Mend it, or `xaqueue reconstruct -m` puts the copy in its place" if damage else "Mend it"
    good, but = options.everything().stand_in(good)
    return good, f"{damage or refusal}: its last good copy holds{but}. {mend}"


def read_good(path: str | os.PathLike[str]) -> str:
    """The text of the last good copy. Raises OSError, UnicodeDecodeError."""
    return read_at_most(str(Path(path) / GOOD_QUEUES), definitions.TEXT_LIMIT_BYTES, READ).decode()


def keep_good(path: str | os.PathLike[str], wrong: str = "", text: str | None = None) -> None:
    """What queues.toml says was taken: it is the last good copy, or the one before where this cannot be written.

    wrong: why it was not taken. text: what it said; what it says now without it.
    """
    if wrong:
        log.warning("[definitions-refused] %s", wrong)
        return
    try:
        text = definitions.read(path) if text is None else text
        with suppress(OSError, UnicodeDecodeError):
            if read_good(path) == text:
                return
        modes = for_group() if definitions.parse(text).readers else PRIVATE
        with closing(DirectoryFileSystem(path, modes=modes)) as fs:
            replace_file(fs, GOOD_QUEUES, text.encode())
    except FileNotFoundError:
        return  # nothing is defined
    except (OSError, UnicodeDecodeError) as error:
        log.warning("[definitions-uncopied] no good copy of queues.toml is kept: %s", error)


def hardening_of(flags: str | None, definitions: Definitions) -> Hardening:
    """By these flags; else XAQUEUE_FLAGS, queues.toml, NDRX_XA_FLAGS, then the default hold. Raises InvalidArgument."""
    asked = flags if flags is not None else os.environ.get(FLAGS_VARIABLE)
    asked = asked if asked is not None or definitions.sync else endurox_flags(os.environ.get("NDRX_XA_FLAGS", ""))
    return Hardening.parse(asked) if asked is not None else definitions.sync or DEFAULT


def write_durably(root: Path, name: str, text: str) -> None:
    """What is replaced hands on whose it is and who may read it."""
    temporary = f".{name}.new"
    try:
        with closing(DirectoryFileSystem(root)) as fs:
            discard(fs, temporary)
            fs.create(temporary, [text.encode()])
            with suppress(FileNotFoundError):
                before = (root / name).stat()
                with suppress(PermissionError):
                    os.chown(root / temporary, before.st_uid, before.st_gid)
                (root / temporary).chmod(stat.S_IMODE(before.st_mode))
            fs.sync_file(temporary)
            fs.rename(temporary, name)
            fs.sync_dir("")
    except OSError as error:
        raise OSError(error.errno, f"cannot be written: {error.strerror}", str(root / name)) from error


def write_definitions(path: str | os.PathLike[str], text: str) -> None:
    """Replaces queues.toml as a whole, durably. The caller has parsed ``text``."""
    write_durably(Path(path), QUEUES, text)
