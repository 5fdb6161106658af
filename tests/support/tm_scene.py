"""Two participants in memory, a log, and one transaction manager after the other."""

from __future__ import annotations

import contextlib

from support.forgetful import Crashed, Tree
from support.tm_world import Bank, Rig, World
from xaqueue.tm.coordinator import TraceStep as Step


class Scene:
    """Participants a and b, a log, and one transaction manager after the other."""

    def __init__(self, *, tells: bool = False) -> None:
        self.world = World()
        self.a, self.b = (Bank(self.world, name, tells) for name in "ab")
        self.fs = Tree({}).open()

    def boot(self, *names: str) -> Rig:
        """The next transaction manager, of these participants or of all."""
        banks = {name: self.world.banks[name].connect for name in names or self.world.banks}
        return Rig(self.fs, banks, on_step=lambda *_: self.world.point())

    def reboot(self, *names: str) -> Rig:
        """The last one is gone without a word."""
        self.world.revive()
        return self.boot(*names)

    def die_at(self, wanted: Step, participant: str = "") -> bytes:
        """A transaction over a and b, whose transaction manager dies at this step; returns its name."""
        found: list[bytes] = []

        def on_step(step: Step, gtrid: bytes, name: str) -> None:
            if (step, name) == (wanted, participant):
                found.append(gtrid)
                self.world.alive = False
                raise Crashed(step)

        rig = Rig(self.fs, {name: bank.connect for name, bank in self.world.banks.items()}, on_step=on_step)
        with contextlib.suppress(Crashed):
            rig.transact("a", "b")
        return found[0]

    @property
    def first(self) -> bytes:
        """The name of the first transaction that a took part in."""
        return next(iter(self.a.branches))[1].encode()
