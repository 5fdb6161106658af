"""A transaction manager as an operator names it: a log, or the database that decides, and its participants.

By a log's directory, a configuration, which is participants.toml of xaqueue(5), the DSN of a database or a file of
SQLite. What is opened to look leaves nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from xaqueue.cli.parameters import DATABASE_FORMS
from xaqueue.endpoint import is_url
from xaqueue.errors import Error, InvalidArgument, OperationalError
from xaqueue.tm.driver import is_a
from xaqueue.tm.gtrid import checked_name
from xaqueue.tm.log_directory import PARTICIPANTS
from xaqueue.tm.node_tables import NodeTables

if TYPE_CHECKING:
    from xaqueue.tm.manager import TransactionManager

ADDRESSES = {"xaqueue": "space", "postgres": "dsn", "mysql": "dsn", "sqlite": "path"}
"""By kind, the key that says where it is."""
KINDS = {"postgresql": "postgres", "postgres": "postgres", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}
"""By a DSN's scheme, the kind of the database."""
PREPARES_NOTHING = ("mysql", "sqlite")
"""Kinds of databases that take part by a row of the decision alone."""
_KEYS = {"log_dir", "decides", "last_resource", "participants"}
CONNECT_S = 10
"""For how long a PostgreSQL is tried, unless its DSN says so."""
ANSWER_S = 5
"""For how long a participant's answer is waited for."""
SQLITE = b"SQLite format 3\0"
SQLITE_VERSIONS = slice(18, 20)
"""In a database's file: how it is written and read, by a write-ahead log if both are 2."""


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
    decides: str | None = None
    """In whose database it has its decisions, instead of a log."""

    @property
    def database(self) -> ParticipantConfig | None:
        """The one that decides; None where a log does."""
        return self.participants[self.decides] if self.decides is not None else None

    @property
    def queues(self) -> list[ParticipantConfig]:
        """Of one with a database: those that may prepare beside it, databases among them."""
        return [
            one for name, one in self.participants.items() if name != self.decides and one.kind not in PREPARES_NOTHING
        ]


def named(text: str, queues: Sequence[str] = ()) -> TmConfig:
    """What a command line names. queues: behind a DSN. Raises InvalidArgument."""
    database = _by_dsn(text) or _by_file(Path(text))
    config = TmConfig(Path(), {"db": database}, decides="db") if database is not None else load(Path(text))
    if queues and config.decides is None:
        raise InvalidArgument("queues are named behind a DSN: those of a log are in its participants.toml")
    more = {f"{one.kind} {one.address}": one for each in queues for one in _places(each)}  # nobody has such a name
    return replace(config, participants={**config.participants, **more})


def database_of(text: str) -> ParticipantConfig:
    """Raises InvalidArgument for a log."""
    database = named(text).database
    if database is None:
        raise InvalidArgument(
            f"{text} has a log: give {DATABASE_FORMS}, or a configuration with decides = NAME, see xaqueue(5)"
        )
    return database


def _by_dsn(text: str) -> ParticipantConfig | None:
    scheme, colon, _ = text.partition("://")
    if not colon:
        return ParticipantConfig("db", "postgres", text) if "dbname=" in text else None
    if scheme not in KINDS:
        raise InvalidArgument(
            f"{scheme}:// is no database in which a transaction manager can be: give {DATABASE_FORMS}"
        )
    if scheme != "sqlite":
        return ParticipantConfig("db", KINDS[scheme], text)
    path = unquote(text.removeprefix("sqlite:///"))
    if path in ("", text):
        raise InvalidArgument("SQLite's is named sqlite:///PATH, with four / where the path begins with one")
    return ParticipantConfig("db", "sqlite", str(Path(path).resolve()))


def _by_file(path: Path) -> ParticipantConfig | None:
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(SQLITE)) == SQLITE:
                return ParticipantConfig("db", "sqlite", str(path.resolve()))
    return None


def _places(text: str) -> Sequence[ParticipantConfig]:
    """Raises InvalidArgument."""
    if Path(text).is_file():
        return load(Path(text)).queues
    if text.partition("://")[0] in KINDS or "dbname=" in text:
        one = database_of(text)
        return [replace(one, name=f"{one.kind} database")]
    return [ParticipantConfig(text, "xaqueue", text)]


def load(path: Path) -> TmConfig:
    """Of a configuration file, or of a log's directory with or without one in it. Raises InvalidArgument."""
    if path.is_dir():
        if not (path / PARTICIPANTS).exists():
            return TmConfig(path)
        path = path / PARTICIPANTS
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
    decides = document.get("decides")
    if decides is not None and (decides not in participants or "log_dir" in document or last is not None):
        raise InvalidArgument(
            f"{path}: decides = {decides!r} is one of the participants {sorted(participants)}, and goes with neither "
            "log_dir nor last_resource: that one's database keeps the decisions"
        )
    for one in participants.values():
        if one.kind in PREPARES_NOTHING and (decides or last) not in (None, one.name):
            raise InvalidArgument(f"{path}: {one.name} has no two-phase commit: make it the last_resource")
    return TmConfig((path.parent / log_dir).resolve(), participants, last, decides)


