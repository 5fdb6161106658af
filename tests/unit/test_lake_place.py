"""A space at a server is asked of whoever has it: one that is fenced ends, and the other one of its pair answers."""

from __future__ import annotations

from typing import Any

import pytest

from xaqueue.errors import ResourceFailed
from xaqueue.lake import place
from xaqueue.lake.place import Served
from xaqueue.rpc.client import manager


class Session:
    """As a session with a server."""

    space_id = "one"

    def __init__(self, *, is_fenced: bool) -> None:
        self.is_fenced, self.is_closed = is_fenced, False

    def call_with_retry(self, method: str, *params: Any) -> Any:
        if self.is_fenced:
            raise ResourceFailed("the space is fenced")
        return method, *params

    def close(self) -> None:
        self.is_closed = True


def served(monkeypatch: pytest.MonkeyPatch, *sessions: Session) -> Served:
    left = list(sessions)
    monkeypatch.setattr(manager, "remote_manager", lambda *_, **__: left.pop(0))
    monkeypatch.setattr(place, "POLL_S", 0.0)
    return Served("xaq://one:1,other:1", "one")


def test_one_that_is_fenced_is_left_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    fenced, other = [Session(is_fenced=True) for _ in range(2)], Session(is_fenced=False)
    asked = served(monkeypatch, *fenced, other)
    assert asked.ask("ranges", "orders") == ("ranges", "orders")
    assert [one.is_closed for one in (*fenced, other)] == [True, True, False]
    assert asked.ask("tries", "orders") == ("tries", "orders")


def test_one_that_stays_fenced_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "CONNECT_S", 0.0)
    with pytest.raises(ResourceFailed, match="fenced"):
        served(monkeypatch, Session(is_fenced=True)).ask("ranges", "orders")
