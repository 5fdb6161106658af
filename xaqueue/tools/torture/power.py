"""The power is lost at random calls, by the rules: what was synced is there, of the rest any part that may be.

The work goes on in a file system in memory that forgets (``forgetful``). At the chosen call that one says what a power
loss may leave. Each of several such trees is laid out in the directory, opened by the engine, and held to what had been
acknowledged by then.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from xaqueue.core.owner import definitions_file, open
from xaqueue.core.storage.hardening import Hardening
from xaqueue.errors import Error
from xaqueue.features import opening
from xaqueue.features.opening import open_space
from xaqueue.features.session import Session
from xaqueue.testing.crashing import CrashingFileSystem
from xaqueue.testing.forgetful import Tree
from xaqueue.tools.torture.ledger import CrashTally, Ledger, Statement
from xaqueue.tools.torture.work import Client, reopened

DEFINITIONS = '[default]\n[space]\njournal_segment_bytes = 65536\ncheckpoint_s = 1\nsync = "NONE"\n'
"""Small segments, so that they are recycled while one looks."""
CALLS = (10, 60, 400)
"""One of them is the most calls that are still done before the power goes."""
WORKERS = (1, 3)
LONGEST_PLAY_S = 5.0
TREES = 8
"""Of one power loss: drawn from all there are, beside the barest."""


def survive_power_losses(scratch: Path, flags: str, seconds: float, seed: str) -> CrashTally:
    """Power losses until the time is over, one at least."""
    outcome = CrashTally()
    dice = random.Random(f"{seed}/power/{flags}")
    until = time.monotonic() + seconds
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # a space whose power is lost says so each time
    try:
        while outcome.tries == 0 or time.monotonic() < until:
            _lose_power(scratch / "play", flags, dice, outcome)
    finally:
        logging.disable(before)
    return outcome


def _lose_power(place: Path, flags: str, dice: random.Random, outcome: CrashTally) -> None:
    """One play, cut off, and everything that is looked at after it."""
    with made(place):
        opening.create(place / "space")
        definitions_file.write_definitions(place / "space", DEFINITIONS)
        play = _Play(place / "space", Hardening.parse(flags), dice)
        play.run()
        outcome.branches += play.ledger.heard["acked"]
        outcome.faults += play.ledger.faults
        drawn = (play.fs.tree_by_chance(dice) for _ in range(TREES))
        for tree in {tree.key(): tree for tree in (*play.fs.barest_trees(), *drawn)}.values():
            with laid_out(tree, place / "left") as left:
                outcome.count(play.ledger.judge(reopened(left, flags, play.ledger.decided())))


class _Play:
    """Workers on a space until its power is gone. What they say after that, nobody hears."""

    def __init__(self, root: Path, hardening: Hardening, dice: random.Random) -> None:
        self.fs = LosingFileSystem(tree=tree_in(root))
        self.space = open_space(self.fs, definitions_file.read_definitions(root), hardening=hardening)
        self.ledger = Ledger()
        seed = f"{dice.random()}"
        self.workers = [Client(Session(self.space), f"{n}", seed, self.say) for n in range(dice.choice(WORKERS))]
        self.calls = dice.randrange(dice.choice(CALLS))

    def say(self, said: Statement) -> None:
        with self.fs.lock:
            if not self.fs.crashed:
                self.ledger.hear(said)

    def run(self) -> None:
        threads = [threading.Thread(target=self._work, args=(worker,)) for worker in self.workers]
        followers = open.start_background(self.space)
        self.fs.crash_after = self.fs.calls + self.calls
        until = time.monotonic() + LONGEST_PLAY_S
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(max(until - time.monotonic(), 0.0))
        finally:
            self.fs.crashed = True
            for one in (*threads, *followers):
                one.join() if isinstance(one, threading.Thread) else one.stop()
        with suppress(Error, OSError):
            self.space.close()

    def _work(self, worker: Client) -> None:
        try:
            worker.run()
        except Exception as error:
            with self.fs.lock:
                if not self.fs.crashed:
                    self.ledger.faults.append(f"the engine failed: {error}")
                self.fs.crashed = True


class PowerLost(OSError):
    """Every call since then."""

    def __init__(self, when: str) -> None:
        super().__init__(errno.EIO, f"the power is gone: {when}")


class LosingFileSystem(CrashingFileSystem):
    """The engine outlives its disk, and says no more."""

    error = PowerLost


@contextmanager
def made(place: Path) -> Iterator[Path]:
    """A new directory, gone after the block."""
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place)


def tree_in(root: Path) -> Tree:
    """What a directory holds."""
    nodes: dict[str, bytes | None] = {}
    for path in sorted(root.rglob("*")):
        nodes[str(path.relative_to(root))] = None if path.is_dir() else path.read_bytes()
    return Tree(nodes)


@contextmanager
def laid_out(tree: Tree, place: Path) -> Iterator[Path]:
    """A new directory that holds this."""
    with made(place):
        for path, content in tree.nodes.items():
            if path in tree.links:
                os.link(place / tree.links[path], place / path)
            elif content is None:
                (place / path).mkdir()
            else:
                (place / path).write_bytes(content)
        yield place
