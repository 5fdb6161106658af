"""Edits of a queues.toml, which leave its comments as they are, and how they are said in words."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from xaqueue.core.model import options
from xaqueue.core.model.definitions import parse, targets
from xaqueue.core.model.options import suggestion
from xaqueue.errors import InvalidArgument, UnknownQueue
from xaqueue.message import check_queue_name


def with_queue(text: str, name: str, settings: Mapping[str, object], table: str = "queues") -> str:
    """The same queues.toml, comments and all, with a queue defined or redefined. Raises as ``parse`` does.

    table: another table that takes names, as that of the queues does.
    """
    check_queue_name(name)
    return _with(text, (table, name), settings)


def without_queue(text: str, name: str) -> str:
    """The same queues.toml, comments and all, without a queue. Raises UnknownQueue, and InvalidArgument where others
    name it."""
    found, wanted = parse(text), tomllib.loads(text)
    for check in options.everything().undefining:
        check(found, name)
    if name not in found.queues:
        raise UnknownQueue(f"queue {name!r} is not defined in queues.toml{suggestion(name, found.queues)}")
    tables = [(where, queue) for where, queue in found.listed() if queue is not found.queues[name]]
    named = [f"{where} {key.name}" for where, queue in tables for key in targets() if key.of(queue) == name]
    if named:
        raise InvalidArgument(f"queue {name} stays defined, for it is named by {', '.join(named)}: change these first")
    del wanted["queues"][name]
    for changed in _cuttings(text, name):
        with suppress(tomllib.TOMLDecodeError):
            if {"queues": {}} | tomllib.loads(changed) == wanted:
                return changed
    raise InvalidArgument(f"queues.toml: queue {name} is no table of its own: take it out by hand")


def _cuttings(text: str, name: str) -> Iterator[str]:
    """The text without what may be the queue's table. Comments above the next table belong to that."""
    lines = text.splitlines(keepends=True)
    headers = [number for number, line in enumerate(lines) if line.lstrip().startswith("[")]
    for first in headers:
        with suppress(tomllib.TOMLDecodeError):  # a line within a value
            if tomllib.loads(lines[first]) == {"queues": {name: {}}}:
                for end in (*(number for number in headers if number > first), len(lines)):
                    while end > first + 1 and lines[end - 1].lstrip()[:1] in ("", "#"):
                        end -= 1
                    yield "".join(lines[:first] + lines[end:])


def with_default(text: str, order: str) -> str:
    """The same queues.toml, with a [default] table of this order. Raises as ``parse`` does."""
    return _with(text, ("default",), {"order": order})


def options_of(words: Iterable[str]) -> dict[str, object]:
    """What KEY=VALUE words say, a value as in TOML or plain text; None takes a key away. Raises InvalidArgument."""
    found: dict[str, object] = {}
    known = [one.name for one in options.everything().queue]
    for word in words:
        key, is_given, value = word.partition("=")
        if key not in known:
            raise InvalidArgument(f"queues have no {key!r}{suggestion(key, known) or '.'} They take {', '.join(known)}")
        if not is_given:
            raise InvalidArgument(f"{word!r}: KEY=VALUE is wanted, or {key}= to take it away")
        try:
            found[key] = tomllib.loads(f"value = {value}")["value"] if value else None
        except tomllib.TOMLDecodeError:
            found[key] = value
    return found


def _with(text: str, path: Sequence[str], settings: Mapping[str, object]) -> str:
    import tomlkit  # only writers need it, and it is slow to load

    parse(text)
    document = tomlkit.parse(text)
    table: Any = document
    for key in path[:-1]:
        table = table.setdefault(key, tomlkit.table(is_super_table=True))
    table = table.setdefault(path[-1], tomlkit.table())
    table.update({key: value for key, value in settings.items() if value is not None})
    for key in settings.keys() - {key for key, value in settings.items() if value is not None}:
        table.pop(key, None)
    defined = tomlkit.dumps(document)
    try:
        defined.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"queues.toml: {path[-1]}: {error.object[error.start : error.end]!r} is no text"
        ) from None
    parse(defined)
    return defined
