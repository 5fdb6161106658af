"""A client's connection to a server: how calls go over its socket: asked, pipelined, or asked again.

What a branch begins, adds and ends with is deferred, since all of it makes one frame mostly; where something else is
asked before, it is pipelined. It connects again between transactions, and within one only as long as no server has
heard of it: any other branch that it was in is lost with it. An answer that was lost is reported as such.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import (
    AccessDenied,
    ConnectionLost,
    Error,
    InterfaceError,
    InvalidArgument,
    MessageTooLarge,
    ProtocolError,
    ResourceFailed,
    RolledBack,
)
from xaqueue.rpc import wire
from xaqueue.rpc.client.branch import DEFERRED_BYTES, WORK_BYTES, Ahead, RemoteBranch, Work
from xaqueue.rpc.client.sockets import ClientSocket, Refused, Request
from xaqueue.rpc.credentials import is_refusal
from xaqueue.rpc.wire import enqueue_of
from xaqueue.xid import LOCAL_FORMAT_ID, Xid

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.25
"""Between two tries to connect."""
CONNECT_S = 10.0
"""For how long it is tried."""
AFTER_OTHERS = 15
"""So many commits of a consumer do not ask ahead, where that was not wanted."""
MOST_NAMES = 10_000
"""Of queues that are remembered to be right."""


class Link:
    """Used by one thread at a time."""

    def __init__(
        self,
        dial: Callable[[], ClientSocket],
        *,
        connect_s: float = CONNECT_S,
        hello: Callable[[], dict[str, Any]] = dict,
        pause: Callable[[float], object] = time.sleep,
        has_alternatives: bool = False,
    ) -> None:
        """Connects. hello: what it says of itself there. pause: waits so many seconds before it is tried again.
        has_alternatives: ``dial`` may reach one that another one has replaced.

        Raises ConnectionLost, as ``dial`` does, and what the server refuses with.
        """
        self._dial = dial
        self._pause = pause
        self._connect_s = connect_s
        self._hello = hello
        self._has_alternatives = has_alternatives
        self._socket: ClientSocket | None = None
        self._key: bytes | None = None
        """Names the session of now, or the one before, to the server."""
        self._closed = False
        self.is_unreached = False
        """The last time that it was to connect, no server took it."""
        self._branch = RemoteBranch()
        self._ahead: Ahead | None = None
        self._ahead_later = 0
        """So many commits go without asking ahead."""
        self._committed = -math.inf
        """When the last commit of a consumer was answered."""
        self.has_received = False
        """There may be messages on lease to be given back when it is closed."""
        self.space: dict[str, Any] = {}
        """What the server said of itself and its space."""
        self.only_space = ""
        """The id of the only one that it connects to again; empty: whichever is served."""
        self.prepared: tuple[Xid, ...] = ()
        """Branches that this session has prepared, and not decided: it connects to their space only."""
        self.queues = set[str]()
        """Names with which nothing is wrong that keeps them from being sent."""
        self.max_body_bytes = 0
        self._connect()

    def call(self, method: str, *params: Any, waits_s: float = 0.0) -> Any:
        """Any method of the server that does not belong to the branch; it connects again where it must.

        waits_s: how long it may wait there.
        """
        self._live_socket()
        before = self._branch.why
        try:
            return self._ask(method, *params, waits_s=waits_s)
        except (RolledBack, ResourceFailed):
            if self._branch.why is before:
                raise
        # a pipelined call of the branch had failed, which its next call tells
        return self._ask(method, *params, waits_s=waits_s)

    def call_with_retry(self, method: str, *params: Any, waits_s: float = 0.0) -> Any:
        """A call that may be made twice. Raises ConnectionLost where each answer is lost, or nobody is there."""
        for _ in range(wire.TRIES - 1):
            try:
                return self.call(method, *params, waits_s=waits_s)
            except ConnectionLost:
                if self.is_unreached:
                    raise
        return self.call(method, *params, waits_s=waits_s)

    def work(self, method: str, *params: Any, waits_s: float = 0.0) -> Any:
        """A call that belongs to the branch."""
        self._check_working()
        return self._ask(method, *params, waits_s=waits_s)

    @property
    def space_id(self) -> str:
        return str(self.space.get("space", ""))

    @property
    def requests(self) -> int:
        """How many requests the connection of now has had."""
        return self._socket.requests if self._socket is not None else 0

    def let_go(self) -> None:
        """Of the memory that a large answer took, where nothing else is asked."""
        if self._socket is not None:
            self._socket.let_go()

    def drop(self) -> bool:
        self._closed, socket, self._socket = True, self._socket, None
        self.queues = set()
        if socket is None:
            return False
        had = not socket.has_said(0)
        socket.close()
        return had

    # Calls

    def _defer(self, branch: RemoteBranch, work: Work, size_bytes: int) -> None:
        """Adds this to the branch: it has no answer of its own, and is sent with what is asked next."""
        if branch.is_marked:
            self._ask("enqueue", *enqueue_of(work))
            return
        if branch.ends:
            self._pipeline_deferred(branch)  # it is out of order, as the server says
        deferred = branch.deferred
        if deferred is None:
            deferred = branch.deferred = [branch.xid, False, []]
        deferred[2].append(work)
        branch.room_bytes -= size_bytes + WORK_BYTES
        if branch.room_bytes < 0:
            self._pipeline_deferred(branch)

    def _pipeline_deferred(self, branch: RemoteBranch) -> None:
        """As calls of their own, before another one."""
        try:
            (xid, begins, works), ends = branch.take_deferred()
            if begins:
                self._pipeline("start", xid)
            for work in works:
                self._pipeline("enqueue", *enqueue_of(work))
            if ends:
                self._pipeline("end", xid)
        except BaseException as error:  # interrupted, perhaps: the rest is nowhere, and nobody commits without it
            self._lose(error if isinstance(error, Error) else ConnectionLost("a call was interrupted"))
            raise

    def _work(self, branch: RemoteBranch, *last: Any) -> Any:
        """What is deferred and this, in one frame. last: a dequeue's queue; or, behind its end, how the branch ends."""
        try:
            work: Any
            work, branch.deferred = branch.deferred, None
            if not branch.ends:
                branch.room_bytes = DEFERRED_BYTES
                work[2].append(last)
                return self._request("work", work)
            branch.ends = False
            work += last
            if not branch.next_queue:
                return self._request("work", work)
            answer = self._request("work", work, behind=self._next_of(branch.next_queue))
        except Error:
            raise
        except BaseException:  # interrupted: what was deferred is nowhere, perhaps, and nobody commits without it
            self._lose(ConnectionLost("a call was interrupted"))
            raise
        self._committed = time.monotonic()
        return answer

    def _next_of(self, queue: str) -> Request | None:
        """What asks ahead, behind the commit."""
        if self._ahead_later:
            self._ahead_later -= 1
            return None
        self._ahead = Ahead(Xid(LOCAL_FORMAT_ID, fresh_id(), b""), queue)
        return "work", (self._ahead.xid, True, [(queue,)])

    def _give_back(self) -> None:
        """What was asked for ahead, at once. Where the server cannot say that it is done, the session ends, and so does
        what it has taken."""
        ahead, self._ahead, self._ahead_later = self._ahead, None, AFTER_OTHERS
        try:
            if ahead is not None:
                self._request("return", (ahead.xid,))
        except ProtocolError:
            pass  # it never began
        except Error as lost:
            self._lose(lost)

    def _pipeline(self, method: str, *params: Any) -> None:
        """Sends this with the next call that is asked; it has no answer of its own."""
        if self._branch.deferred is not None:
            self._pipeline_deferred(self._branch)
        socket = self._socket
        if socket is None:
            raise self._not_connected()
        try:
            socket.pipeline(method, params)
        except ConnectionLost as lost:
            self._lose(lost)
            raise

    def _ask(self, method: str, *params: Any, waits_s: float = 0.0) -> Any:
        if self._branch.deferred is not None:
            self._pipeline_deferred(self._branch)
        return self._request(method, params, waits_s)

    def _request(self, method: str, params: Sequence[Any], waits_s: float = 0.0, behind: Request | None = None) -> Any:
        socket = self._socket
        if socket is None:
            raise self._not_connected()
        try:
            return socket.request(method, params, waits_s, behind)
        except Refused as refused:
            error = self._error_of(refused.error)
        except ConnectionLost as lost:
            self._lose(lost)
            raise
        except UnicodeEncodeError as wrong:  # nothing was sent
            raise InvalidArgument(
                f"{method}: {wrong.object[wrong.start : wrong.end]!r} is refused: it has no UTF-8"
            ) from None
        raise error

    def _error_of(self, answered: dict[str, Any]) -> Error:
        """What a request is answered with, or what refuses the branch where a call before it has failed."""
        error, pipelined = wire.error_of(answered), answered.get("ride")
        if pipelined is None:
            return error
        self._branch.fail(error, pipelined)
        return self._branch.refusal()

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the session is closed")

    def _check_working(self) -> None:
        self._check_open()
        if self._branch.why is not None:
            raise self._branch.refusal()

    def _is_known(self, queue: str) -> bool:
        """Whether nothing is wrong with the name that keeps it from being sent."""
        if queue in self.queues:
            return True
        is_known: bool = self.space["any_queue"] and queue.isascii()
        if is_known and len(self.queues) < MOST_NAMES:
            self.queues.add(queue)
        return is_known

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self.max_body_bytes:
            raise MessageTooLarge(
                f"body of {size_bytes:,} bytes is over the limit of {self.max_body_bytes:,}: "
                "raise [space] max_body_bytes in queues.toml, or send a reference to the content"
            )

    # The connection

    def _live_socket(self) -> ClientSocket:
        """For what belongs to no branch on its way; connected again where it must be."""
        socket = self._socket
        if self._ahead is not None or socket is None or socket.has_said(0):
            if not self._is_live():
                self._reconnect()
            socket = self._socket
            assert socket is not None
        return socket

    def _is_live(self) -> bool:
        """Whether the server has not hung up, for what belongs to no branch on its way, or ends one."""
        if self._ahead is not None:
            self._give_back()
        socket = self._socket
        return socket is not None and not socket.has_said(0)

    def _reconnect(self) -> None:
        """Outside a branch a lost connection is made again; a branch that it was in is lost with it."""
        self._check_open()
        if self._socket is not None:
            self._lose(ConnectionLost("the connection to the server is lost: the server hung up"))
        self._connect()

    def _not_connected(self) -> Error:
        self._check_working()
        return ConnectionLost("the connection to the server is lost")

    def _lose(self, lost: Error) -> None:
        self._branch.disconnect(lost)
        self._ahead = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _tries(self) -> Iterator[None]:
        """Tries for a while, with growing pauses."""
        deadline, pause = time.monotonic() + self._connect_s, FIRST_PAUSE_S
        while True:
            yield
            if time.monotonic() + pause > deadline:
                return
            self._pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def hold(self) -> None:
        """What is asked from here on is of this space, whichever comes to its address."""
        self.only_space = self.space_id

    def decided(self, xid: Xid) -> None:
        """It holds nobody to its space."""
        self.prepared = tuple(one for one in self.prepared if one != xid)

    def _check_space(self, said: dict[str, Any], only: str = "") -> None:
        """Nothing is asked of another one. Of several, one that was replaced does not know so yet."""
        only = only or self.only_space or (self.space_id if self.prepared else "")
        if only not in ("", said["space"]):
            raise ConnectionLost(
                f"another space answers there now, {said['space']}, than {only}: mend the address, or open another "
                "connection where that is meant"
            )
        if self._has_alternatives and said["epoch"] < self.space.get("epoch", 0):
            raise ResourceFailed(
                f"epoch {said['epoch']} of the space answers, and {self.space['epoch']} was there before: it was "
                "replaced by another one of its addresses"
            )

    def _connect(self) -> None:
        """Tries for a while. Raises ConnectionLost, and what the server refuses with.

        A peer that TLS refuses is not asked again: that is AccessDenied.
        """
        failure: Error
        for _ in self._tries():
            try:
                self._socket, key = self._dial(), fresh_id()
                known = {"protocol": wire.PROTOCOL, "session": key, "instead_of": self._key}
                said = self._request("hello", [{**known, **self._hello()}])
                self._check_space(said)
                self.space = said
                self.queues, self.max_body_bytes = set(said["queues"]), said["max_body_bytes"]
            except (ConnectionLost, ResourceFailed) as error:  # not there, or it takes no sessions now
                self._lose(error)
                if is_refusal(error.__cause__):
                    raise AccessDenied(str(error)) from error
                failure = error
            except Error as error:
                self._lose(error)
                raise
            else:
                self._key = key
                self._socket.greeted()
                self.is_unreached = False
                return
        self.is_unreached = True
        raise failure
