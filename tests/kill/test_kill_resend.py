"""Producers whose client sends again, over a server that is killed again and again: each message once, and nobody in
doubt. OMS-34, OMS-37."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import xaqueue
from support.served import Process
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.errors import ConnectionLost, OutcomeUnknown
from xaqueue.features.opening import create
from xaqueue.rpc.client.resend import TOKENS

KILLS = 60 if os.environ.get("XAQUEUE_CRASH_FULL") == "1" else 3
PRODUCERS = 3
PATIENCE_S = 60.0


class Producer(threading.Thread):
    def __init__(self, root: Path, number: int, over: threading.Event) -> None:
        super().__init__(name=f"producer-{number}")
        self._root, self._number, self._over = root, number, over
        self.sent: list[bytes] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with xaqueue.connect(self._root, resend=True) as connection:
                while not self._over.is_set():
                    bodies = [b"%d/%d" % (self._number, len(self.sent) + one) for one in range(random.randint(1, 3))]
                    try:
                        connection.enqueue_many("orders", bodies)
                        connection.commit()
                    except ConnectionLost as lost:  # no server took it, for as long as is waited: nothing was sent
                        if isinstance(lost, OutcomeUnknown):
                            raise
                        continue
                    self.sent += bodies
        except BaseException as failure:
            self.failure = failure


def drained(root: Path, queue: str = "orders") -> list[bytes]:
    found = []
    with xaqueue.connect(root) as consumer:
        while messages := consumer.dequeue_many(queue, 100):
            consumer.commit()
            found += [message.body for message in messages]
    return found


@pytest.mark.crash
@pytest.mark.parametrize("sync", ["JOURNAL", "NONE"])
def test_what_is_sent_again_comes_once(tmp_path: Path, sync: str) -> None:
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    rng, root, over, taken = random.Random(seed), tmp_path / "space", threading.Event(), list[bytes]()
    create(root, sync=sync)
    write_definitions(root, f'[space]\nserved_only = true\n[queues.orders]\n[queues."{TOKENS}"]\n')
    producers = [Producer(root, number, over) for number in range(PRODUCERS)]
    for life in range(KILLS + 1):
        with Process(root, "--sync", sync) as process:
            for producer in producers if life == 0 else ():
                producer.start()
            taken += drained(root)
            time.sleep(rng.uniform(0.05, 0.3))
            if life < KILLS:
                assert process.end(signal.SIGKILL) == -signal.SIGKILL
                continue
            over.set()
            for producer in producers:
                producer.join(PATIENCE_S)
                assert producer.failure is None
            taken += drained(root)
            assert drained(root, TOKENS) == []
    assert Counter(taken) == Counter(body for producer in producers for body in producer.sent)
    assert min(len(producer.sent) for producer in producers) > KILLS
