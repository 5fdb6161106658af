"""Retries and failure queues as their users have them: by a directory, by a server, and from the command line."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import xaqueue
from support.contract_connection import PATIENCE_S
from support.doubtful import fails, run
from support.served import ServerThread
from xaqueue.cli.exit_codes import ExitCode


@pytest.fixture
def space(tmp_path: Path) -> Path:
    root = tmp_path / "space"
    run("init", root)
    run("define", "orders.failed", "--space", root)
    run("define", "orders", "max_tries=2", "retry_delay_s=0.05", "failure_queue=orders.failed", "--space", root)
    return root


@pytest.mark.parametrize("way", ["embedded", "served"])
def test_a_poisoned_message_moves_and_the_others_go_on(space: Path, tmp_path: Path, way: str) -> None:
    server = ServerThread(space, tmp_path / "socket") if way == "served" else None
    try:
        with xaqueue.connect(server.url if server is not None else space) as connection:
            for body in (b"poison", b"fine"):
                connection.enqueue("orders", body)
            connection.commit()
            handled, failed, until = [], 0, time.monotonic() + PATIENCE_S
            while not (moved := list(connection.browse("orders.failed"))):
                assert time.monotonic() < until
                message = connection.dequeue("orders", wait_s=0.1)
                if message is None:
                    continue
                if message.body == b"poison":
                    assert message.tries == failed
                    failed += 1
                    connection.rollback()
                else:
                    handled.append(message.body)
                    connection.commit()
            assert (handled, failed) == ([b"fine"], 2)
            assert [one.body for one in moved] == [b"poison"]
            assert moved[0].origin is not None
            assert (moved[0].origin.queue, moved[0].origin.tries) == ("orders", 2)
            assert connection.dequeue("orders") is None
    finally:
        if server is not None:
            server.stop()


def test_status_tells_what_cannot_be_moved(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        connection.enqueue("orders", b"poison")
        connection.commit()
    text = (space / "queues.toml").read_text()
    (space / "queues.toml").write_text(f"[space]\nmin_free_bytes = {2**62}\n\n{text}")
    with xaqueue.connect(space) as connection:
        for _ in range(2):
            assert connection.dequeue("orders", wait_s=PATIENCE_S) is not None
            connection.rollback()
        (found,) = [one for one in json.loads(run("queues", "--json", "--space", space)) if one["name"] == "orders"]
        assert (found["depth"], found["exhausted"]) == (1, 1)
        assert "had all their tries" in run("status", "--space", space)


def test_what_define_refuses(space: Path) -> None:
    for word, complaint in (
        ("max_trys=3", "did you mean 'max_tries'"),
        ("max_tries", "'max_tries': KEY=VALUE is wanted, or max_tries= to take it away"),
        ("max_tries=0", "a number of tries from 1"),
        ("max_tries=many", "max_tries = 'many'"),
        ("retry_jitter=2", "a share from 0 to 1"),
        ("failure_queue=orders", "is the queue itself"),
        ("failure_queue=nowhere", "'nowhere' is not defined"),
        ("failure_queue=", "max_tries needs failure_queue"),
    ):
        assert complaint in fails("define", "orders", word, "--space", space, code=ExitCode.USAGE)
    run("define", "orders", "max_tries=", "failure_queue=", "retry_delay_s=", "--space", space)
    assert "max_tries" not in (space / "queues.toml").read_text()


@pytest.mark.parametrize("way", ["embedded", "served", "by its URL"])
def test_a_definition_from_a_program_holds_at_once_and_stays(tmp_path: Path, way: str) -> None:
    root = tmp_path / "space"
    run("init", root)
    before = (root / "queues.toml").read_text()
    server = ServerThread(root, tmp_path / "socket") if way != "embedded" else None
    url = server.url if server is not None else ""
    try:
        with xaqueue.connect(url if way == "by its URL" else root) as connection:
            connection.define("orders", order="priority", description="from the shop")
            connection.enqueue("orders", b"x", priority=9)
            connection.commit()
            for wrong in (
                {"max_tries": 3},
                {"ordr": "fifo"},
                {"order": ["fifo"]},
                {"retry_delay_s": object()},
                {"max_tries": 2**63},
            ):
                with pytest.raises(xaqueue.InvalidArgument):
                    connection.define("orders", **wrong)
            with pytest.raises(xaqueue.InvalidArgument, match="queue name"):
                connection.define("../up")
            connection.define("orders", description=None)
            if server is not None:
                run("define", "others", "order=lifo", "--space", url)
                connection.enqueue("others", b"x")
                connection.commit()
        text = (root / "queues.toml").read_text()
        assert text.startswith(before.rstrip())
        assert 'order = "priority"' in text
        assert "from the shop" not in text
    finally:
        if server is not None:
            server.stop()


def failed(space: Path, *regions: str) -> None:
    """Messages that had all their tries, and were moved."""
    with xaqueue.connect(space) as connection:
        for region in regions:
            connection.enqueue("orders", region.encode(), headers={"region": region})
        connection.commit()
        until = time.monotonic() + PATIENCE_S
        while len(list(connection.browse("orders.failed"))) < len(regions):
            assert time.monotonic() < until
            if connection.dequeue("orders", wait_s=0.05):
                connection.rollback()


@pytest.mark.parametrize("way", ["directory", "served"])
def test_an_operator_sends_failed_messages_back(space: Path, tmp_path: Path, way: str) -> None:
    failed(space, "eu", "us", "eu")
    server = ServerThread(space, tmp_path / "socket") if way == "served" else None
    at = server.url if server is not None else space
    try:
        chosen = ("--where", "header.region=eu", "--where", "tries>=2", "--where", "reason=tries", "--space", at)
        assert (
            run("requeue", "orders.failed", *chosen, "--dry-run")
            == "2 messages of queue orders.failed would be moved\n"
        )
        assert run("requeue", "orders.failed", "--where", "age>1h", "--space", at).startswith("0 messages")
        assert run("requeue", "orders.failed", *chosen, "--limit", "1").startswith("1 message of")
        assert run("requeue", "orders.failed", *chosen) == "1 message of queue orders.failed moved\n"
        with xaqueue.connect(at) as connection:
            assert [one.body for one in connection.browse("orders.failed")] == [b"us"]
            back = list(connection.browse("orders"))
            assert [(one.body, one.tries, one.origin) for one in back] == [(b"eu", 0, None), (b"eu", 0, None)]
        assert run("requeue", "orders", "--space", at).startswith("0 messages"), "they were never moved there"
        assert run("move", "orders", "orders.failed", "--where", "age<1h", "--space", at).startswith("2 messages")
    finally:
        if server is not None:
            server.stop()


@pytest.mark.parametrize("way", ["directory", "served"])
def test_an_operator_removes_messages(space: Path, tmp_path: Path, way: str) -> None:
    server = ServerThread(space, tmp_path / "socket") if way == "served" else None
    at = server.url if server is not None else space
    try:
        with xaqueue.connect(at) as connection:
            ids = connection.enqueue_many("orders", [b"1", b"2", b"3"])
            late = connection.enqueue("orders", b"late", delay=600, headers={"k": "v"})
        gone = run("rm", "orders", ids[1].hex(), late.hex(), ids[1].hex(), "--space", at)
        assert gone == "2 messages of queue orders removed\n"
        told = fails("rm", "orders", ids[0].hex(), ids[1].hex(), "--space", at, code=ExitCode.NOTHING)
        assert f"nothing was removed: message {ids[1].hex()} is not in queue orders" in told
        assert "is refused" in fails("rm", "orders", "1", "--space", at, code=ExitCode.USAGE)
        assert "with --yes" in fails("purge", "orders", "--space", at, code=ExitCode.NOTHING)
        run("put", "orders", "late too", "--delay", "1h", "--header", "k=v", "--space", at)
        assert run("purge", "orders", "--dry-run", "--space", at) == "3 messages of queue orders would be removed\n"
        some = ("--where", "header.k=v", "--yes", "--space", at)
        assert run("purge", "orders", *some) == "1 message of queue orders removed\n"
        with xaqueue.connect(at) as connection:
            assert [message.body for message in connection.browse("orders")] == [b"1", b"3"]
        assert run("purge", "orders", "-y", "--space", at) == "2 messages of queue orders removed\n"
        with xaqueue.connect(at) as connection:
            assert list(connection.browse("orders")) == []
    finally:
        if server is not None:
            server.stop()


def test_what_move_and_requeue_refuse(space: Path) -> None:
    for words, complaint in (
        (("requeue", "orders", "--where", "colour=red"), "write tries>=3, age>2h"),
        (("requeue", "orders", "--where", "tries=many"), "a number of tries"),
        (("requeue", "orders", "--where", "age>2"), "give a number its unit"),
        (("requeue", "orders", "--where", "reason>tries"), "reason takes = and !="),
        (("move", "orders", "a/b"), "queue name 'a/b'"),
        (("move", "nothing", "orders"), "'nothing' is not defined"),
    ):
        assert complaint in fails(*words, "--space", space, code=ExitCode.USAGE)
