"""A client of xaqueue(5)'s protocol in raw MessagePack: nothing here but ``socket`` and ``msgpack``."""

from __future__ import annotations

import socket
from typing import Any

import msgpack

PATIENCE_S = 60.0

ONEPHASE, FAIL, RESUME, SUCCESS, SUSPEND = 0x40000000, 0x20000000, 0x08000000, 0x04000000, 0x02000000
STARTRSCAN, ENDRSCAN, JOIN, MIGRATE = 0x01000000, 0x00800000, 0x00200000, 0x00100000
NOTA = -4

Xid = tuple[int, bytes, bytes]


class Refused(Exception):
    """The error object of an answer."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(told)
        self.told = told
        self.code: int = told["code"]
        self.name: str = told["name"]
        self.ride: str | None = told.get("ride")


class UnknownXid(Refused):
    """XAER_NOTA."""


class HungUp(Exception):
    """The server ended the session."""


class RawClient:
    """One session."""

    def __init__(self, path: object) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE_S)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self._unpacker = msgpack.Unpacker(raw=False)
        self._number = 0

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def packed(self, method: str, *params: Any) -> bytes:
        """The bytes of a request with the next number."""
        self._number += 1
        packed: bytes = msgpack.packb([0, self._number, method, list(params)])
        return packed

    def ask(self, method: str, *params: Any) -> int:
        """Sends a request and does not wait for its answer."""
        self.send(self.packed(method, *params))
        return self._number

    def ride(self, method: str, *params: Any) -> None:
        self.send(msgpack.packb([2, method, list(params)]))

    def answer(self) -> list[Any]:
        """The next answer as it came: [1, id, error, result]."""
        while True:
            for frame in self._unpacker:
                assert isinstance(frame, list)
                return frame
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError as error:
                raise HungUp from error
            if not data:
                raise HungUp
            self._unpacker.feed(data)

    def result(self, number: int) -> Any:
        """The result of this request, whose answer is the next to come."""
        kind, answered, error, result = self.answer()
        assert (kind, answered) == (1, number)
        if error is not None:
            raise (UnknownXid if error["code"] == NOTA else Refused)(error)
        return result

    def call(self, method: str, *params: Any) -> Any:
        return self.result(self.ask(method, *params))

    def is_ended(self) -> bool:
        """Whether the server hangs up without another word."""
        try:
            self.answer()
        except HungUp:
            return True
        return False

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Closes as a killed process with unread data does: the peer gets a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
