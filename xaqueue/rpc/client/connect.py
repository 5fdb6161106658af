"""A URL names a server; this connects to it, and shows who it is: see ``xaqueue.endpoint`` for the URLs.

Files that the URL names are read anew at each connect, so that tokens and certificates may be replaced meanwhile.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from functools import partial
from typing import Any

from xaqueue.endpoint import Endpoint, Scheme, parse
from xaqueue.errors import AccessDenied, ConnectionLost
from xaqueue.rpc.client.link import CONNECT_S
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.client.socket import ClientSocket, keep_alive
from xaqueue.rpc.credentials import client_context, explain, is_refusal, read_token

ANSWER_S = 120.0
"""How long an answer may take, beside what its request itself may wait: as long as the server may take for a sync."""
DIAL_S = 10.0
"""How long one try to connect may take."""


def remote_manager(url: str, *, connect_s: float = CONNECT_S) -> RemoteManager:
    """A session with the server that the URL names. Raises InvalidArgument, ConnectionLost, AccessDenied.

    connect_s: for how long it is tried again, now and between transactions, while no server answers.
    """
    endpoint = parse(url)
    return RemoteManager(partial(dial, endpoint), connect_s=connect_s, hello=partial(hello_of, endpoint))


def hello_of(endpoint: Endpoint) -> dict[str, Any]:
    """What a client says of itself. Raises InvalidArgument where it has no token to show."""
    return {} if endpoint.token_file is None else {"token": read_token(endpoint.token_file)}


def context_of(endpoint: Endpoint) -> ssl.SSLContext | None:
    """For TLS, where it is wanted. Raises InvalidArgument for files that cannot be used."""
    if endpoint.scheme is not Scheme.TLS:
        return None
    return client_context(endpoint.ca, endpoint.cert, endpoint.key)


def answer_s(endpoint: Endpoint) -> float:
    return ANSWER_S if endpoint.timeout_s is None else endpoint.timeout_s


def dial(endpoint: Endpoint) -> ClientSocket:
    """Connects. Raises ConnectionLost, AccessDenied, InvalidArgument."""
    context = context_of(endpoint)
    try:
        made = _connected(endpoint)
    except OSError as error:
        raise unreached(endpoint, error) from error
    if context is None:
        return ClientSocket(made, answer_s(endpoint))
    try:
        return ClientSocket(context.wrap_socket(made, server_hostname=endpoint.host), answer_s(endpoint))
    except OSError as error:
        made.close()
        raise unreached(endpoint, error) from error


def unreached(endpoint: Endpoint, error: OSError) -> ConnectionLost | AccessDenied:
    """Why there is no connection, and what to do. AccessDenied, which is not tried again, where TLS refuses."""
    if isinstance(error, ssl.SSLError):
        kind = AccessDenied if is_refusal(error) else ConnectionLost
        return kind(f"no connection to {place_of(endpoint)}: {explain(error, 'server')}")
    why = error.strerror or str(error) or type(error).__name__
    return ConnectionLost(
        f"no server answers at {place_of(endpoint)} ({why}): start it with `xaqueue serve`, or check the "
        + ("path" if endpoint.scheme is Scheme.UNIX else "host and port")
    )


def place_of(endpoint: Endpoint) -> str:
    """Where it is, without the options."""
    return str(endpoint).partition("?")[0]


def _connected(endpoint: Endpoint) -> socket.socket:
    if endpoint.scheme is not Scheme.UNIX:
        made = socket.create_connection((endpoint.host, endpoint.port), DIAL_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(made)
        return made
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(DIAL_S)
        made.connect(endpoint.path)
    except OSError:
        with suppress(OSError):
            made.close()
        raise
    return made
