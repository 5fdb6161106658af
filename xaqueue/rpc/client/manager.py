"""A space behind a server, as a ResourceManager: what needs no answer is pipelined with the next call that does.

So a two-phase transaction of any number of enqueues is two round trips. What can be checked without the server is
checked at once; a pipelined call that the server refuses fails the next call of its branch, which can only be rolled
back then.

A URL names the server: see ``xaqueue.endpoint``. Files that it names are read anew at each connect, so that tokens and
certificates may be replaced meanwhile.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

from xaqueue.endpoint import Endpoint, Scheme, parse
from xaqueue.errors import AccessDenied, ConnectionLost, ProtocolError, ResourceFailed, RolledBack, UnknownXid
from xaqueue.features.session import Verbs
from xaqueue.rpc.client import ahead
from xaqueue.rpc.client.branch import BranchProgress
from xaqueue.rpc.client.link import CONNECT_S, Link
from xaqueue.rpc.client.sockets import ClientSocket, Connected, PlainSocket, keep_alive
from xaqueue.rpc.credentials import client_context, explain, is_refusal, read_token
from xaqueue.rpc.methods import branches, messages
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

ANSWER_S = 120.0
"""How long an answer may take, beside what its request itself may wait: as long as the server may take for a sync."""
DIAL_S = 10.0
"""How long one try to connect may take, and how long the first answer, unless the URL says how long any may."""
HELLO_S = 1.0
"""How long each of several servers may take to connect and to answer for the first time: one that is stopped
never does."""
PAIR_CONNECT_S, PAIR_LEAST_S = 60.0, 10.0
"""For how long several are tried, until one has taken over; and at least, whoever asks."""


class RemoteManager(Verbs, Link, half="ask"):
    """A ResourceManager over a socket; used by one thread at a time."""

    start = branches.start
    end = branches.end
    prepare = branches.prepare
    commit = branches.commit
    rollback = branches.rollback
    explain = branches.explain
    harden = branches.harden
    recover = branches.recover
    forget = branches.forget
    outcome = branches.outcome

    enqueue = messages.enqueue
    dequeue = messages.dequeue
    remove = messages.remove
    browse = messages.browse

    take_ahead = ahead.take
    want_ahead = ahead.want
    end_ahead = ahead.end
    is_wanted_ahead = ahead.is_wanted

    define = branches.define
    undefine = branches.undefine

    def status(self) -> dict[str, Any]:
        """What ``xaqueue status`` shows of a served space."""
        answer: dict[str, Any] = self.call("status")
        return answer

    def another(self, answer_s: float) -> RemoteManager:
        """A session of its own with the same server, for another thread. answer_s: for how long each answer is waited
        for, at most. Raises ConnectionLost, AccessDenied."""

        def dial() -> ClientSocket:
            made = self._dial()
            made.hurry(answer_s)
            return made

        return RemoteManager(dial, connect_s=0.0, hello=self._hello, has_alternatives=self._has_alternatives)

    def flush(self) -> None:
        """Sends what is pipelined and waits until it is done. Raises what it failed with."""
        self._check_working()
        if self._socket is not None:
            try:
                self._ask("echo")
            except (RolledBack, ResourceFailed):
                if self._branch.progress is BranchProgress.NEVER_BEGAN and self._branch.why is not None:
                    raise self._branch.why from None
                raise

    def close(self, left: Xid | None = None) -> None:
        """Returns when the server has rolled back what was active; at once where the connection to it is lost."""
        if self._closed:
            return
        try:
            has_work = self._branch.xid is not None or self.has_received
            if self._is_live() and has_work:
                self._end_session(left)
        except ConnectionLost:
            return  # then it does so by itself
        finally:
            self.drop()

    def _end_session(self, left: Xid | None) -> None:
        """By no other connection than this one."""
        if left is not None:
            with suppress(UnknownXid, ProtocolError, ResourceFailed, RolledBack):
                if Outcome(self._ask("outcome", left)) is not Outcome.IN_DOUBT:
                    self._ask("rollback", left, 0)
        with suppress(RolledBack):
            self._ask("close")
            return
        self._ask("close")  # a pipelined call of the branch had failed, which its next call tells


def remote_manager(
    url: str,
    *,
    connect_s: float | None = None,
    answer_s: float | None = None,
    kind: type[RemoteManager] = RemoteManager,
) -> RemoteManager:
    """A session with the server that the URL names. Raises InvalidArgument, ConnectionLost, AccessDenied.

    connect_s: for how long it is tried again, now and between transactions, while no server answers; several are all
    tried. answer_s: for how long an answer is waited for, unless the URL says so. None: as long as is right. kind: of
    session that is wanted.
    """
    endpoint = parse(url)
    if endpoint.timeout_s is None and answer_s is not None:
        endpoint = replace(endpoint, timeout_s=answer_s)
    return kind(
        dialer(endpoint),
        connect_s=connect_s_of(endpoint, connect_s),
        hello=partial(hello_of, endpoint),
        has_alternatives=bool(endpoint.others),
    )


def connect_s_of(endpoint: Endpoint, wanted_s: float | None = None) -> float:
    """For how long it is tried to connect."""
    if not endpoint.others:
        return CONNECT_S if wanted_s is None else wanted_s
    return PAIR_CONNECT_S if wanted_s is None else max(wanted_s, PAIR_LEAST_S)


def hello_of(endpoint: Endpoint) -> dict[str, Any]:
    """What a client says of itself. Raises InvalidArgument where it has no token to show."""
    return {} if endpoint.token_file is None else {"token": read_token(endpoint.token_file)}


def context_of(endpoint: Endpoint) -> ssl.SSLContext | None:
    """For TLS, where it is wanted. Raises InvalidArgument for files that cannot be used."""
    if endpoint.scheme is not Scheme.TLS:
        return None
    return client_context(endpoint.ca, endpoint.cert, endpoint.key)


def _connected(endpoint: Endpoint, context: ssl.SSLContext | None, limit_s: float = DIAL_S) -> socket.socket:
    with ExitStack() as failed:
        if endpoint.scheme is Scheme.UNIX:
            made = failed.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            made.settimeout(limit_s)
            made.connect(endpoint.path)
        else:
            made = failed.enter_context(socket.create_connection((endpoint.host, endpoint.port), limit_s))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(made)
        whole = PlainSocket.of(made) if context is None else context.wrap_socket(made, server_hostname=endpoint.host)
        failed.pop_all()
    return whole


Connect = Callable[[Endpoint, ssl.SSLContext | None, float], Connected]
"""The last is how long it may take."""


def dialer(endpoint: Endpoint, connect: Connect = _connected) -> Callable[[], ClientSocket]:
    """Connects to the next of its places each time, as ``dial`` does."""
    turns = cycle(endpoint.each)
    hello_s = HELLO_S if endpoint.others else None
    return lambda: dial(next(turns), connect, hello_s)


def dial(endpoint: Endpoint, connect: Connect = _connected, hello_s: float | None = None) -> ClientSocket:
    """Connects. hello_s: how long that, and the first answer, may take; None: as long as is right for one place.

    Raises ConnectionLost, AccessDenied, InvalidArgument.
    """
    context = context_of(endpoint)
    try:
        made = connect(endpoint, context, hello_s or DIAL_S)
    except OSError as error:
        raise _unreached(endpoint, error) from error
    place = _place(endpoint)
    if endpoint.timeout_s is not None:
        return ClientSocket(made, endpoint.timeout_s, hello_s, place)
    return ClientSocket(made, ANSWER_S, hello_s or DIAL_S, place)


def _place(endpoint: Endpoint) -> str:
    return str(endpoint).partition("?")[0]


def _unreached(endpoint: Endpoint, error: OSError) -> ConnectionLost | AccessDenied:
    """Why there is no connection, and what to do. AccessDenied, which is not tried again, where TLS refuses."""
    place = _place(endpoint)
    if isinstance(error, ssl.SSLError):
        kind = AccessDenied if is_refusal(error) else ConnectionLost
        return kind(f"no connection to {place}: {explain(error, 'server')}")
    why = error.strerror or str(error) or type(error).__name__
    if endpoint.scheme is Scheme.TLS and isinstance(error, ConnectionResetError):
        why += "; xaq:// is for ports without TLS"
    return ConnectionLost(
        f"no server answers at {place} ({why}): start it with `xaqueue serve`, or check the "
        + ("path" if endpoint.scheme is Scheme.UNIX else "host and port")
    )
