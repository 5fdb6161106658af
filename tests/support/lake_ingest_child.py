"""Ingests that are killed, each a fork of this process, which has loaded what they need: a line of JSON asks for one.

    {"job": {...}, "step": 3}        killed by itself behind its third step
    {"job": {...}, "after_s": 0.05}  killed from outside
    {"job": {...}, "call": 4}        killed at a thread's fourth call of the system that changes something
    {"job": {...}}                   not killed

A line of JSON answers: ``status`` of waitpid, and ``seconds``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deltalake  # noqa: F401
import pyiceberg.catalog.sql
import pyiceberg.io.pyarrow  # noqa: F401

from xaqueue.errors import Error
from xaqueue.lake import catalog, ingest  # noqa: F401

CALLS = "rename,renameat,renameat2,link,linkat,unlink,mkdir,write,pwrite64,ftruncate,fsync,fdatasync,syncfs,sendto"

TRACED_S = 60.0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def child(asked: Mapping[str, Any]) -> None:
    left = asked.get("step", 0)

    def step(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            die()

    deadline = time.monotonic() + TRACED_S
    while "call" in asked and "TracerPid:\t0\n" in Path("/proc/self/status").read_text():
        assert time.monotonic() < deadline, "nobody traces it"
        time.sleep(0.001)
    try:
        ingest.run(ingest.TableJob(**asked["job"]), step=step)
    except Error as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            child(asked)
        tracer = None
        if "call" in asked:
            inject = f"inject={CALLS}:signal=SIGKILL:when={asked['call']}"
            words = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={CALLS}", "-e", inject, "-p", str(pid)]
            tracer = subprocess.Popen(words)
        if "after_s" in asked:
            time.sleep(asked["after_s"])
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if tracer is not None:
            tracer.terminate()
            tracer.wait()
        sys.stdout.write(json.dumps({"status": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - began}))
        sys.stdout.write("\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
