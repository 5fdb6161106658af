"""The power is lost at random calls, by the rules: what was synced is there, of the rest any part that may be.

The work goes on in the directory, and every call is done in a file system that forgets as well (``forgetful``). At the
chosen call that one says what a power loss may leave. Each of several such trees is laid out in the directory, opened
by the engine, and held to what had been acknowledged by then.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from xaqueue.errors import DiskFull, Error
from xaqueue.space.engine.session import Session
from xaqueue.space.engine.state import Space
from xaqueue.space.owner import open
from xaqueue.storage.hardening import Hardening
from xaqueue.torture.forgetful import Tree
from xaqueue.torture.ledger import Ledger, Said
from xaqueue.torture.recording import RecordingFileSystem
from xaqueue.torture.reopen import reopened
from xaqueue.torture.scratch import laid_out, made
from xaqueue.torture.verdict import Outcome
from xaqueue.torture.work import Worker

DEFINITIONS = '[default]\n[space]\njournal_segment_bytes = 65536\ncheckpoint_s = 1\nsync = "NONE"\n'
"""Small segments, so that they are recycled while one looks."""
CALLS = (10, 60, 400)
"""One of them is the most calls that are still done before the power goes."""
WORKERS = (1, 3)
LONGEST_PLAY_S = 5.0
TREES = 8
"""Of one power loss: drawn from all there are, beside the barest."""
BAREST = 2


def survive_power_losses(scratch: Path, flags: str, seconds: float, seed: str) -> Outcome:
    """Power losses until the time is over, one at least. Raises DiskFull where there is no room to work."""
    outcome = Outcome()
    dice = random.Random(f"{seed}/power/{flags}")
    until = time.monotonic() + seconds
    with _silence():
        while outcome.tries == 0 or time.monotonic() < until:
            _lose_power(scratch / "play", flags, dice, outcome)
    return outcome


def _lose_power(place: Path, flags: str, dice: random.Random, outcome: Outcome) -> None:
    """One play, cut off, and everything that is looked at after it."""
    with made(place):
        open.create(place / "space")
        open.write_definitions(place / "space", DEFINITIONS)
        play = _Play(place / "space", Hardening.parse(flags), dice)
        play.run()
        outcome.branches += play.ledger.heard["acked"]
        outcome.faults += play.ledger.faults
        for tree in _trees(play.port, dice):
            with laid_out(tree, place / "left") as left:
                outcome.count(play.ledger.judge(reopened(left, flags, play.ledger.decided())))


def _trees(port: RecordingFileSystem, dice: random.Random) -> Iterator[Tree]:
    seen = set()
    drawn = (port.model.tree_by_chance(dice) for _ in range(TREES))
    for tree in itertools.chain(itertools.islice(port.model.trees_after_crash(0), BAREST), drawn):
        if (key := tree.key()) not in seen:
            seen.add(key)
            yield tree


class _Play:
    """Workers on a space until its power is gone. What they say after that, nobody hears."""

    def __init__(self, root: Path, hardening: Hardening, dice: random.Random) -> None:
        self.port = RecordingFileSystem(root, keep_unsynced=bool(hardening.content) and not hardening.journal)
        self.space = Space(self.port, open.read_definitions(root), hardening=hardening)
        self.ledger = Ledger()
        self.full: DiskFull | None = None
        seed = f"{dice.random()}"
        self.workers = [Worker(Session(self.space), f"{n}", seed, self.say) for n in range(dice.choice(WORKERS))]
        self.calls = dice.randrange(dice.choice(CALLS))

    def say(self, said: Said) -> None:
        with self.port.guard:
            if not self.port.lost.is_set():
                self.ledger.hear(said)

    def run(self) -> None:
        """Raises DiskFull where that is what ended it."""
        threads = [threading.Thread(target=self._work, args=(worker,)) for worker in self.workers]
        followers = open.start_background(self.space)
        self.port.lose_power_after(self.calls)
        try:
            for thread in threads:
                thread.start()
            self.port.lost.wait(LONGEST_PLAY_S)
        finally:
            self.port.lost.set()
            for thread in threads:
                thread.join()
            for follower in followers:
                follower.stop()
        if not self.port.agrees():
            self.ledger.faults.append("the directory does not hold what was done in it")
        with suppress(Error, OSError):
            self.space.close()
        if self.full is not None:
            raise self.full

    def _work(self, worker: Worker) -> None:
        try:
            worker.run()
        except Exception as error:
            with self.port.guard:
                if isinstance(error, DiskFull):
                    self.full = error
                elif not self.port.lost.is_set():
                    self.ledger.faults.append(f"the engine failed: {error}")
                self.port.lost.set()


@contextmanager
def _silence() -> Iterator[None]:
    """A space whose power is lost says so each time."""
    log = logging.getLogger("xaqueue")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)
