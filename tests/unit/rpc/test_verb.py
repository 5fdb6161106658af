"""A verb is one object: with it, it is there in a space, over a server, where its right is asked, and in asyncio."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_type

import pytest

import xaqueue
from support import ROOT
from support.served import ServerThread
from xaqueue.access import CONSUME, Identity
from xaqueue.core.engine.session import Session as CoreSession
from xaqueue.core.owner import definitions_file
from xaqueue.errors import AccessDenied, InvalidArgument
from xaqueue.features.opening import create
from xaqueue.features.session import VERBS, Session, Verbs, attach
from xaqueue.rpc.client.manager import RemoteManager, remote_manager
from xaqueue.rpc.client.resend import ResendingManager
from xaqueue.rpc.server.calls import METHODS
from xaqueue.rpc.server.listeners import ListenConfig
from xaqueue.rpc.verb import verb

if TYPE_CHECKING:
    from xaqueue.rpc.client.link import Link
    from xaqueue.rpc.server.peer import Caller

QUEUES = """
[queues.orders]
[queues.secret]
[access.roles.shop]
members = ["user:shop"]
consume = ["orders"]
"""


@dataclass(frozen=True)
class Length:
    queue: str
    messages: int


@verb(CONSUME, "call_with_retry")
def length(self: CoreSession, queue: str, times: int = 1) -> Length:
    """The toy: nothing else in the package knows of it."""
    return Length(queue, times * len(list(self.browse(queue))))


@verb(CONSUME)
def doubled(self: CoreSession, queue: str) -> int:
    return 2 * len(list(self.browse(queue)))


@doubled.server
def _(caller: Caller, queue: str, text: Any) -> str:
    return f"{text}: {doubled(caller.session, queue)}"


@doubled.client
def _(self: Link, queue: str) -> int:
    return int(self.call("doubled", queue, "two").removeprefix("two: "))


if TYPE_CHECKING:

    def refused_by_mypy(near: Session, far: RemoteManager) -> None:
        """Were their types lost on the way, these comments would be unused, and mypy would say so."""
        near.extend("orders", b"", "long")  # type: ignore[arg-type]
        far.reserve("orders", "stream")  # type: ignore[call-arg]
        length(far, 7)  # type: ignore[arg-type]
        attach("space", sink="NONE")  # type: ignore[call-arg]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    create(tmp_path / "space")
    definitions_file.write_definitions(tmp_path / "space", QUEUES)
    with xaqueue.connect(tmp_path / "space", sync="NONE") as connection:
        connection.enqueue("orders", b"x")
        connection.enqueue("secret", b"y")
    return tmp_path / "space"


@pytest.fixture
def server(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    monkeypatch.setitem(METHODS, "length", length.method)
    monkeypatch.setitem(METHODS, "doubled", doubled.method)
    made = ServerThread(root, root.parent / "socket", sync="NONE", listen=ListenConfig())
    yield made
    made.stop()


def test_in_a_space(root: Path) -> None:
    session = attach(root, sync="NONE", watch=False)
    assert length(session, "orders", times=3) == Length("orders", 3)
    assert doubled(session, "orders") == 2
    session.close()


def test_with_a_server(server: ServerThread) -> None:
    manager = remote_manager(server.url)
    assert_type(length(manager, "orders"), Length)
    assert length(manager, "orders", times=3) == Length("orders", 3)
    assert doubled(manager, "orders") == 2
    with pytest.raises(InvalidArgument, match="length takes 1 to 2 parameters, not 0"):
        manager.call("length")
    with pytest.raises(InvalidArgument, match="doubled takes 2 parameters, not 1"):
        manager.call("doubled", "orders")
    with pytest.raises(InvalidArgument, match="method 'halved' is unknown"):
        manager.call("halved")
    manager.close()


def test_its_right_is_asked(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xaqueue.rpc.server.listeners.unix_peer", lambda _: Identity(("user:shop",)))
    manager = remote_manager(server.url)
    assert length(manager, "orders") == Length("orders", 1)
    with pytest.raises(AccessDenied, match="length of queue 'secret' needs the right to consume"):
        length(manager, "secret")
    with pytest.raises(AccessDenied, match="doubled of queue 'secret' needs the right to consume"):
        doubled(manager, "secret")
    with pytest.raises(InvalidArgument, match="method 'halved' is unknown"):
        manager.call("halved")
    manager.close()


def test_in_asyncio(server: ServerThread) -> None:
    async def ask() -> Length:
        async with await xaqueue.connect_async(server.url) as connection:
            return await connection._ask(lambda session: length(session._manager, "orders"))

    assert asyncio.run(ask()) == Length("orders", 1)


@pytest.mark.parametrize("name", sorted(VERBS))
def test_what_is_listed_is_a_method_of_every_session(name: str) -> None:
    """Its own half, with no call between."""
    assert vars(Session)[name] is VERBS[name].perform
    assert vars(RemoteManager)[name] is VERBS[name].ask
    assert METHODS[VERBS[name].name] is VERBS[name].method


@pytest.mark.parametrize("name", sorted(RemoteManager.verbs))
def test_both_halves_take_the_same(name: str) -> None:
    """In a space it may take more, which has a default."""
    verb = RemoteManager.verbs[name]
    asks, performs = (list(signature(half).parameters.values())[1:] for half in (verb.ask, verb.perform))
    if [one.name for one in asks] == ["arguments", "options"]:  # it asks by the name, with what the other one takes
        assert verb._answer is not None, "the types of its answer are imported where it stands"
        return
    own = [one for one in performs if one.name in {one.name for one in asks}]
    assert [(one.name, one.kind, one.default) for one in asks] == [(one.name, one.kind, one.default) for one in own]
    assert all(one.default is not one.empty for one in performs if one not in own)


@pytest.mark.parametrize("name", METHODS)
def test_as_many_parameters_as_a_client_may_send_are_taken(name: str) -> None:
    method = METHODS[name]
    for count in range(method.least, method.most + 1):
        signature(method.call).bind(None, *[None] * count)


def test_a_class_that_is_neither_says_so() -> None:
    with pytest.raises(TypeError, match="half"):
        type("Neither", (Verbs,), {})


def test_a_manager_has_no_hook_by_chance() -> None:
    """A connection looks for some in whatever it is over by their names: no other method may be called so."""
    sources = [(ROOT / "xaqueue" / name).read_text() for name in ("connection.py", "transaction.py")]
    hooks = {hook for source in sources for hook in re.findall(r'getattr\((?:self\._)?manager, "(\w+)"', source)}
    kinds: tuple[type, ...] = (Session, RemoteManager, ResendingManager)
    carries, resends = {"can_carry", "carry", "leaves"}, {"again"}
    found = {kind.__name__: {hook for hook in hooks if hasattr(kind, hook)} for kind in kinds}
    assert hooks == carries | resends
    assert found == {"Session": carries, "RemoteManager": set(), "ResendingManager": resends}
