"""Opening a deep queue costs a known time and a known memory, and a message costs the same however deep the queue is.

A space is laid out without the engine, a file a message as its owner would have left it, at several depths. Child
processes open it: the first one ends as if it was killed behind a checkpoint, so that the next one opens after a kill,
and then one after a clean close. Their memory is that of opening and of nothing before; the page cache is as the layout
left it. A last one puts and takes, and what it takes was read before. The directory is removed afterwards, also after
Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench import depth, page_cache
from bench.rates import aligned
from xaqueue.core.model import layout
from xaqueue.core.model.block import Block, Kind, encode
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.features.opening import create
from xaqueue.features.session import Session, attach
from xaqueue.message import MessageId, Properties
from xaqueue.tools import environment

CHILD = "child"
QUEUE = "bench"
SHALLOW = "shallow"
DEPTHS = (10_000, 100_000)
"""Beside the one that is asked for."""
FLAGS = ("NONE", "JOURNAL")
"""Where a message's cost is processor time, and the default."""
OPENINGS = {"first": "for the first time", "after_kill": "after a kill", "clean": "after a clean close"}
BODY_BYTES = 200
FILE_BYTES = 4096
"""What the smallest file takes on most file systems."""
SAY_EVERY_S = 2.0
HEADINGS = (
    *("messages", "first open s", "after kill s", "clean s", "RSS MB", "peak MB", "bytes/message"),
    *(f"{flags} {operation} us" for flags in FLAGS for operation in depth.OPERATIONS),
)

Report = Callable[[str], None]
Said = dict[str, Any]


def run(messages: int, directory: Path | None, report: Report) -> dict[str, Any]:
    """Lays out and opens ``messages`` messages of 200 bytes, and fewer, and puts and takes some: seconds and bytes.

    directory: where; None is the directory for temporary files. Raises InvalidArgument where it has no room, OSError.
    """
    place = directory or Path(tempfile.gettempdir())
    found = environment.look(place)
    for line in found.lines():
        report(line)
    _check_room(messages, place)
    rows = [_at_depth(count, place, report) for count in (*(n for n in DEPTHS if n < messages), messages)]
    for line in aligned(HEADINGS, [_cells(row) for row in rows]):
        report(line)
    report(f"in parentheses: times what it costs in a queue of {rows[-1]['shallow']:,} messages of the same space")
    last = rows[-1]
    return {
        "environment": found.as_dict(),
        "body_bytes": BODY_BYTES,
        "messages": messages,
        "seconds": last["after_kill"]["seconds"],
        "peak_bytes": last["after_kill"]["peak_bytes"],
        "depths": rows,
    }


