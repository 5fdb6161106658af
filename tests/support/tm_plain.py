"""What participants see of a transaction, by the plain way of the transaction manager and by its general one.

Each call that participants get is noted, with what it was given, and so is each named step. One of them may fail,
before or behind what it does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from xaqueue.tm.transaction import Transaction

TWO_PHASES = ("tpc_begin", "tpc_prepare", "tpc_carry", "tpc_commit", "tpc_rollback")
VERBS = (*TWO_PHASES, "commit", "rollback", "execute", "close")
_ADDRESS = re.compile(r"0x[0-9a-f]+")


class Notes:
    """fails_at: which of the noted calls fails, counted from when ``begin`` was called. before: whether it does so
    before it has done anything."""

    def __init__(self, fails_at: int = -1, error: BaseException | None = None, *, before: bool = True) -> None:
        self.lines: list[str] = []
        self.error = error
        self._fails_at = fails_at
        self._before = before
        self._count: int | None = None

    def begin(self) -> None:
        self._count = 0

    @property
    def count(self) -> int:
        return self._count or 0

    @property
    def has_failed(self) -> bool:
        return self.count > self._fails_at >= 0

    def add(self, *words: Any) -> None:
        self.lines.append(_ADDRESS.sub("", " ".join(map(repr, words))))

    @contextmanager
    def call(self, *words: Any) -> Iterator[None]:
        self.add(*words)
        fails = self._count is not None and self._count == self._fails_at
        if self._count is not None:
            self._count += 1
        if fails and self._before:
            assert self.error is not None
            raise self.error
        yield
        if fails:
            assert self.error is not None
            raise self.error

    def of(self, kind: type, name: str) -> type:
        """The class, whose instances note their calls under this name."""
        made = {verb: self._noted(getattr(kind, verb), name) for verb in VERBS if hasattr(kind, verb)}
        return type(kind.__name__, (kind,), {**made, "__module__": kind.__module__})

    def _noted(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(connection: Any, *given: Any, **options: Any) -> Any:
            with self.call(name, method.__name__, given, options):
                return method(connection, *given, **options)

        return call


@contextmanager
def way(*, plain: bool) -> Iterator[None]:
    """Whether the plain case has its own way."""
    with pytest.MonkeyPatch.context() as patched:
        if not plain:
            patched.setattr(Transaction, "_is_plain", False)
        yield
