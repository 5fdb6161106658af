"""Tables of queues.toml, and what is wrong with one: the key is named, and what it takes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from xaqueue.errors import InvalidArgument


def suggestion(name: str, known: Iterable[str]) -> str:
    """``: did you mean 'orders'?`` for a near miss, else an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {near[0]!r}?" if near else ""


def table_of(document: Mapping[str, Any], name: str, where: str = "") -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, Mapping):
        raise InvalidArgument(f"queues.toml: {name} = {table!r}: a table {where or f'[{name}]'} is wanted")
    return table


def only(table: Mapping[str, Any], where: str, known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise InvalidArgument(
                f"queues.toml: {where} does not take {key!r}{suggestion(key, known)}; it takes {', '.join(known)}"
            )