def _at_depth(messages: int, place: Path, report: Report) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="xaqueue-bench-", dir=place) as scratch:
        space = Path(scratch) / "space"
        began = time.perf_counter()
        transactions = min(depth.TRANSACTIONS, max(1, messages // 50))
        shallow = transactions * (depth.ROUNDS + 1) * len(FLAGS)
        lay_out(space, messages, report, shallow)
        laid_out_s = time.perf_counter() - began
        opened = {name: _open_in_child(space, name, messages, report) for name in OPENINGS}
        for queue in (QUEUE, SHALLOW):
            page_cache.fill(space, queue, shallow)  # or how long ago a file was written would be measured
        speeds = [row for flags in FLAGS for row in _child(space, report, flags, str(transactions))["speeds"]]
        report("removing the space")
    return {"messages": messages, "shallow": shallow, "laid_out_s": laid_out_s, **opened, "speeds": speeds}


def lay_out(space: Path, messages: int, report: Report, shallow: int = 0) -> None:
    """A space whose one queue holds this many messages. ``shallow``: those of another one, whose files come first."""
    create(space, name=QUEUE, sync="JOURNAL", any_queue=True)
    if shallow:
        _fill(space, SHALLOW, shallow, report)
    _fill(space, QUEUE, messages, report)


def _fill(space: Path, queue: str, messages: int, report: Report) -> None:
    now_us = time.time_ns() // 1000
    body = os.urandom(BODY_BYTES)
    (space / layout.queue_path(queue)).mkdir()
    say = _Sparing(report)
    for seq in range(1, messages + 1):
        if seq == 1 or seq % layout.RANGE_SIZE == 0:
            (space / layout.range_path(queue, seq)).mkdir()
            say(f"laid out {seq:,} of {messages:,} messages")
        message_id = MessageId(os.urandom(16))
        block = Block(Kind.ENQUEUE, message_id, Properties(queue, enqueued_at=now_us + seq), body, epoch=1)
        _write(f"{space}/{layout.message_path(queue, seq, message_id)}", b"".join(encode(block)))
    watermark = layout.format_watermark(layout.Watermark(messages, messages))
    _write(f"{space}/{layout.watermark_path(queue)}", watermark)


def measure_here(space: Path, say: Callable[[Said], None], end: Callable[[Session], object] = Session.close) -> None:
    """What a child does: opens the space and says how far it is, and at the end what it cost, and the closing."""
    before = resident_bytes()
    sparing = _Sparing(say)
    began, cpu = time.perf_counter(), time.process_time()

    def progress(done: int, total: int) -> None:
        left_s = (time.perf_counter() - began) * (total - done) / done if done else 0.0
        sparing({"done": done, "total": total, "left_s": left_s})

    session = attach(space, watch=False, progress=progress)
    opened, cpu = time.perf_counter(), time.process_time() - cpu
    messages, resident, peak = session.space.report.messages, resident_bytes(), peak_bytes()
    closing = time.perf_counter()
    end(session)
    closed = time.perf_counter()
    say(
        {
            "messages": messages,
            "seconds": opened - began,
            "cpu_seconds": cpu,
            "close_seconds": closed - closing,
            "resident_bytes": resident,
            "peak_bytes": peak,
            "peak_bytes_closed": peak_bytes(),
            "bytes_per_message": (resident - before) / messages if messages else 0.0,
        }
    )


def resident_bytes() -> int:
    """The memory that this program holds now; 0 without procfs."""
    return _status_bytes("VmRSS:") or 0


def peak_bytes() -> int:
    """The most memory that this program has held.

    ``ru_maxrss`` also counts what the parent held before the child became this program, so procfs comes first.
    """
    return _status_bytes("VmHWM:") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status_bytes(name: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None  # no procfs
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)


class _Sparing:
    """Passes on what is said, at most every two seconds."""

    def __init__(self, report: Callable[[Any], None]) -> None:
        self._report = report
        self._next = time.monotonic() + SAY_EVERY_S

    def __call__(self, said: Any) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + SAY_EVERY_S
            self._report(said)


def _open_in_child(space: Path, name: str, messages: int, report: Report) -> Said:
    opened = _child(space, report, *(["killed"] if name == "first" else []))
    per_s = opened["messages_per_s"] = opened["messages"] / opened["seconds"]
    report(
        f"{messages:,} messages open in {opened['seconds']:.1f} s {OPENINGS[name]} ({per_s:,.0f}/s), "
        f"{opened['cpu_seconds']:.1f} s of them processor time, "
        f"peak memory {opened['peak_bytes'] / 1e6:,.0f} MB, {opened['bytes_per_message']:,.0f} bytes a message; "
        f"{'a checkpoint takes' if name == 'first' else 'they close in'} {opened['close_seconds']:.1f} s"
    )
    return opened


def _child(space: Path, report: Report, *words: str) -> Said:
    """The last that a child says. Words: what it measures, if not the opening."""
    command = [sys.executable, "-m", "bench.opening", CHILD, os.fspath(space), *words]
    last: Said = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                last = json.loads(line)
                if "done" in last:
                    report(f"opened {last['done']:,} of {last['total']:,} messages, {last['left_s']:.0f} s to go")
        except BaseException:
            child.kill()
            raise
    if child.returncode or "done" in last or not last:
        raise OperationalError(f"the process that opened {space} ended with {child.returncode}")
    return last


def _cells(row: dict[str, Any]) -> list[str]:
    opened = [row[name] for name in OPENINGS]
    return [
        *(f"{row['messages']:,}", *(f"{one['seconds']:.2f}" for one in opened)),
        f"{max(one['resident_bytes'] for one in opened) / 1e6:,.0f}",
        f"{max(one['peak_bytes_closed'] for one in opened) / 1e6:,.0f}",
        f"{max(one['bytes_per_message'] for one in opened):,.0f}",
        *(f"{speed['deep_us']:,.0f} ({speed['ratio']:.2f})" for speed in row["speeds"]),
    ]


def _check_room(messages: int, place: Path) -> None:
    state = os.statvfs(place)
    free_bytes, wanted_bytes = state.f_bavail * state.f_frsize, messages * FILE_BYTES
    counts_inodes = state.f_files > 0  # btrfs makes them as they are needed
    if free_bytes < wanted_bytes or (counts_inodes and state.f_favail < messages):
        raise InvalidArgument(
            f"{place} has no room for {messages:,} files: {wanted_bytes / 1e6:,.0f} MB and as many inodes are wanted, "
            f"{free_bytes / 1e6:,.0f} MB and {state.f_favail:,} inodes are free"
        )


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _say_line(said: Said) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def _child_main(space: Path, *words: str) -> None:
    if words == ("killed",):
        measure_here(space, _say_line, lambda session: session.space.checkpoint())
        os._exit(0)
    elif words:
        flags, transactions = words
        _say_line({"speeds": depth.measure(space, flags, QUEUE, SHALLOW, int(transactions))})
    else:
        measure_here(space, _say_line)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.opening", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    measured = run(given.messages, given.directory, partial(print, flush=True, file=sys.stdout))
    if given.json is not None:
        given.json.write_text(json.dumps(measured, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        _child_main(Path(sys.argv[2]), *sys.argv[3:])
    else:
        main()