def _participant(path: Path, name: str, row: Any) -> ParticipantConfig:
    kind = row.get("kind") if isinstance(row, dict) else None
    key = ADDRESSES.get(kind) if isinstance(kind, str) else None
    if key is None:
        raise InvalidArgument(f"{path}: participant {name!r} needs kind = one of {', '.join(ADDRESSES)}")
    address = row.get(key)
    if set(row) != {"kind", key} or not isinstance(address, str) or not address:
        raise InvalidArgument(f"{path}: participant {name!r} of kind {kind} takes {key} = TEXT and nothing else")
    local = kind == "sqlite" or (kind == "xaqueue" and not is_url(address))
    try:
        place = str((path.parent / address).resolve()) if local else address
    except ValueError as error:
        raise InvalidArgument(f"{path}: participant {name!r}: {key} = {address!r} is no path ({error})") from None
    return ParticipantConfig(checked_name(name), str(kind), place)


def opener(participant: ParticipantConfig) -> Callable[[], Any]:
    """Opens PEP 249 connections to it, as ``TransactionManager`` takes it."""
    if participant.kind == "xaqueue":
        import xaqueue

        return lambda: xaqueue.connect(participant.address)
    if participant.kind == "sqlite":
        import sqlite3

        place = f"{Path(participant.address).as_uri()}?mode=rw"  # a file that is not there is never made
        return lambda: sqlite3.connect(place, uri=True)
    if participant.kind == "mysql":
        return partial(_mysql, participant.address)
    return lambda: postgres().connect(participant.address)


def _mysql(dsn: str) -> Any:
    """Raises InvalidArgument, which does not repeat the DSN: there may be a password in it."""
    try:
        import pymysql
    except ModuleNotFoundError:
        raise InvalidArgument("MySQL and MariaDB are reached with PyMySQL: pip install 'pymysql'") from None
    try:
        url = urlsplit(dsn)
        if url.scheme not in ("mysql", "mariadb"):
            raise InvalidArgument("the DSN is refused: it begins with mysql:// or mariadb://")
        given = dict(parse_qsl(url.query))
        options: dict[str, Any] = {key: int(v) if key.endswith("_timeout") else v for key, v in given.items()}
        named = {"host": url.hostname, "user": url.username, "password": url.password, "database": url.path[1:]}
        options |= {name: unquote(value) for name, value in named.items() if value}
        return pymysql.connect(**options, port=url.port or 0)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"the DSN is refused: {error}") from error


def postgres() -> Any:
    """The driver. Raises InvalidArgument where it is not installed."""
    try:
        import psycopg
    except ModuleNotFoundError:
        raise InvalidArgument("PostgreSQL is reached with psycopg: pip install 'psycopg[binary]'") from None
    return psycopg


# To look


def read_only(participant: ParticipantConfig) -> closing[Any]:
    """A connection to its database, to look."""
    if participant.kind == "sqlite":
        import sqlite3

        path = Path(participant.address)
        alone = "&immutable=1" if _is_at_rest(path) else ""
        return closing(sqlite3.connect(f"{path.as_uri()}?mode=ro{alone}", uri=True, timeout=ANSWER_S))
    if participant.kind != "postgres":
        return closing(opener(participant)())
    timeout = {} if "connect_timeout" in participant.address else {"connect_timeout": CONNECT_S}
    with ExitStack() as failed:
        connection = failed.enter_context(closing(postgres().connect(participant.address, autocommit=True, **timeout)))
        connection.execute(f"SET statement_timeout = '{ANSWER_S}s'")
        failed.pop_all()
    return closing(connection)


def _is_at_rest(path: Path) -> bool:
    """Whether it has a write-ahead log that nobody has open, and which is empty.

    To look at it SQLite would make that log's files, of whoever looks, and its application could not write them.
    """
    try:
        with path.open("rb") as file:
            versions = file.read(SQLITE_VERSIONS.stop)[SQLITE_VERSIONS]
    except OSError:
        return False  # SQLite says why
    return versions == b"\2\2" and not path.with_name(f"{path.name}-wal").exists()


@contextmanager
def told() -> Iterator[None]:
    """What a driver raises inside is an error of the command line."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        if not is_a(error, "Error"):
            raise
        raise OperationalError(f"the database: {error}") from error


@contextmanager
def tables_of(database: ParticipantConfig, *, to_look: bool = False) -> Iterator[tuple[Any, NodeTables]]:
    """A connection, and the tables there."""
    looks_at_file = to_look and database.kind == "sqlite"
    with (
        told(),
        read_only(database) if looks_at_file else closing(opener(database)()) as connection,
    ):
        tables = NodeTables.find(connection)
        if tables is None:
            raise OperationalError(
                "no transaction manager was at work in this database, or not in this schema: there are no tables "
                "of nodes"
            )
        yield connection, tables


def why_not(error: Exception) -> str:
    """Why a participant could not be asked. Raises the error where it is neither ours nor a driver's."""
    if not isinstance(error, OSError) and not is_a(error, "Error"):
        raise error
    if getattr(error, "sqlite_errorname", "") == "SQLITE_READONLY_ROLLBACK":
        return "a transaction was killed in it: SQLite repairs that when it is opened to write, as its application does"
    return " ".join(str(error).split())


def opened(config: TmConfig, slot: Path | None = None) -> AbstractContextManager[TransactionManager]:
    """The transaction manager of a configuration, with the log in that slot, or in the first that is free.

    Raises InvalidArgument, DecisionLogInUse.
    """
    if not config.participants:
        raise InvalidArgument(
            f"the participants are not known: write them into {config.log_dir / PARTICIPANTS}, see xaqueue(5)"
        )
    openers = {name: opener(participant) for name, participant in config.participants.items()}
    from xaqueue.tm.manager import TransactionManager  # which loads asyncio

    if config.decides is not None:
        return TransactionManager(openers, decides=config.decides)
    return TransactionManager(slot or config.log_dir, openers, last_resource=config.last_resource)
