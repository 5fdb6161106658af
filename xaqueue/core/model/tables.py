"""Tables of queues.toml, and what is wrong with one: the key is named, and what it takes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

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


def only(table: Any, where: str, known: tuple[str, ...]) -> None:
    """Raises InvalidArgument for another key, or where it is no table."""
    if not isinstance(table, Mapping):
        raise InvalidArgument(f"queues.toml: {where} is {table!r}: a table is wanted")
    for key in table:
        if key not in known:
            raise InvalidArgument(
                f"queues.toml: {where} does not take {key!r}{suggestion(key, known)}; it takes {', '.join(known)}"
            )


class Number(NamedTuple):
    """Which numbers a key takes, and the field that they are for."""

    field: str
    kind: type[float]
    """An int is taken for a float, too."""
    least: float
    most: float | None
    what: str
    """In words: ``seconds``."""


def numbers(table: Mapping[str, Any], where: str, keys: Mapping[str, Number]) -> dict[str, Any]:
    """By field, those of the keys that are given."""
    return {number.field: _checked(table[key], where, key, number) for key, number in keys.items() if key in table}


def _checked(value: Any, where: str, key: str, number: Number) -> float:
    is_number = isinstance(value, int if number.kind is int else int | float) and not isinstance(value, bool)
    if not is_number or value < number.least or (number.most is not None and not value <= number.most):
        upto = f" to {number.most:,}" if number.most is not None else ""
        raise InvalidArgument(
            f"queues.toml: {where} {key} = {value!r}: {number.what} from {number.least}{upto} is wanted"
        )
    return number.kind(value)


def choice(table: Mapping[str, Any], where: str, key: str, words: tuple[str, ...]) -> str:
    """One of these; the first where it is not given."""
    word = table.get(key, words[0])
    if word not in words:
        raise InvalidArgument(
            f"queues.toml: {where} {key} = {word!r}: {', '.join(words[:-1])} or {words[-1]} is wanted"
        )
    return str(word)


def switch(table: Mapping[str, Any], where: str, key: str, default: bool = False) -> bool:
    value = table.get(key, default)
    if not isinstance(value, bool):
        raise InvalidArgument(f"queues.toml: {where} {key} = {value!r}: true or false is wanted")
    return value
