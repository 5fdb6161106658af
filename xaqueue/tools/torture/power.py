"""The power is lost at random calls, by the rules: what was synced is there, of the rest any part that may be.

The work goes on in the directory, and every call is done in a file system that forgets as well (``forgetful``). At the
chosen call that one says what a power loss may leave. Each of several such trees is laid out in the directory, opened
by the engine, and held to what had been acknowledged by then.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from xaqueue.core.owner import definitions_file, open
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import write_then_sync
from xaqueue.core.storage.hardening import Hardening
from xaqueue.errors import DiskFull, Error
from xaqueue.features import opening
from xaqueue.features.opening import open_space
from xaqueue.features.session import Session
from xaqueue.testing.crashing import CHANGES, LOOKS
from xaqueue.testing.forgetful import ForgetfulFileSystem, Tree
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
    """Power losses until the time is over, one at least. Raises DiskFull where there is no room to work."""
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
        drawn = (play.port.model.tree_by_chance(dice) for _ in range(TREES))
        for tree in {tree.key(): tree for tree in (*play.port.model.barest_trees(), *drawn)}.values():
            with laid_out(tree, place / "left") as left:
                outcome.count(play.ledger.judge(reopened(left, flags, play.ledger.decided())))


class _Play:
    """Workers on a space until its power is gone. What they say after that, nobody hears."""

    def __init__(self, root: Path, hardening: Hardening, dice: random.Random) -> None:
        self.port = RecordingFileSystem(root, keep_unsynced=bool(hardening.content) and not hardening.journal)
        self.space = open_space(self.port, definitions_file.read_definitions(root), hardening=hardening)
        self.ledger = Ledger()
        self.full: DiskFull | None = None
        seed = f"{dice.random()}"
        self.workers = [Client(Session(self.space), f"{n}", seed, self.say) for n in range(dice.choice(WORKERS))]
        self.calls = dice.randrange(dice.choice(CALLS))

    def say(self, said: Statement) -> None:
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

    def _work(self, worker: Client) -> None:
        try:
            worker.run()
        except Exception as error:
            with self.port.guard:
                if isinstance(error, DiskFull):
                    self.full = error
                elif not self.port.lost.is_set():
                    self.ledger.faults.append(f"the engine failed: {error}")
                self.port.lost.set()


class PowerLost(OSError):
    """Every call since then."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the power is gone")


class RecordingFileSystem(DirectoryFileSystem):
    """A port that does everything twice: in the directory, and in a file system that knows what a power loss may leave.

    What is in the directory when this is made is durable. Safe for threads: one call at a time. ``lost`` is set before
    the call at which the power goes, and from then on every call raises PowerLost.
    """

    def __init__(self, root: Path, *, keep_unsynced: bool) -> None:
        super().__init__(root, keep_unsynced=keep_unsynced)
        self.model = ForgetfulFileSystem(tree_in(root))
        self.guard = threading.RLock()
        self.lost = threading.Event()
        self._left: int | None = None

    write_synced = write_then_sync  # the power may go between the two

    def lose_power_after(self, calls: int) -> None:
        """So many calls that change or sync something are still done."""
        with self.guard:
            self._left = calls

    def agrees(self) -> bool:
        """Whether directory and model hold the same."""
        with self.guard:
            return tree_in(Path(self.root)).key() == self.model.tree_after_kill().key()

    def count(self) -> None:
        """One more call that changes or syncs something."""
        if self._left == 0:
            self.lost.set()
        if self._left is not None:
            self._left -= 1
        self.check_power()

    def check_power(self) -> None:
        if self.lost.is_set():
            raise PowerLost


def _done_twice(name: str) -> Callable[..., None]:
    in_directory = getattr(DirectoryFileSystem, name)

    def call(port: RecordingFileSystem, *args: Any) -> None:
        with port.guard:
            port.count()
            in_directory(port, *args)
            getattr(port.model, name)(*args)

    return call


def _while_powered(name: str) -> Callable[..., Any]:
    look = getattr(DirectoryFileSystem, name)

    def call(port: RecordingFileSystem, *args: Any) -> Any:
        port.check_power()
        return look(port, *args)

    return call


for _name in CHANGES:
    setattr(RecordingFileSystem, _name, _done_twice(_name))
for _name in LOOKS:
    setattr(RecordingFileSystem, _name, _while_powered(_name))


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
