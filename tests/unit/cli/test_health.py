"""``xaqueue health``: each state has its line, its way out and its exit code, and the worst decides."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import xaqueue
from support.served import ServerThread
from xaqueue.cli.health import HEALTH_CODES
from xaqueue.cli.main import app
from xaqueue.features.replica.replicated import ReplicationStatus
from xaqueue.offline import inspect
from xaqueue.offline.health import KINDS, NOTE, findings
from xaqueue.offline.inspect import QueueStatus, Status

FULL = QueueStatus("orders", "fifo", "", 1, 1, full="max_messages = 1", stuck="queue 'failed' is not defined")
CASES: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({}, {}, []),
    ({"trouble": "the sync failed"}, {}, ["fenced"]),
    ({"owned": False, "state": ""}, {}, ["unowned"]),
    ({"state": "read-only"}, {}, ["read-only"]),
    ({"damage": "records are lost", "owned": False, "state": ""}, {}, ["read-only"]),
    ({"state": "recovering"}, {}, ["recovering"]),
    ({"damaged": 1, "in_doubt": 1}, {}, ["damaged"]),
    ({"low": "1 MiB is free"}, {"draining": True}, ["low disk", "draining"]),
    ({}, {"in_doubt_age_s": 601.0}, ["in doubt"]),
    ({}, {"in_doubt_age_s": 599.0}, []),
    ({"replication": ReplicationStatus("source", connected=True, lag_s=1.0)}, {}, []),
    ({"replication": ReplicationStatus("source", lag_s=59.0)}, {}, []),
    ({"replication": ReplicationStatus("source", lag_s=61.0)}, {}, ["replica"]),
    ({"replication": ReplicationStatus("source", lag_s=59.0)}, {"lag_s": 10.0}, ["replica"]),
    ({"replication": ReplicationStatus("source", connected=True, lag_bytes=9, lag_s=61.0)}, {}, ["replica"]),
    ({"owned": False, "state": "", "replication": ReplicationStatus("replica", connected=True)}, {}, []),
    ({"owned": False, "state": "", "replication": ReplicationStatus("replaced", "xaq://b")}, {}, ["replica"]),
    ({"complaint": "line 3", "quarantined": 2, "queues": [FULL]}, {}, [NOTE] * 4),
    ({"damaged": 1, "low": "1 MiB is free", "quarantined": 1}, {}, ["damaged", "low disk", NOTE]),
]


@pytest.fixture(scope="module")
def well(tmp_path_factory: pytest.TempPathFactory) -> Status:
    place = tmp_path_factory.mktemp("spaces") / "s"
    with xaqueue.connect(place, create=True):
        return inspect.status(place)


@pytest.mark.parametrize(("status", "more", "kinds"), CASES)
def test_a_state_is_found(well: Status, status: dict[str, Any], more: dict[str, Any], kinds: list[str]) -> None:
    assert well.owner is not None
    assert well.journal is not None
    journal = replace(well.journal, damage=status.get("damage", well.journal.damage))
    owner = replace(well.owner, trouble=status.get("trouble", ""))
    told = {name: value for name, value in status.items() if name not in ("trouble", "damage")}
    made = replace(well, **{"owner": owner, "journal": journal, **told})
    found = findings(made, **{"draining": False, "in_doubt_age_s": 0.0, **more})
    assert [one.kind for one in found] == kinds
    assert all(one.text[-1] != "." for one in found)


def test_each_kind_but_a_note_has_a_code_of_its_own() -> None:
    assert sorted(HEALTH_CODES) == sorted(set(KINDS) - {NOTE})
    assert sorted(HEALTH_CODES.values()) == list(range(10, 19))


def health(place: object, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["health", "--space", str(place), *options])
    return done.exit_code, done.output


def test_by_directory(tmp_path: Path) -> None:
    place = tmp_path / "s"
    with xaqueue.connect(place, create=True) as connection:
        assert health(place) == (0, "ready\n")
        connection.tpc_begin(connection.xid(1, "order-7", "queue"))
        connection.enqueue("orders", b"one")
        connection.tpc_prepare()
    code, said = health(place)
    assert (code, said[:9]) == (HEALTH_CODES["unowned"], "unowned: ")
    with xaqueue.connect(place):
        assert health(place) == (0, "ready\n")
        code, said = health(place, "--in-doubt-age", "0", "--json")
        assert code == HEALTH_CODES["in doubt"]
        assert json.loads(said)["ready"] is False
        assert [one["kind"] for one in json.loads(said)["findings"]] == ["in doubt"]


class LookedAgain(Exception):
    pass


def test_it_waits_while_another_program_has_the_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a server is as well, before it listens."""

    def look_again(_: float) -> None:
        raise LookedAgain

    monkeypatch.setattr("xaqueue.cli.health.sleep", look_again)
    with xaqueue.connect(tmp_path / "s", create=True), pytest.raises(LookedAgain):
        CliRunner().invoke(app, ["health", "--wait", "60", "--space", str(tmp_path / "s")], catch_exceptions=False)


def test_it_waits_for_a_server_that_comes_up(tmp_path: Path) -> None:
    place, said = tmp_path / "s", list[tuple[int, str]]()
    xaqueue.connect(place, create=True).close()
    assert health(place, "--wait", "0.2")[0] == HEALTH_CODES["unowned"]
    assert health(f"xaq+unix://{tmp_path}/socket", "--wait", "0.2")[0] == 3
    with xaqueue.connect(place):
        code, told = health(place, "--wait", "0.2")
        assert (code, "nobody serves it: a program has it open" in told) == (3, True)
    waiting = threading.Thread(target=lambda: said.append(health(place, "--wait", "60")))
    waiting.start()
    server = ServerThread(place, tmp_path / "socket", sync="NONE")
    waiting.join()
    server.stop()
    assert said == [(0, "ready\n")]


def test_by_url(tmp_path: Path) -> None:
    place = tmp_path / "s"
    xaqueue.connect(place, create=True).close()
    server = ServerThread(place, tmp_path / "socket", sync="NONE")
    try:
        assert health(server.url) == (0, "ready\n")
        assert health(place) == (0, "ready\n")
        server.space.draining = True
        assert health(server.url)[0] == HEALTH_CODES["draining"]
    finally:
        server.stop()
    assert health(server.url)[0] == 3
