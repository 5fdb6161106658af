"""A transaction manager's configuration for operators: its log's directory, and how its participants are reached.

log_dir = "."                  # as seen from this file; the file's own directory without it
last_resource = "files"        # the one without two-phase commit, if there is one

[participants.queue]           # names as the transaction manager has them
kind = "xaqueue"
space = "xaq+unix:///run/xaqueue.sock"          # a URL, or a directory

[participants.ledger]
kind = "postgres"
dsn = "host=db dbname=ledger"                   # passwords belong into ~/.pgpass

[participants.files]
kind = "sqlite"
path = "files.db"
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xaqueue.errors import InvalidArgument
from xaqueue.tm.gtrid import checked_name

FILE = "participants.toml"
"""Its name in a log's directory."""
ADDRESSES = {"xaqueue": "space", "postgres": "dsn", "sqlite": "path"}
"""By kind, the key that says where it is."""
_KEYS = {"log_dir", "last_resource", "participants"}


@dataclass(frozen=True, slots=True)
class ParticipantConfig:
    """One participant; the address is what its kind's key says, and paths are absolute."""

    name: str
    kind: str
    address: str


@dataclass(frozen=True, slots=True)
class TmConfig:
    """What an operator's command knows of a transaction manager."""

    log_dir: Path
    participants: Mapping[str, ParticipantConfig] = field(default_factory=dict)
    last_resource: str | None = None
    source: str = ""
    """The file that it was read from; empty for a bare log directory."""


def load(path: Path) -> TmConfig:
    """Of a configuration file, or of a log's directory with or without one in it. Raises InvalidArgument."""
    if path.is_dir():
        if not (path / FILE).exists():
            return TmConfig(path)
        path = path / FILE
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read ({error}): name a log's directory, or a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{path} is no TOML: {error}") from error
    return _config(path, document)


def _config(path: Path, document: Mapping[str, Any]) -> TmConfig:
    unknown = sorted(set(document) - _KEYS)
    if unknown:
        raise InvalidArgument(f"{path}: {unknown[0]!r} is no key of it: {', '.join(sorted(_KEYS))}")
    rows = document.get("participants", {})
    log_dir, last = document.get("log_dir", "."), document.get("last_resource")
    if not isinstance(rows, dict) or not isinstance(log_dir, str):
        raise InvalidArgument(f"{path}: [participants.NAME] tables and a text as log_dir are wanted")
    participants = {name: _participant(path, name, row) for name, row in rows.items()}
    if last is not None and last not in participants:
        raise InvalidArgument(f"{path}: last_resource {last!r} is none of the participants {sorted(participants)}")
    for one in participants.values():
        if one.kind == "sqlite" and one.name != last:
            raise InvalidArgument(f"{path}: {one.name} has no two-phase commit: make it the last_resource")
    return TmConfig((path.parent / log_dir).resolve(), participants, last, str(path))


def _participant(path: Path, name: str, row: Any) -> ParticipantConfig:
    kind = row.get("kind") if isinstance(row, dict) else None
    key = ADDRESSES.get(kind) if isinstance(kind, str) else None
    if key is None:
        raise InvalidArgument(f"{path}: participant {name!r} needs kind = one of {', '.join(ADDRESSES)}")
    address = row.get(key)
    if set(row) != {"kind", key} or not isinstance(address, str) or not address:
        raise InvalidArgument(f"{path}: participant {name!r} of kind {kind} takes {key} = TEXT and nothing else")
    local = kind == "sqlite" or (kind == "xaqueue" and "://" not in address)
    return ParticipantConfig(
        checked_name(name), str(kind), str((path.parent / address).resolve()) if local else address
    )


def opener(participant: ParticipantConfig) -> Callable[[], Any]:
    """Opens PEP 249 connections to it, as ``TransactionManager`` takes it."""
    if participant.kind == "xaqueue":
        import xaqueue

        return lambda: xaqueue.connect(participant.address)
    if participant.kind == "sqlite":
        import sqlite3

        place = (
            f"{Path(participant.address).as_uri()}?mode=rw"  # a file that is not there is never made: it says nothing
        )
        return lambda: sqlite3.connect(place, uri=True)
    return lambda: postgres().connect(participant.address)


def postgres() -> Any:
    """The driver. Raises InvalidArgument where it is not installed."""
    try:
        import psycopg
    except ModuleNotFoundError:
        raise InvalidArgument('a participant of kind postgres needs psycopg: pip install "psycopg[binary]"') from None
    return psycopg
