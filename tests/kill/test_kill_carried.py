"""Whatever stands in for the right space or database, and whenever the program is killed: rows and messages agree.

A real process, SIGKILL, two queue spaces and a database that carries what both do. The model is the database's own
tables: what was sent and not handled is in the queue of its space, each once, and nothing else is. Where a copy from
before takes part, a participant has another name, or the table is gone, nothing is handed out of the queues concerned
and recovery says why; with the right one again all is as it should be.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support import SUPPORT
from support.carry_life import NAMES, SPACES, TABLES, participants
from xaqueue import ProtocolError, QueueWaiting, TransactionManager
from xaqueue.tm import last_resource

CHILD = SUPPORT / "carry_life.py"
FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
PATIENCE_S = 60.0
DEADLY = ("commit-last", "committed-last", "commit", "committed", "done")
DAY_S = 86_400.0


class Place:
    def __init__(self, path: Path, *, has_log: bool = True) -> None:
        """has_log: without a directory each life is a node in the database."""
        self.path, self.has_log = path, has_log
        for space in SPACES:
            xaqueue.connect(path / space, create=True).close()
        with closing(self.database()) as db:
            for table in TABLES:
                db.execute(table)
        self.acked: set[tuple[str, int]] = set()
        self._first = 0

    def database(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path / "db.sqlite")

    def live(self, end: str, *, dies_after_s: float | None = None, back_s: float = 0.0, seed: int = 1) -> None:
        """A life of the program, with its end as it was to be."""
        self._first += 1000
        given: dict[str, Any] = {
            "place": str(self.path),
            "names": NAMES,
            "first": self._first,
            "end": end,
            "back_s": back_s,
        }
        given |= {"seed": seed, "has_log": self.has_log}
        child = subprocess.Popen([sys.executable, str(CHILD), json.dumps(given)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        if dies_after_s is not None:
            self._hear(child.stdout.readline())
            time.sleep(dies_after_s)
            child.kill()
        for line in child.stdout:
            self._hear(line)
        child.stdout.close()
        is_killed = dies_after_s is not None or not end.isdecimal()
        assert child.wait(PATIENCE_S) == (-signal.SIGKILL if is_killed else 0)

    def _hear(self, line: str) -> None:
        verb, _, number = line.partition(" ")
        if line.endswith("\n"):
            self.acked.add((verb, int(number)))

    @contextmanager
    def manager(self, **names: str) -> Iterator[TransactionManager]:
        parties = participants(self.path, {**NAMES, **names})
        given: list[Any] = [self.path / "tm", parties] if self.has_log else [parties]
        with TransactionManager(*given) as tm:
            yield tm

    def judge(self) -> None:
        """With the right ones, after whatever recovery did by itself."""
        with self.manager() as tm:
            until = time.monotonic() + PATIENCE_S
            while not tm.recover(PATIENCE_S).complete or tm.in_doubt() or tm._coordinator.trouble:
                assert time.monotonic() < until, tm._coordinator.trouble
        with closing(self.database()) as db:
            sent, handled = (set(db.execute(f"select n, space from {table}")) for table in ("sent", "handled"))
        assert handled <= sent
        for space in SPACES:
            with xaqueue.connect(self.path / space) as connection:
                found = [int(message.body) for message in connection.browse("orders")]
                assert connection.tpc_recover() == []
            assert sorted(found) == sorted(n for n, where in sent - handled if where == space)
        assert self.acked <= {("sent", n) for n, _ in sent} | {("handled", n) for n, _ in handled}

    def swap(self, name: str) -> None:
        """What is there for what was set aside."""
        there, aside = self.path / name, self.path / f"{name}.aside"
        there.rename(self.path / "between")
        aside.rename(there)
        (self.path / "between").rename(aside)

    def set_aside(self, name: str) -> None:
        there, aside = self.path / name, self.path / f"{name}.aside"
        (shutil.copytree if there.is_dir() else shutil.copy)(there, aside)

    def waits(self, says: str = "", *, opens: int = 1, **names: str) -> None:
        """Nothing of east is handed out, and recovery says so, however often all is opened."""
        for _ in range(opens):
            with self.manager(**names) as tm:
                until = time.monotonic() + PATIENCE_S
                assert not tm.recover(PATIENCE_S).complete
                while says not in (told := f"{tm._coordinator.trouble} {tm.in_doubt()}"):
                    assert time.monotonic() < until, told
                    tm.recover(PATIENCE_S)
                carrier = "'db'" if self.has_log else "'nodes'"
                with xaqueue.connect(self.path / "east") as connection, pytest.raises(QueueWaiting, match=carrier):
                    connection.dequeue("orders")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def seeds(few: int, many: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("seed", range(many if FULL else few))


@seeds(1, 20)
@pytest.mark.parametrize("has_log", [True, False])
def test_killed_again_and_again(tmp_path: Path, seed: int, has_log: bool) -> None:
    place = Place(tmp_path, has_log=has_log)
    dice = random.Random(seed)
    for step in dice.sample(DEADLY, 5 if FULL else 2):
        place.live(f"{step}:{dice.randint(2, 9)}", seed=seed)
    if FULL:
        for _ in range(5):
            place.live("never:1", dies_after_s=dice.uniform(0.0, 0.5), seed=seed)
    place.judge()
    assert place.acked


@seeds(1, 10)
@pytest.mark.parametrize("has_log", [True, False])
@pytest.mark.parametrize("which", ["east", "db.sqlite"])
def test_an_old_copy(tmp_path: Path, which: str, has_log: bool, seed: int) -> None:
    """From before rows were removed; and it is opened more often than the right one was since."""
    place = Place(tmp_path, has_log=has_log)
    place.live("committed-last:4", seed=seed)
    place.set_aside(which)
    place.live("6", seed=seed + 100)
    place.live("committed-last:5", seed=seed + 200)
    place.swap(which)
    place.waits("old copy", opens=4)
    place.swap(which)
    place.judge()


@seeds(1, 10)
def test_other_names_and_a_dropped_table(place: Place, seed: int) -> None:
    place.live("committed-last:6", seed=seed)
    place.waits(db="another")
    with place.manager(east="another") as tm:  # it is known by its id
        assert tm.recover(PATIENCE_S).complete
    place.live("committed-last:3", seed=seed + 100)
    place.set_aside("db.sqlite")
    with closing(place.database()) as db:
        db.execute(f"drop table {last_resource.TABLE}")
        db.commit()
    place.waits("open the right one")
    place.swap("db.sqlite")
    place.judge()


@seeds(1, 10)
def test_a_clock_that_goes_back(place: Place, seed: int) -> None:
    place.live("committed-last:4", seed=seed)
    place.live("committed-last:4", back_s=DAY_S * (1 + 400 * (seed % 2)), seed=seed + 100)
    if FULL:
        place.live("commit:3", seed=seed + 200)
    place.judge()


def command(*words: object) -> str:
    ran = subprocess.run([sys.executable, "-m", "xaqueue", *map(str, words)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


def test_a_restored_space_is_waited_for_until_somebody_ends_that(place: Place) -> None:
    place.live("6")
    command("snapshot", "take", "--space", place.path / "east")
    place.live("committed-last:5")
    said = command("restore", "--yes", "--space", place.path / "east")
    (old,) = re.findall("has carried changes of space ([^,]*),", said)
    assert f"`xaqueue tm release DIR {old}`" in said
    with place.manager() as tm:
        until = time.monotonic() + PATIENCE_S
        while f"`xaqueue tm release DIR {old}` ends the wait" not in tm._coordinator.trouble.get("east", ""):
            assert time.monotonic() < until, tm._coordinator.trouble
            tm.recover(PATIENCE_S)
        with xaqueue.connect(place.path / "west") as west:
            present = west.carriers().space
        with pytest.raises(ProtocolError, match="'west' has space"):
            tm.release(present)
    tables = "".join(f"[participants.{name}]\nkind = 'xaqueue'\nspace = '{place.path / name}'\n" for name in SPACES)
    tables += f"[participants.db]\nkind = 'sqlite'\npath = '{place.path / 'db.sqlite'}'\n"
    (place.path / "tm" / "participants.toml").write_text(tables)
    assert f"of space {old}: not waited for" in command("tm", "release", place.path / "tm", old, "--yes")
    with place.manager() as tm:
        tm.recover(PATIENCE_S)
        assert "tm release" not in str(tm._coordinator.trouble)
        assert tm.in_doubt() == []
