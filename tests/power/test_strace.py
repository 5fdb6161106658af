"""What the kernel was asked to do, in which order: no verb returns before what it promises is synced.

The trace of a real process, not of the file port: a sync that the port forgot to pass on would show here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

import xaqueue
from support import SUPPORT
from support.strace_child import MARK
from xaqueue.core.model import layout
from xaqueue.core.storage import directory_fs as file_systems

CHILD = SUPPORT / "strace_child.py"
TRACED = "fsync,fdatasync,sync_file_range,rename,renameat,renameat2,unlink,unlinkat"
WRITES = "write,writev,pwrite64,pwritev,pwritev2"
MAKES = "link,linkat,openat,creat"
LOOKS = "stat,newfstatat,statx,faccessat,faccessat2,access"
DIRECTORY_SYNC_DELAY_US = 4000
LINE = re.compile(r"(?P<thread>\d+) +(?P<rest>.*)")
CALL = re.compile(r"(?P<name>\w+)\((?P<arguments>.*?)(?:\) += (?P<result>-?\d+).*| <unfinished \.\.\.>)$")
RESUMED = re.compile(r"<\.\.\. (?P<name>\w+) resumed>(?P<arguments>.*)\) += (?P<result>-?\d+).*")
QUOTED = re.compile(r'"([^"]*)"')
DESCRIPTOR = re.compile(r"\d+<([^>]*)>")


@dataclass
class Called:
    """One system call, from the line where it began to the line where it returned."""

    thread: str
    name: str
    arguments: str
    begun: int
    ended: int
    result: str = ""

    @property
    def paths(self) -> list[str]:
        return QUOTED.findall(self.arguments)

    @property
    def file(self) -> str:
        """The file behind its descriptor."""
        found = DESCRIPTOR.match(self.arguments)
        return found[1] if found else ""


@dataclass
class Verb:
    """A prepare or commit: what its thread did between the two marks."""

    name: str
    begun: int
    ended: int
    own: list[Called]


def parse(trace: str) -> list[Called]:
    calls: list[Called] = []
    unfinished: dict[str, Called] = {}
    for number, line in enumerate(trace.splitlines()):
        split = LINE.match(line)
        if split is None:
            continue
        thread, rest = split["thread"], split["rest"]
        if resumed := RESUMED.match(rest):
            call = unfinished.pop(thread)
            call.ended, call.result = number, resumed["result"]
        elif found := CALL.match(rest):
            call = Called(thread, found["name"], found["arguments"], number, number, found["result"] or "")
            calls.append(call)
            if found["result"] is None:
                unfinished[thread] = call
    return calls


def verbs_of(calls: list[Called]) -> list[Verb]:
    verbs: list[Verb] = []
    open_verbs: dict[str, int] = {}
    for call in calls:
        mark = next((path for path in call.paths if path.startswith(MARK)), None)
        if mark is None:
            continue
        edge, name = mark.removeprefix(f"{MARK}/").split("/", 1)
        if edge == "begin":
            open_verbs[name] = call.ended
        else:
            begun = open_verbs.pop(name)
            own = [c for c in calls if c.thread == call.thread and begun < c.begun and c.ended < call.begun]
            verbs.append(Verb(name, begun, call.begun, own))
    return verbs


class Trace:
    """A parsed trace and the questions that the tests ask of it."""

    def __init__(self, calls: list[Called], space: str) -> None:
        self.calls = calls
        self.space = space
        self.syncs = [call for call in calls if call.name in ("fsync", "fdatasync")]

    def inside(self, path: str) -> str:
        return path.removeprefix(self.space + "/")

    def moves(self, verb: Verb) -> list[tuple[str, str, Called]]:
        """Renames and removals, as paths in the space."""
        found = []
        for call in verb.own:
            if call.name.startswith("rename"):
                found.append((self.inside(call.paths[0]), self.inside(call.paths[1]), call))
            elif call.name.startswith("unlink"):
                found.append((self.inside(call.paths[0]), "", call))
        return found

    def is_synced(self, path: str, after: int, before: int) -> bool:
        """Whether a sync of the file or directory lies wholly between two lines of the trace."""
        return any(self.inside(s.file) == path and after < s.begun and s.ended < before for s in self.syncs)

    def written_last(self, path: str, before: int) -> int:
        writes = ("write", "writev", "pwrite64")
        return max(c.ended for c in self.calls if c.name in writes and self.inside(c.file) == path and c.ended < before)


def run_traced(tmp_path: Path, sync: str, *, threads: int = 1, rounds: int = 0, inject: str = "") -> Trace:
    """The child's trace. Skips where strace is missing or not permitted."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    if subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode:
        pytest.skip("strace is not permitted to trace here")
    space, output = tmp_path / "space", tmp_path / "trace"
    xaqueue.connect(space, create=True).close()
    options = [
        "-f",
        "-y",
        "-e",
        f"trace={TRACED},{WRITES},?{MAKES.replace(',', ',?')},?{LOOKS.replace(',', ',?')}",
        "-s",
        "16",
        "-o",
        str(output),
    ]
    options += ["-e", f"inject={inject}"] if inject else []
    child = [sys.executable, str(CHILD), str(space), sync, str(threads), str(rounds)]
    ran = subprocess.run(["strace", *options, *child], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return Trace(parse(output.read_text("utf-8", "replace")), str(space))


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]


