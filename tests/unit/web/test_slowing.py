"""Wrong tokens are answered ever later, those of one address, and nobody else waits for that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from http.client import HTTPConnection
from pathlib import Path

import pytest

from support.served import ServerThread
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.features.opening import create
from xaqueue.web import slowing
from xaqueue.web.front import HttpConfig, HttpFront
from xaqueue.web.slowing import Slowing, address_of

TOKEN = "producer-0123456789"
PATIENCE_S = 60.0


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(slowing, "sleep", sleep)
    return found


def fail(one: Slowing, *addresses: str) -> None:
    async def all_of_them() -> None:
        for address in addresses:
            await one.failed(address)

    asyncio.run(all_of_them())


def test_each_waits_twice_as_long(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    one, now = Slowing(), 100.0
    monkeypatch.setattr("xaqueue.web.slowing.time.monotonic", lambda: now)
    fail(one, *["10.0.0.1"] * slowing.FREE, *["10.0.0.2"] * slowing.FREE)
    assert slept == []
    fail(one, *["10.0.0.1"] * 7)
    assert slept == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    slept.clear()
    now += slowing.FORGET_S
    fail(one, *["10.0.0.1"] * slowing.FREE)
    assert slept == []


def test_what_is_remembered_is_bounded(slept: list[float]) -> None:
    one = Slowing()
    fail(one, *["first"] * slowing.FREE, *(f"10.0.{number}" for number in range(slowing.ADDRESSES)), "first")
    assert slept == []
    assert len(one._failed) == slowing.ADDRESSES
    fail(one, *["last"] * (slowing.FREE + 1))
    assert len(slept) == 1
    assert not one._waiting


def test_addresses_of_one_network_are_one() -> None:
    assert address_of("2001:db8::1") == address_of("2001:db8::ffff:2") != address_of("2001:db8:0:1::1")
    assert address_of("fe80::1%eth0") == address_of("fe80::2")
    assert address_of("10.0.0.1") != address_of("10.0.0.2")


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    create(tmp_path / "space")
    role = f'[access.roles.shop]\nmembers = ["token:{sha256(TOKEN.encode()).hexdigest()}"]\nproduce = ["*"]\n'
    write_definitions(tmp_path / "space", role)
    thread = ServerThread(tmp_path / "space", tmp_path / "socket", sync="NONE")
    try:
        with HttpFront(HttpConfig("127.0.0.1:0")) as made:
            made.show(thread.server)
            yield int(made.url.rstrip("/").rpartition(":")[2])
    finally:
        thread.stop()


def status_of(port: int, token: str) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/api/overview", headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_the_right_token_is_answered_while_wrong_ones_wait(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same address, as behind a proxy; it is refused only while too many wrong ones wait, and not for long."""
    held, waits, may_go = slowing.WAITING, threading.Semaphore(0), threading.Event()

    async def sleep(_: float) -> None:
        waits.release()
        while not may_go.is_set():
            await asyncio.sleep(0.001)

    monkeypatch.setattr(slowing, "sleep", sleep)
    assert [status_of(port, "nobody-0123456789") for _ in range(slowing.FREE)] == [403] * slowing.FREE
    with ThreadPoolExecutor(held) as pool:
        try:
            wrong = [pool.submit(status_of, port, f"nobody-0123456789-{number}") for number in range(held - 1)]
            for _ in wrong:
                assert waits.acquire(timeout=PATIENCE_S)
            assert status_of(port, TOKEN) == 200
            wrong.append(pool.submit(status_of, port, "nobody-0123456789-more"))
            assert waits.acquire(timeout=PATIENCE_S)
            assert [status_of(port, token) for token in (TOKEN, "nobody-0123456789")] == [429, 429]
        finally:
            may_go.set()
        assert [one.result() for one in wrong] == [403] * held
    assert status_of(port, TOKEN) == 200
