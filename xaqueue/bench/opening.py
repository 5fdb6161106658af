"""Opening a deep queue costs a known time and a known memory: a process that has done nothing else opens one.

The space is laid out without the engine, a file a message as its owner would have left it after a clean close, and is
opened by a child process, whose peak memory is then that of opening and of nothing before. The page cache is as the
layout left it. The directory is removed afterwards, also after Ctrl-C.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xaqueue.bench import environment
from xaqueue.command import Block, Kind, encode
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.message import MessageId, Properties
from xaqueue.space import layout
from xaqueue.space.attach import attach, create

QUEUE = "bench"
BODY_BYTES = 100
FILE_BYTES = 4096
"""What the smallest file takes on most file systems."""
SAY_EVERY_S = 2.0

Report = Callable[[str], None]
Said = dict[str, Any]


def run(messages: int, directory: Path | None, report: Report) -> dict[str, Any]:
    """Lays out ``messages`` messages of 100 bytes, opens them, and returns seconds, rate and peak bytes.

    directory: where; None is the directory for temporary files. Raises InvalidArgument where it has no room, OSError.
    """
    place = directory or Path(tempfile.gettempdir())
    found = environment.look(place)
    for line in found.lines():
        report(line)
    _check_room(messages, place)
    with tempfile.TemporaryDirectory(prefix="xaqueue-bench-", dir=place) as scratch:
        space = Path(scratch) / "space"
        began = time.perf_counter()
        lay_out(space, messages, report)
        laid_out_s = time.perf_counter() - began
        opened = _open_in_child(space, report)
        report("removing the space")
    opened["messages_per_s"] = opened["messages"] / opened["seconds"]
    report(
        f"{opened['messages']:,} messages open in {opened['seconds']:.1f} s ({opened['messages_per_s']:,.0f}/s), "
        f"peak memory {opened['peak_bytes'] / 1e6:,.0f} MB, {opened['bytes_per_message']:,.0f} bytes a message"
    )
    return {"environment": found.as_dict(), "body_bytes": BODY_BYTES, "laid_out_s": laid_out_s, **opened}


def lay_out(space: Path, messages: int, report: Report) -> None:
    """A space whose one queue holds this many messages."""
    create(space, name=QUEUE, sync="NONE", any_queue=True)
    now_us = time.time_ns() // 1000
    body = os.urandom(BODY_BYTES)
    (space / layout.queue_path(QUEUE)).mkdir()
    say = _Sparing(report)
    for seq in range(1, messages + 1):
        if seq == 1 or seq % layout.RANGE_SIZE == 0:
            (space / layout.range_path(QUEUE, seq)).mkdir()
            say(f"laid out {seq:,} of {messages:,} messages")
        message_id = MessageId(os.urandom(16))
        block = Block(Kind.ENQUEUE, message_id, Properties(QUEUE, enqueued_at=now_us + seq), body, epoch=1)
        _write(f"{space}/{layout.message_path(QUEUE, seq, message_id)}", b"".join(encode(block)))
    watermark = layout.format_watermark(layout.Watermark(messages, messages))
    _write(f"{space}/{layout.watermark_path(QUEUE)}", watermark)


def measure_here(space: Path, say: Callable[[Said], None]) -> None:
    """What the child does: opens the space and says how far it is, and at the end how long it took."""
    before = peak_bytes()
    sparing = _Sparing(say)
    began = time.perf_counter()
    session = attach(space, watch=False, progress=lambda done, total: sparing({"done": done, "total": total}))
    seconds = time.perf_counter() - began
    messages = session.space.report.messages
    peak = peak_bytes()
    session.close()
    per_message = (peak - before) / messages if messages else 0.0
    say({"messages": messages, "seconds": seconds, "peak_bytes": peak, "bytes_per_message": per_message})


def peak_bytes() -> int:
    """The most memory that this program has held.

    ``ru_maxrss`` also counts what the parent held before the child became this program, so procfs comes first.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # no procfs
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


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


def _open_in_child(space: Path, report: Report) -> Said:
    command = [sys.executable, "-m", "xaqueue.bench.opening", os.fspath(space)]
    last: Said = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                last = json.loads(line)
                if "done" in last:
                    report(f"opened {last['done']:,} of {last['total']:,} messages")
        except BaseException:
            child.kill()
            raise
    if child.returncode or "seconds" not in last:
        raise OperationalError(f"the process that opened {space} ended with {child.returncode}")
    return last


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


if __name__ == "__main__":
    measure_here(Path(sys.argv[1]), _say_line)
