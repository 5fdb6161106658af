"""An open string names a space as XA switches do: ``datadir="/data/orders",qspace="orders"``.

Parameters are comma separated, values in single or double quotes or in none; a plain path is no open string and means
itself. Source: Enduro/X, ``NDRX_XA_OPEN_STR`` of its disk queue.
"""

from __future__ import annotations

import re

from xaqueue.errors import InvalidArgument

GRAMMAR = 'datadir="DIR"[,qspace="NAME"]'
_PARAMETER = re.compile(r"""\s*([a-z]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^,"']*?))\s*(?:,|$)""")


def parse(text: str) -> tuple[str, str | None]:
    """Directory and space name (None where it is not given). Raises InvalidArgument that shows the grammar."""
    if not re.match(r"\s*(datadir|qspace)\s*=", text):
        return text, None
    given: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _PARAMETER.match(text, position)
        if match is None or match[1] not in ("datadir", "qspace") or match[1] in given:
            raise InvalidArgument(f"open string {text!r} is refused at {text[position:]!r}: {GRAMMAR}")
        given[match[1]] = next(value for value in match.groups()[1:] if value is not None)
        position = match.end()
    if not given.get("datadir") or given.get("qspace") == "":
        raise InvalidArgument(f"open string {text!r} is refused: {GRAMMAR}")
    return given["datadir"], given.get("qspace")
