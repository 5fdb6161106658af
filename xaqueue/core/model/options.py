"""What queues.toml takes: each table is a row of keys, and a key says which values it takes and what holds without it.

The core has keys of its own, and each feature has some in its ``options.py``. They are put together above the core,
and the front door of the package says where: ``everything`` is asked when a queues.toml is read. What a key of a
feature is for only that feature knows; here it is a value by its name. A refusal names the key, and what it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from xaqueue.errors import InvalidArgument
from xaqueue.message import check_queue_name

T = TypeVar("T")
LONGEST_S = 366 * 24 * 3600


class Defined(Protocol):
    """A definition that says something to features, by key."""

    @property
    def options(self) -> Mapping[str, Any]: ...


class Key(NamedTuple, Generic[T]):
    """One key of a table."""

    name: str
    default: T
    read: Callable[[str, Any], T]
    """What a value comes to. Given the table in which it stands, ``[queues.a]``; raises InvalidArgument."""
    is_target: bool = False
    """It names another queue, which has to be defined."""

    def of(self, defined: Defined) -> T:
        """What holds for a queue, or a space."""
        found: T = defined.options.get(self.name, self.default)
        return found


class Table(NamedTuple):
    """A table beside those of the queues."""

    name: str
    read: Callable[[Mapping[str, Any]], Any]
    """What stands in it comes to this. Raises InvalidArgument."""


class Known(NamedTuple):
    """All that a queues.toml may say, in the order in which a refusal lists it."""

    space: Sequence[Key[Any]]
    """Keys of [space]."""
    queue: Sequence[Key[Any]]
    """Keys of [default], and of the table of a queue."""
    tables: Sequence[Table]
    checks: Sequence[Callable[[Any], object]] = ()
    """Of the definitions as a whole. Each raises InvalidArgument."""
    undefining: Sequence[Callable[[Any, str], object]] = ()
    """Before a queue is taken out of the definitions. Each raises InvalidArgument."""
    reloading: Sequence[Callable[[Any, Any], object]] = ()
    """Before an open space has other definitions. Each raises InvalidArgument where it cannot while it is open."""
    acts: Sequence[Callable[[Any], object]] = ()
    """A queue has got a definition, or another one: what follows from its options. The space's lock is held."""
    stand_in: Callable[[Any], tuple[Any, str]] = lambda found: (found, "")
    """What holds of a copy that stands in for a queues.toml that is refused, and in words what does not."""
    kinds: Callable[[], tuple[Any, ...]] = tuple
    """Of the records that features keep in a space; see ``record_kinds.RecordKind``."""


def _none() -> Known:
    raise RuntimeError("the front door of xaqueue says what queues.toml takes")


everything: Callable[[], Known] = _none


def suggestion(name: str, known: Iterable[str]) -> str:
    """``: did you mean 'orders'?`` for a near miss, else an empty string."""
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {near[0]!r}?" if near else ""


def table_of(document: Mapping[str, Any], name: str, where: str = "") -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, Mapping):
        raise InvalidArgument(f"queues.toml: {name} = {table!r}: a table {where or f'[{name}]'} is wanted")
    return table


def only(table: Any, where: str, known: Sequence[str]) -> None:
    """Raises InvalidArgument for another key, or where it is no table."""
    if not isinstance(table, Mapping):
        raise InvalidArgument(f"queues.toml: {where} is {table!r}: a table is wanted")
    for key in table:
        if key not in known:
            raise InvalidArgument(
                f"queues.toml: {where} does not take {key!r}{suggestion(key, known) or '.'} It takes {', '.join(known)}"
            )


def values(table: Any, where: str, keys: Iterable[Key[Any]]) -> dict[str, Any]:
    """What it says, by key. Raises InvalidArgument."""
    by_name = {key.name: key for key in keys}
    only(table, where, tuple(by_name))
    return {name: key.read(where, table[name]) for name, key in by_name.items() if name in table}


def all_of(keys: Iterable[Key[Any]], options: Mapping[str, Any]) -> list[Any]:
    """What holds for each of these."""
    return [options.get(key.name, key.default) for key in keys]


def number(name: str, default: Any, unit: str, least: float, most: float | None = None) -> Key[Any]:
    """A whole one, or any where the default is a float. unit: in words, ``seconds``."""
    is_whole = not isinstance(default, float)

    def read(where: str, value: Any) -> float:
        is_number = isinstance(value, int if is_whole else int | float) and not isinstance(value, bool)
        if not is_number or value < least or (most is not None and not value <= most):
            upto = f" to {most:,}" if most is not None else ""
            raise InvalidArgument(f"queues.toml: {where} {name} = {value!r}: {unit} from {least}{upto} is wanted")
        return int(value) if is_whole else float(value)

    return Key(name, default, read)


def choice(name: str, *words: str) -> Key[str]:
    """One of these; the first where it is not given."""

    def read(where: str, value: Any) -> str:
        if value not in words:
            raise InvalidArgument(
                f"queues.toml: {where} {name} = {value!r}: {', '.join(words[:-1])} or {words[-1]} is wanted"
            )
        return str(value)

    return Key(name, words[0], read)


def switch(name: str, default: bool = False) -> Key[bool]:
    def read(where: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise InvalidArgument(f"queues.toml: {where} {name} = {value!r}: true or false is wanted")
        return value

    return Key(name, default, read)


def text(name: str) -> Key[str]:
    return Key(name, "", lambda _, value: str(value))


def name_of_another(name: str, *, is_target: bool = True) -> Key[str]:
    """The name of a queue, or of what is named likewise, and not of the queue in whose table it stands."""

    def read(where: str, value: Any) -> str:
        try:
            named = check_queue_name(value)
        except InvalidArgument as error:
            raise InvalidArgument(f"queues.toml: {where} {name}: {error}") from None
        if where == f"[queues.{named}]":
            raise InvalidArgument(f"queues.toml: {where} {name} is the queue itself: name another")
        return named

    return Key(name, "", read, is_target)
