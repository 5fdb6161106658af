"""A space behind a server, as a ResourceManager: what needs no answer rides with the next call that does.

So a two-phase transaction of any number of enqueues is two round trips. What can be checked without the server is
checked at once; a ride that the server refuses fails the next call of its branch, which can only be rolled back then.

It connects again between transactions, never within one. An answer that was lost is told as such, with the xid.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Unpack

from xaqueue.command import pack_properties
from xaqueue.errors import (
    AccessDenied,
    ConnectionLost,
    Error,
    InterfaceError,
    MessageTooLarge,
    OutcomeUnknown,
    ProtocolError,
    ResourceFailed,
    RolledBack,
    UnknownXid,
)
from xaqueue.message import EnqueueOptions, Message, MessageId, check_message_id, properties_of
from xaqueue.rpc import wire
from xaqueue.rpc.batch_client import BatchCalls
from xaqueue.rpc.stream import Stream
from xaqueue.rpc.stream_client import StreamCalls
from xaqueue.rpc.tls import is_refusal
from xaqueue.rpc.wire import xid_to
from xaqueue.storage.ids import fresh_id
from xaqueue.xa import Code, Flag, Outcome, Vote
from xaqueue.xid import Xid

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
"""Between two tries to connect."""
CONNECT_S = 10.0
"""For how long it is tried."""

Dial = Callable[[], Stream]
"""Connects; raises ConnectionLost."""


class RemoteManager(BatchCalls, StreamCalls):
    """A ResourceManager over a socket; used by one thread at a time."""

    def __init__(
        self,
        dial: Dial,
        *,
        connect_s: float = CONNECT_S,
        hello: Callable[[], dict[str, Any]] = dict,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """Connects. hello: what it says of itself there. pause: waits so many seconds before it is tried again.

        Raises ConnectionLost, and what the server refuses with.
        """
        self._dial = dial
        self._pause = pause
        self._connect_s = connect_s
        self._hello = hello
        self._stream: Stream | None = None
        self._closed = False
        self._xid: Xid | None = None
        """The branch that the session is in, or has just left."""
        self._failed: Error | None = None
        """Why that branch can only be rolled back, where the server has left it already."""
        self._never_began = False
        self._prepares = self._commits = False
        """What was asked for, whether or not it was answered."""
        self.space: dict[str, Any] = {}
        """What the server said of itself and its space."""
        self._connect()

    # The verbs of a branch's life

    def start(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        """Rides; with flags it is answered, since there is something to find."""
        self._between()
        self._xid, self._failed, self._never_began = xid, None, False
        self._prepares = self._commits = False
        if flags:
            self._ask("start", xid_to(xid), int(flags), timeout_s)
        else:
            self._ride("start", xid_to(xid), 0, timeout_s)

    def end(self, xid: Xid, flags: Flag = Flag.SUCCESS) -> None:
        if xid == self._xid and self._failed is not None:
            raise self._refused()
        if xid == self._xid and flags == Flag.SUCCESS:
            self._ride("end", xid_to(xid), int(flags))
        else:
            self._ask("end", xid_to(xid), int(flags))

    def prepare(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> Vote:
        self._check_branch(xid)
        vote = Vote(self._decide("prepare", xid, flags))
        self._left(xid)  # from here on it does not depend on this session
        return vote

    def commit(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        self._check_branch(xid)
        self._decide("commit", xid, flags)
        self._left(xid)

    def rollback(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        own = xid == self._xid
        if own and self._never_began:
            return
        try:
            self._decide("rollback", xid, flags)
        except UnknownXid:
            if not own or self._failed is None or self._commits:  # else it was rolled back with its session
                raise
        except ProtocolError:
            if not own or self._failed is None or self._commits or self._prepares:
                raise  # else it will be when the server sees that the session is gone; unless it prepares first
        self._left(xid)

    def recover(self, count: int, flags: Flag = Flag.NOFLAGS) -> list[Xid]:
        return [wire.xid_of(value) for value in self.call("recover", count, int(flags))]

    def forget(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        self.call("forget", xid_to(xid), int(flags))

    def outcome(self, xid: Xid) -> Outcome:
        return Outcome(self.call("outcome", xid_to(xid)))

    def flush(self) -> None:
        """Sends what rides and waits until it is done. Raises what it failed with."""
        self._check_open()
        if self._failed is not None:
            raise self._refused()
        if self._stream is not None:
            try:
                self._ask("echo")
            except RolledBack:
                if self._never_began and self._failed is not None:
                    raise self._failed from None
                raise

    # The work

    def enqueue(self, queue: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        self._check_working()
        checked = properties_of(queue, 0, options)
        if not isinstance(body, bytes) or not self._knows(queue):
            return MessageId(self._ask("enqueue", queue, body, dict(options)))  # the server says what is wrong
        if options:
            pack_properties(checked)  # raises MessageTooLarge
        if len(body) > self.space["max_body_bytes"]:
            raise MessageTooLarge(
                f"body of {len(body):,} bytes is over the limit of {self.space['max_body_bytes']:,}: "
                "raise [space] max_body_bytes in queues.toml, or send a reference to the content"
            )
        given = options.get("message_id")
        if given is not None:
            check_message_id(given)
            return MessageId(self._ask("enqueue", queue, body, dict(options)))
        message_id = MessageId(fresh_id())
        self._ride("enqueue", queue, body, {**options, "message_id": message_id})
        return message_id

    def dequeue(
        self,
        queue: str,
        *,
        wait_s: float = 0.0,
        message_id: bytes | None = None,
        correlation_id: bytes | str | None = None,
    ) -> Message | None:
        self._check_working()
        options = {"wait_s": wait_s, "message_id": message_id, "correlation_id": correlation_id}
        given = {name: value for name, value in options.items() if value is not None and value != 0}
        answer = self._ask("dequeue", queue, given, waits_s=wait_s)
        return None if answer is None else wire.message_of(answer)

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Message]:
        return self._pages(*self.call("browse", queue, limit))

    def _pages(self, cursor: int | None, page: list[Any]) -> Iterator[Message]:
        stream = self._stream
        try:
            while True:
                yield from map(wire.message_of, page)
                if cursor is None:
                    return
                if self._stream is not stream:
                    raise ConnectionLost("the connection was lost while browsing: browse again")
                cursor, page = self._ask("browse_next", cursor)
        finally:
            if cursor is not None and stream is not None:  # broken off; perhaps by the collector, anywhere
                stream.append("browse_end", (cursor,))

    @property
    def requests(self) -> int:
        """How many requests, which are round trips, the connection of now has had."""
        return self._stream.requests if self._stream is not None else 0

    def status(self) -> dict[str, Any]:
        """What ``xaqueue status`` shows of a served space."""
        answer: dict[str, Any] = self.call("status")
        return answer

    def call(self, method: str, *params: Any) -> Any:
        """Any method of the server that does not belong to the branch; it connects again where it must."""
        self._between()
        failed = self._failed
        try:
            return self._ask(method, *params)
        except RolledBack:
            if self._failed is failed:
                raise
        return self._ask(method, *params)  # a ride of the branch had failed, which its next call tells

    def close(self) -> None:
        """Returns when the server has rolled back what was active, or when it cannot be asked to."""
        if self._closed:
            return
        try:
            if self._stream is not None and not self._stream.is_stale and self._xid is not None:
                self.call("close")
        except ConnectionLost:
            return  # then it does so by itself
        finally:
            self._closed = True
            if self._stream is not None:
                self._stream.close()
                self._stream = None

    # Within

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the session is closed")

    def _check_branch(self, xid: Xid) -> None:
        if xid == self._xid and self._failed is not None and not self._commits:
            raise self._refused()

    def _check_working(self) -> None:
        self._check_open()
        if self._failed is not None:
            raise self._refused()

    def _refused(self) -> Error:
        """Of a branch that the server has left: it is over there, or can only be rolled back."""
        failed = self._failed
        assert failed is not None
        code = Code.XA_RBCOMMFAIL if isinstance(failed, ConnectionLost) else Code.XA_RBOTHER
        if failed.code >= Code.XA_RBROLLBACK:
            code = failed.code
        refused = RolledBack(f"branch {self._xid} is rolled back: {failed}", code)
        refused.__cause__ = failed
        return refused

    def _knows(self, queue: str) -> bool:
        return bool(self.space["any_queue"]) or queue in self.space["queues"]

    def _between(self) -> None:
        """Outside a branch a lost connection is made again; a branch that it was in is lost with it."""
        self._check_open()
        if self._stream is not None and self._stream.is_stale:
            self._lose(ConnectionLost("the connection to the server is lost: the server hung up"))
        if self._stream is None:
            self._connect()

    def _ride(self, method: str, *params: Any) -> None:
        try:
            self._open_stream().ride(method, params)
        except ConnectionLost as lost:
            self._lose(lost)
            raise

    def _ask(self, method: str, *params: Any, waits_s: float = 0.0) -> Any:
        try:
            answer = self._open_stream().request(method, params, waits_s)
        except ConnectionLost as lost:
            self._lose(lost)
            raise
        if answer.error is None:
            return answer.result
        error = wire.error_of(answer.error)
        ride = answer.error.get("ride")
        if ride is None:
            raise error
        self._failed, self._never_began = error, ride == "start"
        raise self._refused() from error

    def _decide(self, verb: str, xid: Xid, flags: Flag) -> Any:
        """A verb whose lost answer leaves its outcome unknown, for which it connects again where it must."""
        ask = self.call if verb == "rollback" else self._ask
        self._between()
        if verb != "rollback":
            self._check_branch(xid)  # which may have been found lost just now
        if xid == self._xid:
            self._prepares = self._prepares or verb == "prepare"
            self._commits = self._commits or verb == "commit"
        try:
            return ask(verb, xid_to(xid), int(flags))
        except ConnectionLost as lost:
            raise OutcomeUnknown(
                f"{lost}. Whether branch {xid} was {_DONE[verb]} is unknown: "
                "ask connection.outcome(xid), or call it again",
                xid,
            ) from lost

    def _left(self, xid: Xid) -> None:
        """The branch is over: a connection that is lost from here on is none of its business."""
        if xid == self._xid:
            self._xid = None

    def _lose(self, lost: Error) -> None:
        if self._xid is not None:
            self._failed = lost
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _open_stream(self) -> Stream:
        self._check_open()
        if self._stream is None:
            raise (
                self._refused() if self._failed is not None else ConnectionLost("the connection to the server is lost")
            )
        return self._stream

    def _connect(self) -> None:
        """Tries for a while, with growing pauses. Raises ConnectionLost, and what the server refuses with.

        A peer that TLS refuses is not asked again: that is AccessDenied.
        """
        deadline, pause = time.monotonic() + self._connect_s, FIRST_PAUSE_S
        while True:
            try:
                self._stream = self._dial()
                self.space = self._ask("hello", {"protocol": wire.PROTOCOL, **self._hello()})
            except (ConnectionLost, ResourceFailed) as error:  # not there, or it takes no sessions now
                self._lose(error)
                if is_refusal(error.__cause__):
                    raise AccessDenied(str(error)) from error
                if time.monotonic() + pause > deadline:
                    raise
            except Error as error:
                self._lose(error)
                raise
            else:
                return
            self._pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)


_DONE = {"prepare": "prepared", "commit": "committed", "rollback": "rolled back"}
