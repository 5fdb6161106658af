"""Every call in every state of a branch answers through a server as it does in the process itself: the same table.

Once with every verb as a request of its own, which is the protocol, and once through the client, which lets what it
can ride: there a call that is refused may take its branch with it, since work behind it may be missing.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import pytest

import xaqueue
from support.served import PATIENCE_S, ServerThread
from support.xa_table import CASES, Stage, X, answer_of, bring_to, call_on
from xaqueue.core.engine.state import Space
from xaqueue.errors import DatabaseError, Error, RolledBack
from xaqueue.features.session import Session
from xaqueue.rpc.client.manager import RemoteManager, remote_manager
from xaqueue.rpc.client.sockets import ClientSocket, Refused
from xaqueue.rpc.wire import error_of, message_of, xid_of
from xaqueue.xa import Code, Flag, Vote
from xaqueue.xid import Xid


class AskedSession:
    """A session on the server of which every call is a request."""

    def __init__(self, served: ServerThread) -> None:
        before = served.call(lambda: set(served.server.sessions))
        self._open(served)
        (made,) = served.call(lambda: served.server.sessions - before)
        self.space: Space = served.space
        self.number: int = made.caller.session.number

    def _open(self, served: ServerThread) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.connect(str(served.path))
        self._socket = ClientSocket(made, PATIENCE_S)
        self.ask("hello")

    def ask(self, method: str, *params: Any) -> Any:
        try:
            return self._socket.request(method, params)
        except Refused as refused:
            raise error_of(refused.error) from None

    def start(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        self.ask("start", xid, int(flags), timeout_s)

    def end(self, xid: Xid, flags: Flag = Flag.SUCCESS) -> None:
        self.ask("end", xid, int(flags))

    def prepare(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> Vote:
        return Vote(self.ask("prepare", xid, int(flags)))

    def commit(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        self.ask("commit", xid, int(flags))

    def rollback(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        self.ask("rollback", xid, int(flags))

    def forget(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        self.ask("forget", xid, int(flags))

    def recover(self, count: int, flags: Flag = Flag.NOFLAGS) -> list[Xid]:
        return [xid_of(value) for value in self.ask("recover", count, int(flags))]

    def enqueue(self, queue: str, body: bytes) -> bytes:
        return cast(bytes, self.ask("enqueue", queue, body))

    def dequeue(self, queue: str) -> object:
        answer = self.ask("dequeue", queue)
        return None if answer is None else message_of(answer)

    def close(self) -> None:
        self._socket.close()


class PipelinedSession(AskedSession):
    """The same through the client that everybody uses."""

    def _open(self, served: ServerThread) -> None:
        self.manager: RemoteManager = remote_manager(served.url)
        assert self.manager._socket is not None
        self._socket = self.manager._socket

    def start(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        self.manager.start(xid, flags, timeout_s)
        self.manager.flush()

    def end(self, xid: Xid, flags: Flag = Flag.SUCCESS) -> None:
        self.manager.end(xid, flags)
        self.manager.flush()

    def prepare(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> Vote:
        return self.manager.prepare(xid, flags)

    def commit(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        self.manager.commit(xid, flags)

    def rollback(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        self.manager.rollback(xid, flags)

    def forget(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        self.manager.forget(xid, flags)

    def enqueue(self, queue: str, body: bytes) -> bytes:
        return self.manager.enqueue(queue, body)

    def dequeue(self, queue: str) -> object:
        return self.manager.dequeue(queue)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    scratch = tmp_path_factory.mktemp("matrix")
    with xaqueue.connect(scratch / "space", create=True, sync="NONE") as connection:
        for number in range(3):
            connection.enqueue("orders", b"%d" % number)
        connection.commit()
    made = ServerThread(scratch / "space", scratch / "socket", sync="NONE")
    yield made
    made.stop()


@pytest.fixture(params=[AskedSession, PipelinedSession])
def stage(request: pytest.FixtureRequest, served: ServerThread) -> Iterator[Stage]:
    kind: Callable[[ServerThread], AskedSession] = request.param
    caller, other = kind(served), kind(served)
    yield Stage(cast(Session, caller), cast(Session, other), served.root)
    caller.close()
    other.close()
    sweep(served)


def sweep(served: ServerThread) -> None:
    """Leaves nothing of the branch: idle, doomed, in doubt or decided it outlives its sessions."""
    cleaner = AskedSession(served)
    deadline = time.monotonic() + PATIENCE_S
    while served.call(lambda: len(served.server.sessions)) > 1:
        assert time.monotonic() < deadline, "the server has not seen that the sessions are gone"
        cleaner.ask("echo")
    for verb in (cleaner.rollback, cleaner.forget):
        with suppress(DatabaseError):
            verb(X)
    assert X not in served.space.branches
    cleaner.close()


def code_of(call: Callable[[], object]) -> Code:
    """The XA code of a call. Of a ride that was refused, its own: the branch that goes with it says so, too."""
    try:
        answer = call()
    except RolledBack as refused:
        return refused.__cause__.code if isinstance(refused.__cause__, Error) else refused.code
    except Error as error:
        return error.code
    return Code.XA_RDONLY if answer is Vote.RDONLY else Code.XA_OK


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['call']}-{case['state']}")
def test_call_in_state(stage: Stage, case: dict[str, Any]) -> None:
    bring_to(stage, case["state"])
    expected = answer_of(case)
    if case["call"] == "recover lists it":
        assert (X in stage.listed()) == (expected["rc"] == "yes")
        assert stage.state() == expected["to"]
        return
    code = code_of(call_on(stage.caller, case["call"]))
    if expected["rc"] == "RB":
        assert code is Code.XA_RBTIMEOUT
    else:
        assert code == expected["val"]
    refused_pipelined = isinstance(stage.caller, PipelinedSession) and stage.caller.manager._branch.why is not None
    assert stage.state() == ("B4" if refused_pipelined and case["state"] == "B1" else expected["to"])
