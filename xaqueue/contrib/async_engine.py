"""An AsyncEngine of SQLAlchemy as a participant: what works for threads, in SQLAlchemy's own greenlets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only, greenlet_spawn

from xaqueue import InvalidArgument, Participant

INTERRUPTIONS = frozenset(("cancel_safe", "cancel", "interrupt"))
"""What a thread calls on a driver's own connection; an async one is interrupted by the end of its task."""
_DRIVERS = frozenset(("postgresql+psycopg", "sqlite+aiosqlite"))
"""Those that are known to do here: others differ in parameters, or in what they say of a transaction."""


def participant(
    engine: AsyncEngine, kind: Callable[..., Any], session: bool | Callable[..., Any], sort_key: str | None
) -> Participant:
    """kind: the adapter of an Engine of this database. Raises InvalidArgument."""
    sessions = AsyncSession if session is True else session or None

    async def connect() -> _AsyncConnection:
        return _AsyncConnection(engine, kind, sessions)

    named = f"{engine.dialect.name}+{engine.dialect.driver}"
    if named not in _DRIVERS:
        raise InvalidArgument(
            f"{named} takes no part in async transactions: use {' or '.join(sorted(_DRIVERS))}, or an Engine in threads"
        )
    return Participant(connect, sort_key, parallel=True, idle=0)


class _Awaitable:
    """Its methods are to be awaited, and are those of what SQLAlchemy has made for threads."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._plain, name)
        return partial(greenlet_spawn, found) if callable(found) else found


class _AsyncConnection(_Awaitable):
    """The connection of an AsyncEngine."""

    def __init__(self, engine: AsyncEngine, kind: Callable[..., Any], sessions: Callable[..., Any] | None) -> None:
        super().__init__(kind(engine.sync_engine, sessions and self._made))
        self._engine = engine
        self._sessions = sessions
        self._session: AsyncSession | None = None

    def __getattr__(self, name: str) -> Any:
        if name in INTERRUPTIONS:
            raise AttributeError(name)
        return super().__getattr__(name)

    @property
    async def lent(self) -> AsyncConnection | AsyncSession:
        """What the transaction's user gets."""
        plain = await greenlet_spawn(getattr, self._plain, "lent")
        return self._session or AsyncConnection(self._engine, plain)

    def tell_savepoints(self, told: Any) -> None:
        """told: what it returns is to be awaited, in the place of its user."""
        self._plain.tell_savepoints(_AwaitedTold(told))

    async def savepoint(self) -> _Awaitable:
        return _Awaitable(await greenlet_spawn(self._plain.savepoint))

    def cursor(self) -> _AsyncCursor:
        return _AsyncCursor(self._plain)

    def _made(self, bind: Connection, **options: Any) -> Session:
        assert self._sessions is not None
        made = self._sessions(bind=AsyncConnection(self._engine, bind), **options)
        if not isinstance(made, AsyncSession):
            raise InvalidArgument(f"{self._sessions!r} makes no AsyncSession: give an async_sessionmaker")
        self._session = made
        return made.sync_session


class _AwaitedTold:
    """Its methods wait, in a greenlet of SQLAlchemy's."""

    def __init__(self, told: Any) -> None:
        self._told = told

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: await_only(getattr(self._told, name)(*arguments, **options))


class _AsyncCursor(_Awaitable):
    """It is made when it is used: that may wait."""

    def __init__(self, connection: Any) -> None:
        super().__init__(None)
        self._connection = connection

    async def execute(self, *arguments: Any) -> _AsyncCursor:
        if self._plain is None:
            self._plain = await greenlet_spawn(self._connection.cursor)
        await greenlet_spawn(self._plain.execute, *arguments)
        return self

    async def close(self) -> None:
        if self._plain is not None:
            await greenlet_spawn(self._plain.close)