def check_verb(trace: Trace, verb: Verb) -> None:
    """Content before name; target and source of every move synced before the verb returns."""
    for source, target, move in trace.moves(verb):
        if target:
            if source.startswith("active/"):
                written = trace.written_last(source, move.begun)
                assert trace.is_synced(source, written, move.begun), f"{verb.name}: {source} was moved unsynced"
            for directory in {parent_of(source), parent_of(target)}:
                assert trace.is_synced(directory, move.ended, verb.ended), f"{verb.name}: {directory} is not synced"
        elif source.startswith("committed/"):
            assert trace.is_synced(parent_of(source), move.ended, verb.ended), f"{verb.name}: {source} may come back"


def check_order(trace: Trace, verb: Verb) -> None:
    """The commit point is on disk before anything moves, and a dequeue's block goes only after its message did."""
    moves = trace.moves(verb)
    for (_, target, decided), (_, _, following) in pairwise(moves):
        if target.endswith(".commit"):
            assert trace.is_synced("prepared", decided.ended, following.begun), f"{verb.name}: moved before decided"
    consumed = [(source, move) for source, target, move in moves if not target and source.startswith("committed/")]
    for source, target, move in moves:
        if not target and source.startswith("prepared/"):
            for message, removal in consumed:
                assert trace.is_synced(parent_of(message), removal.ended, move.begun), (
                    f"{verb.name}: {source} too early"
                )


@pytest.mark.parametrize(("sync", "content"), [("FSYNC;DSYNC", "fsync"), ("FDATASYNC;DSYNC", "fdatasync")])
def test_no_verb_returns_before_its_file_and_both_directories_are_synced(
    tmp_path: Path, sync: str, content: str
) -> None:
    trace = run_traced(tmp_path, sync)
    verbs = verbs_of(trace.calls)
    assert Counter(verb.name.split("/")[0] for verb in verbs) == {"prepare": 8, "commit": 8, "one-phase": 8}
    for verb in verbs:
        assert trace.moves(verb), f"{verb.name} moved nothing: the trace was not understood"
        check_verb(trace, verb)
        check_order(trace, verb)
    on_blocks = {call.name for call in trace.syncs if trace.inside(call.file).startswith("active/")}
    assert on_blocks == {content}


def test_with_a_journal_a_verb_returns_behind_one_write_that_syncs(tmp_path: Path) -> None:
    trace = run_traced(tmp_path, "JOURNAL")
    verbs = verbs_of(trace.calls)
    assert len(verbs) == 24
    hardens = (*WRITES.split(","), "fdatasync")
    in_one = file_systems.has_dsync(str(tmp_path))
    for verb in verbs:
        own = [call for call in verb.own if call.name in hardens and trace.inside(call.file).startswith("journal/")]
        expected = ["pwritev2"] if in_one else ["pwritev2", "fdatasync"]
        assert [call.name for call in own] == expected, verb.name
        assert ("RWF_DSYNC" in own[0].arguments) == (len(own) == 1)


