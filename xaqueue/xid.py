"""A transaction branch has one name, an Xid, and an Xid cannot be wrong.

The text form is the file name of the branch's blocks: ``<format_id>.<base64url gtrid>.<base64url bqual>``, unpadded.
Source: X/Open C193, chapter 4.2 (``struct xid_t``); PEP 249, "Two-Phase Commit Extensions".
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode
from binascii import b2a_base64
from typing import NamedTuple

from xaqueue.errors import InvalidArgument

PART_LIMIT_BYTES = 64
FORMAT_ID_BITS = 31
FORMAT_ID_LIMIT = 2**FORMAT_ID_BITS - 1

LOCAL_FORMAT_ID = 0x58415131
"""Format id ("XAQ1") of the branches that a session starts for itself, for one-phase work without a TM."""


class _Parts(NamedTuple):
    format_id: int
    gtrid: bytes
    bqual: bytes


class Xid(_Parts):
    """The name of a branch: a format id of 0 to 2**31-1 and two byte strings of 0 to 64 bytes.

    It is the sequence of three that PEP 249 asks for. A ``str`` part is taken as UTF-8.
    Raises InvalidArgument for anything else; so the NULL XID (format id -1) cannot be made.
    """

    __slots__ = ()

    def __new__(cls, format_id: int, gtrid: bytes | str, bqual: bytes | str) -> Xid:
        if type(format_id) is not int or format_id >> FORMAT_ID_BITS:  # it is negative, or too large
            raise InvalidArgument(f"format id {format_id!r} is not a number from 0 to {FORMAT_ID_LIMIT}")
        if type(gtrid) is not bytes or len(gtrid) > PART_LIMIT_BYTES:
            gtrid = _checked("gtrid", gtrid)
        if type(bqual) is not bytes or len(bqual) > PART_LIMIT_BYTES:
            bqual = _checked("bqual", bqual)
        return tuple.__new__(cls, (format_id, gtrid, bqual))

    def __str__(self) -> str:
        format_id, gtrid, bqual = self
        parts = b"%b.%b" % (b2a_base64(gtrid, newline=False), b2a_base64(bqual, newline=False))
        return f"{format_id}.{parts.translate(_URLSAFE, b'=').decode()}"

    @property
    def is_local(self) -> bool:
        """Whether a session made this name for its own one-phase work."""
        return self.format_id == LOCAL_FORMAT_ID

    @classmethod
    def local(cls, gtrid: bytes, bqual: bytes = b"") -> Xid:
        """The name of a branch that a session starts for itself; gtrid: 16 bytes that nobody else has."""
        return tuple.__new__(cls, (LOCAL_FORMAT_ID, gtrid, bqual))

    @classmethod
    def parse(cls, text: str) -> Xid:
        """The Xid of its text form; the exact inverse of ``str``. Raises InvalidArgument."""
        parts = text.split(".")
        try:
            if len(parts) != 3:
                raise ValueError  # noqa: TRY301
            xid = cls(int(parts[0]), _decode(parts[1]), _decode(parts[2]))
        except (ValueError, binascii.Error):
            xid = None
        if xid is None or str(xid) != text:
            raise InvalidArgument(f"{text!r} is no xid: expected <format id>.<base64url gtrid>.<base64url bqual>")
        return xid


_URLSAFE = bytes.maketrans(b"+/", b"-_")


def _checked(name: str, part: bytes | str) -> bytes:
    if isinstance(part, str):
        part = part.encode()
    if not isinstance(part, bytes) or len(part) > PART_LIMIT_BYTES:
        raise InvalidArgument(f"{name} {part!r} is not a byte string of 0 to {PART_LIMIT_BYTES} bytes")
    return part


def _decode(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
