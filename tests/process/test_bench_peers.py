"""xaqueue beside what people take instead, as the guide has it: at a tiny size, with what the tests have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.peers import __main__ as peers
from bench.peers import nats, page, rabbitmq, redis

GUIDE = Path(__file__).parents[2] / "man" / "guide"


def test_who_is_there_is_measured_and_the_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dsn: str
) -> None:
    there = [peers.SERVED, peers.EMBEDDED, "SQLite, a table", "PostgreSQL, a table"]
    queues = [*there, "Redis", "NATS JetStream", "RabbitMQ, classic", "RabbitMQ, quorum"]
    for module in (nats, rabbitmq, redis):
        monkeypatch.setattr(module, "PROGRAM", f"no-{Path(module.PROGRAM).name}")
    plan = peers.Plan(tmp_path, queues, (1, 2), (1, 3), size_bytes=64, seconds=0.05, rounds=1, dsn=dsn)
    measured, told = peers.Peers(plan), list[str]()
    measured.run(told.append)
    assert list(tmp_path.iterdir()) == []
    result = json.loads(json.dumps(measured.result()))
    assert len(result["results"]) == len(there) * 2 * 2 * 2
    assert all(row["per_s"] > 0 and len(row["rounds_per_s"]) == 1 for row in result["results"])
    assert set(result["durability"]) == set(there)
    assert all(result["durability"].values())
    programs = {"Redis": "no-redis-server", "NATS JetStream": "no-nats-server"}
    programs |= dict.fromkeys(("RabbitMQ, classic", "RabbitMQ, quorum"), "no-rabbitmq-server")
    assert result["missing"] == {queue: f"{program} is not installed" for queue, program in programs.items()}
    printed = "\n".join(peers.lines(result))
    assert "Redis: no-redis-server is not installed" in printed
    for queue in queues:
        assert printed.count(f"\n{queue}") == 5  # in two tables of rates and two of CPU, and what it promises
    section = page.section(result)
    assert section.count(" not measured |") == 2 * 4 * 4  # each cell of two tables
    assert "*NATS JetStream* was not measured: no-nats-server is not installed" in section
    assert result["environment"]["date"] in section


@pytest.mark.parametrize(("share", "told"), [(0.02, False), (0.6, True)])
def test_a_page_says_whether_the_machine_was_quiet(share: float, told: bool) -> None:
    result = json.loads((GUIDE / "figures" / "peers.json").read_text())
    result["environment"]["busy_share"] = [0.0, share]
    assert ("The machine was not quiet" in page.section(result)) is told


def test_the_guide_has_what_was_measured_and_nothing_else() -> None:
    result = json.loads((GUIDE / "figures" / "peers.json").read_text())
    told = (GUIDE / "performance.md").read_text()
    assert page.section(result) in told
    assert page.written(told, result) == told
    for messages in result["options"]["messages"]:
        assert (GUIDE / "pictures" / page.picture(messages)).is_file()


def test_who_is_faster_is_said() -> None:
    rows = [
        {"way": way, "threads": 1, "operation": operation, "messages": 1, "per_s": rate}
        for way, rate in ((peers.SERVED, 100.0), (peers.EMBEDDED, 300.0), ("Redis", 150.0), ("NATS JetStream", 99.0))
        for operation in ("produce", "consume")
    ]
    found = list(page._ahead({"results": rows, "options": {"threads": [1]}}, 1))
    assert found == [f"- Faster than its server, {what} x1: Redis (1.5 times)." for what in ("produce", "consume")]
