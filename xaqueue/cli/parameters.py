"""What people type for a time, a header or an id, made into what the engine takes."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from xaqueue.cli.output import printable
from xaqueue.core.model.layout import parse_block
from xaqueue.errors import InvalidArgument, UnknownXid
from xaqueue.message import MESSAGE_ID_BYTES, MessageId
from xaqueue.tm.gtrid import Gtrid
from xaqueue.xid import Xid

T = TypeVar("T")

TIME_HELP = "ISO 8601, local where it has no offset, or from now on: +90s, +5m, +2h, +1d"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DATABASE_FORMS = "postgresql://, mysql://, mariadb:// or sqlite:///PATH"
XID_FORMS = "as `indoubt list` prints it, as a file of the space is named, or as PostgreSQL shows its gid; or its gtrid"
MANY = 5
"""Names that are shown of those among which one is to be chosen."""
_GID = re.compile(r"(\d+)_([A-Za-z0-9+/]*={0,2})_([A-Za-z0-9+/]*={0,2})")
_SPAN = re.compile(r"\+?(\d{1,12}(?:\.\d{1,6})?)([smhd])")
SPAN_HELP = "like 90s, 5m, 2h or 1d"
MOST_SPAN_S = 365_250 * 86400


def instant(text: str | None) -> datetime | timedelta | None:
    """A point in time, or how far it is from now on. Raises InvalidArgument."""
    if text is None:
        return None
    try:
        return span(text) if text.strip().startswith("+") else datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidArgument(f"time {text!r} is refused: {TIME_HELP}") from None


def span(text: str | None) -> timedelta | None:
    """A time from now on. Raises InvalidArgument."""
    if text is None:
        return None
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise InvalidArgument(f"{text!r} is no span of time: give a number its unit, {SPAN_HELP}")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > MOST_SPAN_S:
        raise InvalidArgument(f"{text!r} is longer than 1,000 years, and refused")
    return timedelta(seconds=seconds)


def headers(given: Sequence[str] | None) -> dict[str, str] | None:
    """The headers of ``key=value`` words. Raises InvalidArgument."""
    if not given:
        return None
    found = {}
    for word in given:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise InvalidArgument(f"header {word!r} is refused: key=value is wanted")
        found[key] = value
    return found


def message_id(text: str) -> MessageId:
    """The bytes of an id in hex. Raises InvalidArgument."""
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != MESSAGE_ID_BYTES:
        raise InvalidArgument(
            f"message id {text!r} is refused: {2 * MESSAGE_ID_BYTES} hex digits are wanted, as `xaqueue browse QUEUE` "
            "shows them"
        )
    return MessageId(value)


def xid(text: str) -> Xid:
    """The xid in any of its forms: as ``indoubt list`` prints it, in a file's name or path, or PostgreSQL's gid.

    Raises InvalidArgument.
    """
    bare = _bare(text)
    gid = _GID.fullmatch(bare)
    if gid is not None:
        try:
            return Xid(int(gid[1]), b64decode(gid[2], validate=True), b64decode(gid[3], validate=True))
        except binascii.Error as error:
            raise InvalidArgument(f"{text!r} is no gid of PostgreSQL: {error}") from None
    name = bare.rpartition("/")[2]
    block = parse_block(name)
    if block is not None:
        return block[0]
    try:
        return Xid.parse(name)
    except InvalidArgument:
        raise InvalidArgument(f"{text!r} is no xid: give it {XID_FORMS}") from None


def named(text: str, xids: Sequence[Xid], *, exact: bool = False) -> Xid:
    """That one of these xids which the text is in any of its forms, or of which only one begins with it.

    A gtrid, too, names the only branch that has it. exact: a beginning is refused, and the error says of what it is
    one. Raises UnknownXid, InvalidArgument.
    """
    bare = _bare(text)
    try:
        given: Xid | None = xid(text)
    except InvalidArgument:
        given = None
    if given is not None and given in xids:
        return given
    found = [each for each in xids if bare in _forms(each)] if bare else []
    begun = [each for each in xids if bare and any(form.startswith(bare) for form in _forms(each))]
    only = _only(found or begun, f"{text!r} names {len(found or begun):,} branches")
    if only is not None:
        if exact and not found:
            raise _short(text, f"branch {only}")
        return only
    if given is None:
        raise InvalidArgument(f"{text!r} is no xid, and no branch in doubt begins so: give it {XID_FORMS}")
    raise UnknownXid(f"branch {given} is not in doubt: list those that are with `xaqueue indoubt list`")


def _forms(xid: Xid) -> tuple[str, ...]:
    """What people may take for the name of a branch."""
    return str(xid), postgres_gid(xid), str(xid).partition(".")[2], printable(xid.gtrid), xid.gtrid.hex()


def gtrid_of(text: str, known: Iterable[bytes], *, exact: bool = False) -> Gtrid:
    """A global transaction of a transaction manager: the gtrid of one, or the xid of one of its branches in any form.

    Also the beginning of only one of those that are known, unless it has to be exact. Raises InvalidArgument.
    """
    bare = _bare(text)
    names = {name.decode("latin-1") for name in known}
    found = sorted(name for name in names if bare and name.startswith(bare))
    only = _only(found, f"{text!r} is the beginning of {len(found):,} transactions")
    if exact and only not in (None, bare):
        raise _short(text, f"transaction {only}")
    gtrid = Gtrid.parse(only or bare)
    with suppress(InvalidArgument):
        gtrid = gtrid or Gtrid.parse(xid(text).gtrid)
    if gtrid is None:
        raise InvalidArgument(
            f"{text!r} names no transaction of a transaction manager: give its gtrid (XAQ1 and 40 hex digits, or XAQ2 "
            "and 56), or the xid of one of its branches"
        )
    return gtrid


def foreign_gtrid(text: str, xids: Iterable[Xid]) -> bytes | None:
    """As ``gtrid_of``, of a transaction that another product began; None where no branch of these is meant."""
    with suppress(InvalidArgument):
        return xid(text).gtrid
    bare = _bare(text)
    found = sorted({each.gtrid for each in xids if bare and any(form.startswith(bare) for form in _forms(each))})
    return _only(found, f"{text!r} is the beginning of {len(found):,} transactions")


def _short(text: str, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{text!r} is only the beginning of {what}: nothing was done. Where no question is asked "
        "its name is wanted in full"
    )


def _only(found: Sequence[T], many: str) -> T | None:
    """That which was found; none for nothing, InvalidArgument for more than one."""
    if len(found) <= 1:
        return found[0] if found else None
    shown = ", ".join(map(str, found[:MANY])) + (" ..." if len(found) > MANY else "")
    raise InvalidArgument(f"{many}: {shown}: give more of one")


def postgres_gid(xid: Xid, *, whole: bool = True) -> str:
    """What ``pg_prepared_xacts`` has of a branch of this xid that psycopg or pgjdbc prepared; not whole: how all of its
    transaction begin, each of which has a bqual of its own."""
    return f"{xid.format_id}_{b64encode(xid.gtrid).decode()}_{b64encode(xid.bqual).decode() if whole else ''}"


def _bare(text: str) -> str:
    """Without white space and quotes around it."""
    text = text.strip()
    quoted = len(text) >= 2 and text[0] in "'\"" and text[-1] == text[0]
    return text[1:-1] if quoted else text
