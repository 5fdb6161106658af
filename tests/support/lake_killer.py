"""Who has processes die over a lake."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from support import SUPPORT
from support.lake_scene import Lake


class Killer:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def kill(self, lake: Lake, moment: str) -> int:
        """Returns the signal that it died of, or 0 where it came to its end."""
        words = [lake.kind, lake.url, str(lake.place), lake.way, moment]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(words), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


@contextmanager
def killing() -> Iterator[Killer]:
    child = str(SUPPORT / "lake_child.py")
    with subprocess.Popen([sys.executable, child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        yield Killer(process)
        process.stdin.close()
