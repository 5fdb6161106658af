"""Connects tasks of asyncio to the server that a URL names; the URLs are those of ``dial``."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from functools import partial

from xaqueue.connection import Connection
from xaqueue.endpoint import EXAMPLES, Endpoint, Scheme, is_url, parse
from xaqueue.errors import InvalidArgument
from xaqueue.rpc.async_connection import AsyncConnection
from xaqueue.rpc.async_stream import AwaitedSocket
from xaqueue.rpc.awaiting import awaited, carried
from xaqueue.rpc.client import RemoteManager
from xaqueue.rpc.dial import DIAL_S, answer_s, context_of, hello_of, unreached
from xaqueue.rpc.sockets import keep_alive
from xaqueue.rpc.stream import Stream
from xaqueue.storage.ids import fresh_id


async def connect(url: str) -> AsyncConnection:
    """See ``xaqueue.connect_async``."""
    if not is_url(url):
        raise InvalidArgument(
            f"{url!r} is no URL of a server: {EXAMPLES}. A directory is opened with xaqueue.connect, and has no async "
            "connections: serve it with `xaqueue serve`"
        )
    endpoint = parse(url)
    return AsyncConnection(await carried(partial(_connection, endpoint), lambda _: None))


def _connection(endpoint: Endpoint) -> Connection:
    dialled = partial(_dial, endpoint)
    return Connection(RemoteManager(dialled, hello=partial(hello_of, endpoint), pause=_pause), fresh_id)


def _pause(pause_s: float) -> None:
    awaited(asyncio.sleep(pause_s))


def _dial(endpoint: Endpoint) -> Stream:
    """As ``dial.dial``."""
    context = context_of(endpoint)
    try:
        return Stream(awaited(_connected(endpoint, context)), answer_s(endpoint))
    except OSError as error:
        raise unreached(endpoint, error) from error


async def _connected(endpoint: Endpoint, context: ssl.SSLContext | None) -> AwaitedSocket:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(DIAL_S):
        if endpoint.scheme is Scheme.UNIX:
            _, made = await loop.create_unix_connection(AwaitedSocket, endpoint.path)
            return made
        transport, made = await loop.create_connection(AwaitedSocket, endpoint.host, endpoint.port, ssl=context)
    number = transport.get_extra_info("socket").fileno()
    with suppress(OSError), socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM) as same:  # or it is closed again
        keep_alive(same)
    return made
