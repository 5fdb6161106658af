"""A topic of 50 subscribers, whose publisher is killed at any moment: each of them has a message, or none has."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import xaqueue
from support import SUPPORT
from support.topic_child import SUBSCRIBERS, TOPIC
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.features.opening import create
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity

FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
KILLS = 100 if FULL else 2
LONGEST_S = 1.5 if FULL else 0.7
PATIENCE_S = 60.0


def killed_life(root: Path, life: int, seed: str, delay_s: float) -> list[list[str]]:
    """What a publisher said until it was killed, so long after it had opened the space."""
    child = [sys.executable, str(SUPPORT / "topic_child.py"), str(root), f"l{life}", seed]
    with subprocess.Popen(child, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        time.sleep(delay_s)  # the moment of the kill, and no wait for anything
        process.kill()
        said = process.stdout.read()
        process.wait(PATIENCE_S)
    return [line.split() for line in said.splitlines(keepends=True) if line.endswith("\n")]


def of_kind(said: list[list[str]], kind: str) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[1:]) for words in said if words[0] == kind)


def judge(found: dict[str, Counter[str]], said: list[list[str]]) -> list[str]:
    """What is lost, doubled, or with some of the subscribers only."""
    acked, maybe = ({key for (key,) in of_kind(said, kind)} for kind in ("acked", "maybe"))
    taken, taking = of_kind(said, "taken"), of_kind(said, "taking")
    wrong = []
    for key in sorted(maybe | {key for counts in found.values() for key in counts}):
        least = {queue: found[queue][key] + taken[queue, key] for queue in SUBSCRIBERS}
        most = {queue: found[queue][key] + taking[queue, key] for queue in SUBSCRIBERS}
        everywhere = all(most[queue] >= 1 for queue in SUBSCRIBERS) and max(least.values()) <= 1
        nowhere = key not in acked and max(most.values()) == 0
        if not (everywhere or nowhere):
            wrong.append(
                f"{key}, {'acknowledged' if key in acked else 'unanswered'}: {most}, taken {sum(least.values())}"
            )
    return wrong


@pytest.mark.crash
@pytest.mark.parametrize("sync", ["JOURNAL", "FDATASYNC;DSYNC"])
def test_each_of_fifty_subscribers_or_none(tmp_path: Path, sync: str) -> None:
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    rng, root = random.Random(seed), tmp_path / "space"
    create(root, sync=sync)
    queues = "".join(f'[queues.{queue}]\ntopic = "{TOPIC}"\n' for queue in SUBSCRIBERS)
    write_definitions(root, f'[space]\nsync = "{sync}"\n[topics.{TOPIC}]\n{queues}')
    said: list[list[str]] = []
    for life in range(KILLS):
        said += killed_life(root, life, seed, rng.uniform(0.0, LONGEST_S))
        assert [str(one) for one in check(root) if one.severity is Severity.DAMAGE] == []
    with xaqueue.connect(root) as connection:
        for xid in connection.tpc_recover():
            connection.tpc_rollback(xid)
        found = {queue: Counter(message.body.decode() for message in connection.browse(queue)) for queue in SUBSCRIBERS}
    assert judge(found, said) == []
    assert len(of_kind(said, "acked")) > KILLS
    assert of_kind(said, "taken").total() > KILLS
