"""A served space, a replica of it in another directory, and the same the other way round behind each failover."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from support.pair import FENCED, Program, free_ports
from support.served import PATIENCE_S, RUN

NOT_OPENED = 3
"""The exit code of one that is told so while it waits for its replica."""


class ReplicatedPair:
    """The first directory has the space, the second follows."""

    def __init__(
        self, roots: Sequence[Path], places: Sequence[str] = (), within: Sequence[Sequence[str]] = ((), ())
    ) -> None:
        self._roots, self._within = list(roots), list(within)
        self._places = list(places) or [f"127.0.0.1:{port}" for port in free_ports(2)]
        self.url = f"xaq://{','.join(self._places)}?timeout_s=2"
        self.at = 0
        """Which of them has the space."""
        self.owner = self._serve(0)
        self.replica = self._follow(1)
        self.owner.wait_for("serving")

    @property
    def root(self) -> Path:
        return self._roots[self.at]

    def _serve(self, side: int) -> Program:
        options = ("--tcp", self._places[side], "--insecure")
        return Program("serve", "--space", str(self._roots[side]), *options, within=self._within[side])

    def _follow(self, side: int) -> Program:
        source = f"xaq://{self._places[1 - side]}"
        made = Program("replica", str(self._roots[side]), "--from", source, within=self._within[side])
        made.wait_for("follows")
        return made

    def fail_over(self, number: int, rejoin: Callable[[], object] | None = None) -> None:
        """The owner gets this signal, the replica takes its place, and the former owner's directory follows.

        rejoin: where it was cut off instead, ends that.
        """
        former, side = self.owner, 1 - self.at
        if rejoin is None:
            former.signal(number)
        command = [*self._within[side], *RUN, "promote", str(self._roots[side]), "--yes"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        assert "as long as it waited for this replica" in done.stdout
        assert self.replica.code() == 0, self.replica.said
        self.replica.close()
        self.owner, self.at = self._serve(side), side
        if rejoin is not None or number == signal.SIGSTOP:
            rejoin() if rejoin is not None else former.signal(signal.SIGCONT)
            wanted = FENCED
        else:
            former.close()
            former, wanted = self._serve(1 - side), NOT_OPENED
        assert former.code() == wanted, former.said
        assert "its replica was promoted" in former.said
        former.close()
        self.replica = self._follow(1 - side)
        self.owner.wait_for("serving")

    def kill_replica(self) -> None:
        self.replica.signal(signal.SIGKILL)
        self.replica.close()
        self.replica = self._follow(1 - self.at)

    def close(self) -> None:
        for program in (self.owner, self.replica):
            program.close()