@pytest.mark.parametrize("sync", ["JOURNAL", "NONE", "FDATASYNC;DSYNC"])
def test_a_message_appears_by_one_rename_of_a_whole_file(tmp_path: Path, sync: str) -> None:
    """At every level: who lists committed/ from outside, at any moment or after a kill, may trust each name there."""
    trace = run_traced(tmp_path, sync)
    appeared: Counter[str] = Counter()
    for call in trace.calls:
        touched = [trace.inside(path) for path in (*call.paths, call.file)]
        final = [path for path in touched if layout.parse_message_path(path) is not None]
        if call.name.startswith(("rename", "link")) and call.result == "0":
            appeared.update(path for path in final if path == touched[1])
        elif call.name in ("openat", "creat") and "O_CREAT" in call.arguments:
            assert final == [], "made in place"
        elif "write" in call.name:
            assert final == [], "written under its final name"
    left = [str(file.relative_to(trace.space)) for file in Path(trace.space).glob("committed/*/range=*/*")]
    assert len(left) == 16
    assert appeared.keys() >= set(left)
    assert set(appeared.values()) == {1}


def test_a_new_queue_is_synced_into_its_parents_with_its_first_message(tmp_path: Path) -> None:
    trace = run_traced(tmp_path, "FSYNC;DSYNC")
    first = next(verb for verb in verbs_of(trace.calls) if verb.name == "commit/two_phase-add-first")
    arrived = next(move for _, target, move in trace.moves(first) if target.startswith("committed/queue=even/"))
    for path in ("committed", "committed/queue=even", "committed/queue=even/.watermark"):
        assert trace.is_synced(path, first.begun, first.ended), path
    assert trace.is_synced("committed/queue=even/range=0000000000000", arrived.ended, first.ended)


def test_many_messages_come_by_a_rename_and_go_by_a_bit(tmp_path: Path) -> None:
    """The bits are on disk before the file of the branch goes, and the block before its bitmap."""
    trace = run_traced(tmp_path, "FSYNC;DSYNC", threads=0)
    verbs = {verb.name: verb for verb in verbs_of(trace.calls)}
    source, block, arrived = trace.moves(verbs["put"])[0]
    ranges = block.rpartition("/")[0]
    assert "+014." in block
    assert trace.is_synced(source, verbs["put"].begun, arrived.begun), "content before name"
    assert trace.is_synced(ranges, arrived.ended, verbs["put"].ended)
    for name in ("first", "again"):
        verb, ((of_branch, _, gone),) = verbs[name], trace.moves(verbs[name])
        (written,) = (call for call in verb.own if "write" in call.name and "/.gone/" in call.file)
        bitmap = trace.inside(written.file)
        assert of_branch.startswith("active/")
        assert trace.is_synced(bitmap, written.ended, gone.begun)
        names = [trace.inside(call.file) for call in verb.own if call in trace.syncs]
        parents = [layout.queue_path("many"), bitmap.rpartition("/")[0]] if name == "first" else []
        assert sorted(names) == sorted([bitmap, *parents]), name
    first, second, third = trace.moves(verbs["rest"])
    assert (first[0], second[0]) == (block, bitmap)
    assert trace.is_synced(ranges, first[2].ended, second[2].begun)
    assert third[0].startswith("active/")


def test_eight_threads_share_their_directory_syncs(tmp_path: Path) -> None:
    """Slowed directory syncs, as on a real disk, make the grouping certain. Alone, a transaction needs four of them."""
    threads, rounds = 8, 6
    inject = f"fsync:delay_enter={DIRECTORY_SYNC_DELAY_US}"
    trace = run_traced(tmp_path, "FDATASYNC;DSYNC", threads=threads, rounds=rounds, inject=inject)
    verbs = verbs_of(trace.calls)
    for verb in verbs:
        if verb.name != "crowd":
            check_verb(trace, verb)
    crowd = next(verb for verb in verbs if verb.name == "crowd")
    within = Counter(
        trace.inside(s.file) for s in trace.syncs if s.name == "fsync" and crowd.begun < s.begun < crowd.ended
    )
    transactions = threads * rounds
    assert len(verbs) == 2 * transactions + 1
    assert within["prepared"] < 0.8 * transactions, within
    assert within["active"] < 0.8 * transactions, within
    assert within.total() < 2 * transactions, within
