"""Tokens and keys come from files that nobody else can read; what is in them is in no error."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from xaqueue.errors import InvalidArgument
from xaqueue.rpc.identity import token_name

SECRET_LIMIT_BYTES = 1024 * 1024


def read_secret(what: str, path: str | os.PathLike[str]) -> bytes:
    """The content of a file that only its owner can read, or only root and one group. Raises InvalidArgument."""
    try:
        with Path(path).open("rb") as file:
            found = os.fstat(file.fileno())
            _check_private(what, path, found)
            content = file.read(SECRET_LIMIT_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(f"{what} {os.fspath(path)} cannot be read: {error.strerror}") from None
    if len(content) > SECRET_LIMIT_BYTES:
        raise InvalidArgument(
            f"{what} {os.fspath(path)} is larger than {SECRET_LIMIT_BYTES:,} bytes: name another file"
        )
    return content


def read_token(path: str | os.PathLike[str]) -> str:
    """The token in a file, alone in its first line. Raises InvalidArgument."""
    content = read_secret("token file", path)
    token = content.decode("ascii", errors="replace").strip()
    try:
        token_name(token)
    except InvalidArgument as error:
        raise InvalidArgument(f"token file {os.fspath(path)}: {error}") from None
    return token


def _check_private(what: str, path: str | os.PathLike[str], found: os.stat_result) -> None:
    """As PostgreSQL has it for keys: root's may be read by a group, everybody else's by its owner alone."""
    others = 0o027 if found.st_uid == 0 else 0o077
    if stat.S_ISREG(found.st_mode) and found.st_mode & others:
        raise InvalidArgument(
            f"{what} {os.fspath(path)} can be read or changed by other users (mode {stat.S_IMODE(found.st_mode):04o}): "
            f"chmod 600 {os.fspath(path)}"
        )
