"""A space behind a server, as a ResourceManager: what needs no answer rides with the next call that does.

So a two-phase transaction of any number of enqueues is two round trips. What can be checked without the server is
checked at once; a ride that the server refuses fails the next call of its branch, which can only be rolled back then.

It connects again between transactions, never within one. An answer that was lost is told as such, with the xid.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from typing import Any, Unpack

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
from xaqueue.message import EnqueueOptions, Message, MessageId, id_of, properties_of
from xaqueue.rpc import wire
from xaqueue.rpc.batch_client import BatchCalls
from xaqueue.rpc.stream import Stream
from xaqueue.rpc.stream_client import StreamCalls
from xaqueue.rpc.tls import is_refusal
from xaqueue.rpc.wire import xid_to
from xaqueue.space.model.block import pack_properties
from xaqueue.storage.ids import fresh_id
from xaqueue.times import check_seconds
from xaqueue.xa import Code, Flag, Outcome, Vote
from xaqueue.xid import Xid

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
"""Between two tries to connect."""
CONNECT_S = 10.0
"""For how long it is tried."""

Dial = Callable[[], Stream]
"""Connects; raises ConnectionLost."""


class _Part(Enum):
    """How far the branch has come that the session is in, or has just left."""

    NONE = "there is none"
    OPEN = "nothing was asked of it but work"
    NEVER_BEGAN = "its start was refused"
    LOST = "the server has left it: it is over there, or can only be rolled back"
    PREPARING = "its prepare was asked for, and not answered"
    COMMITTING = "its commit was asked for, and not answered"


_REFUSED = (_Part.NEVER_BEGAN, _Part.LOST)
_ASKED = {"prepare": _Part.PREPARING, "commit": _Part.COMMITTING}


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
        self._key: bytes | None = None
        """Names the session of now, or the one before, to the server."""
        self._closed = False
        self._xid: Xid | None = None
        self._part = _Part.NONE
        self._why: Error | None = None
        """What went wrong with its branch, or with the connection that it was on."""
        self.space: dict[str, Any] = {}
        """What the server said of itself and its space."""
        self._connect()

    # The verbs of a branch's life

    def start(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        """Rides; with flags it is answered, since there is something to find."""
        self._between()
        self._xid, self._part, self._why = xid, _Part.OPEN, None
        if flags:
            self._ask("start", xid_to(xid), int(flags), timeout_s)
        else:
            self._ride("start", xid_to(xid), 0, timeout_s)

    def end(self, xid: Xid, flags: Flag = Flag.SUCCESS) -> None:
        self._check_branch(xid)
        if xid == self._xid and flags == Flag.SUCCESS:
            self._ride("end", xid_to(xid), int(flags))
        else:
            self._ask("end", xid_to(xid), int(flags))

    def prepare(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> Vote:
        again = xid == self._xid and self._part is _Part.PREPARING
        vote = Vote((self._again if again else self._decide)("prepare", xid, flags))
        self._left(xid)  # from here on it does not depend on this session
        return vote

    def commit(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        again = xid == self._xid and self._part is _Part.COMMITTING
        (self._again if again else self._decide)("commit", xid, flags)
        self._left(xid)

    def rollback(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        own = xid == self._xid
        if own and self._part is _Part.NEVER_BEGAN:
            self._left(xid)
            return
        for _ in self._tries():
            try:
                self._decide("rollback", xid, flags)
            except UnknownXid:
                if not own or self._part not in (_Part.LOST, _Part.PREPARING):
                    raise  # else it was rolled back with its session
            except ProtocolError as early:
                if not own or self._part not in (_Part.LOST, _Part.PREPARING):
                    raise
                if self._part is _Part.PREPARING:  # its lost session may prepare it yet
                    refused = early
                    continue
                # it will be when the server sees that the session is gone
            self._left(xid)
            return
        raise self._unknown("rollback", xid, refused)

    def recover(self, count: int, flags: Flag = Flag.NOFLAGS) -> list[Xid]:
        return [wire.xid_of(value) for value in self.call("recover", count, int(flags))]

    def forget(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        self.call("forget", xid_to(xid), int(flags))

    def outcome(self, xid: Xid) -> Outcome:
        return Outcome(self.call("outcome", xid_to(xid)))

    def flush(self) -> None:
        """Sends what rides and waits until it is done. Raises what it failed with."""
        self._check_working()
        if self._stream is not None:
            try:
                self._ask("echo")
            except (RolledBack, ResourceFailed):
                if self._part is _Part.NEVER_BEGAN and self._why is not None:
                    raise self._why from None
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
            return MessageId(self._ask("enqueue", queue, body, {**options, "message_id": id_of(given)}))
        message_id = MessageId(fresh_id())
        self._ride("enqueue", queue, body, {**options, "message_id": message_id})
        return message_id

    def dequeue(
        self,
        queue: str,
        *,
        wait_s: float | None = 0.0,
        message_id: bytes | None = None,
        correlation_id: bytes | str | None = None,
    ) -> Message | None:
        self._check_working()
        limit_s = check_seconds("wait_s", wait_s)
        options = {"wait_s": limit_s, "message_id": message_id, "correlation_id": correlation_id}
        given = {name: value for name, value in options.items() if value is not None and value != 0}
        answer = self._ask("dequeue", queue, given, waits_s=limit_s)
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
        before = self._why
        try:
            return self._ask(method, *params)
        except (RolledBack, ResourceFailed):
            if self._why is before:
                raise
        return self._ask(method, *params)  # a ride of the branch had failed, which its next call tells

    def close(self, left: Xid | None = None) -> None:
        """Returns when the server has rolled back what was active; at once where the connection to it is lost."""
        if self._closed:
            return
        try:
            if self._stream is not None and not self._stream.is_stale and self._xid is not None:
                self._say_good_bye(left)
        except ConnectionLost:
            return  # then it does so by itself
        finally:
            self.drop()

    def drop(self) -> bool:
        self._closed, stream, self._stream = True, self._stream, None
        if stream is None:
            return False
        had = not stream.is_stale
        stream.close()
        return had

    # Within

    def _say_good_bye(self, left: Xid | None) -> None:
        """By no other connection than this one."""
        if left is not None:
            with suppress(UnknownXid, ProtocolError, ResourceFailed, RolledBack):
                if Outcome(self._ask("outcome", xid_to(left))) is not Outcome.IN_DOUBT:
                    self._ask("rollback", xid_to(left), 0)
        with suppress(RolledBack):
            self._ask("close")
            return
        self._ask("close")  # a ride of the branch had failed, which its next call tells

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the session is closed")

    def _check_branch(self, xid: Xid) -> None:
        if xid == self._xid and self._part in _REFUSED:
            raise self._refused()

    def _check_working(self) -> None:
        self._check_open()
        if self._why is not None:
            raise self._refused()

    def _refused(self) -> Error:
        """Of a branch that the server has left; of one whose prepare or commit was not answered, nobody knows."""
        why, xid = self._why, self._xid
        assert why is not None
        if self._part in _ASKED.values() and xid is not None:
            return self._unknown("prepare" if self._part is _Part.PREPARING else "commit", xid, why)
        if isinstance(why, ResourceFailed):  # the same work again would fail as well
            failed = ResourceFailed(str(why))
            failed.__cause__ = why
            return failed
        code = Code.XA_RBCOMMFAIL if isinstance(why, ConnectionLost) else Code.XA_RBOTHER
        if why.code >= Code.XA_RBROLLBACK:
            code = why.code
        refused = RolledBack(f"branch {xid} is rolled back: {why}", code)
        refused.__cause__ = why
        return refused

    @staticmethod
    def _unknown(verb: str, xid: Xid, why: Error) -> OutcomeUnknown:
        told = (
            f"{why}. Whether branch {xid} was {_DONE[verb]} is unknown: ask connection.outcome(xid), or call it again"
        )
        unknown = OutcomeUnknown(told, xid)
        unknown.__cause__ = why
        return unknown

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
        self._why, self._part = error, _Part.NEVER_BEGAN if ride == "start" else _Part.LOST
        raise self._refused()

    def _decide(self, verb: str, xid: Xid, flags: Flag) -> Any:
        """A verb whose lost answer leaves its outcome unknown, for which it connects again where it must."""
        ask, part = self.call if verb == "rollback" else self._ask, _ASKED.get(verb)
        if part is not None:
            self._check_branch(xid)
        self._between()
        if part is not None:
            self._check_branch(xid)  # which may have been found lost just now
            if xid == self._xid:
                before, self._part = self._part, part
        try:
            return ask(verb, xid_to(xid), int(flags))
        except ConnectionLost as lost:
            raise self._unknown(verb, xid, lost) from lost
        except Error:
            if self._part is part:
                self._part = before  # it was answered
            raise

    def _again(self, verb: str, xid: Xid, flags: Flag) -> Any:
        """The answer was lost: what became of it is asked, and what was never done is done now.

        While the lost session is in the branch still, it is waited for.
        """
        why: Error
        try:
            for _ in self._tries():
                try:
                    if self._is_done(verb, xid):
                        return Vote.OK
                    return self._decide(verb, xid, flags)
                except UnknownXid as gone:  # meanwhile, or before anybody remembers
                    if self._is_done(verb, xid):
                        return Vote.OK
                    if verb == "prepare":
                        raise RolledBack(f"branch {xid} is rolled back, or had no work: the server has none") from gone
                    raise self._unknown(verb, xid, gone) from gone
                except ProtocolError as early:
                    why = early
        except OutcomeUnknown:
            raise
        except ConnectionLost as lost:
            why = lost
        raise self._unknown(verb, xid, why) from why

    def _is_done(self, verb: str, xid: Xid) -> bool:
        """A branch that somebody else committed was prepared: the second phase tells. Raises RolledBack."""
        found = self.outcome(xid)
        if found is Outcome.ROLLED_BACK:
            raise RolledBack(f"branch {xid} was rolled back: the {verb} got lost, or its session")
        return found is Outcome.COMMITTED or (found is Outcome.IN_DOUBT and verb == "prepare")

    def _tries(self) -> Iterator[None]:
        """Again and again for a while, with growing pauses."""
        deadline, pause = time.monotonic() + self._connect_s, FIRST_PAUSE_S
        while True:
            yield
            if time.monotonic() + pause > deadline:
                return
            self._pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _left(self, xid: Xid) -> None:
        """The branch is over: a connection that is lost from here on is none of its business."""
        if xid == self._xid:
            self._xid, self._part, self._why = None, _Part.NONE, None

    def _lose(self, lost: Error) -> None:
        if self._xid is not None:
            self._why = lost
            if self._part is _Part.OPEN:
                self._part = _Part.LOST
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _open_stream(self) -> Stream:
        self._check_open()
        if self._stream is None:
            raise self._refused() if self._why is not None else ConnectionLost("the connection to the server is lost")
        return self._stream

    def _connect(self) -> None:
        """Tries for a while, with growing pauses. Raises ConnectionLost, and what the server refuses with.

        A peer that TLS refuses is not asked again: that is AccessDenied.
        """
        told: Error
        for _ in self._tries():
            try:
                self._stream, key = self._dial(), fresh_id()
                said = {"protocol": wire.PROTOCOL, "session": key, "instead_of": self._key}
                self.space = self._ask("hello", {**said, **self._hello()})
            except (ConnectionLost, ResourceFailed) as error:  # not there, or it takes no sessions now
                self._lose(error)
                if is_refusal(error.__cause__):
                    raise AccessDenied(str(error)) from error
                told = error
            except Error as error:
                self._lose(error)
                raise
            else:
                self._key = key
                return
        raise told


_DONE = {"prepare": "prepared", "commit": "committed", "rollback": "rolled back"}
