"""A second message of a key comes to nothing, from the commit of the first until its window is over."""

from __future__ import annotations

from typing import Any, ClassVar

from sim import doors
from sim.model import CAME_BACK, CARRIED, IN_DOUBT, Branch, Known, Model, Rules
from sim.opened import id_of, number_of
from sim.world import SECOND_US, World
from xaqueue.errors import QueueFull
from xaqueue.xid import Xid

WINDOW_S = 20
PROBE = Xid(2, b"probe", b"")


class Dedup(Rules):
    toml = (("queues.work", f"dedup_window_s = {WINDOW_S}"),)
    is_prompt = True
    weights: ClassVar = {"clear": 1}

    def __init__(self) -> None:
        self.seen: dict[str, tuple[int, int]] = {}
        """Of each key the number of its message, and until when it is known."""
        self.cleared_us = 0
        """The latest end of those whose records may be removed: with the power that removal may be lost."""

    def options(self, world: World) -> dict[str, Any]:
        return {"dedup_key": world.dice.choice((None, "k", "k", "l"))}

    def floor_us(self, model: Model) -> int:
        """Else a key is known again, since its window is not over by a clock that was set back."""
        return self.cleared_us

    def first(self, model: Model, key: str | None) -> int | None:
        number, until_us = self.seen.get(key or "", (0, 0))
        return number if until_us > model.now_us else None

    def leaves_out(self, model: Model, branch: Branch, one: Known) -> int | None:
        key = key_of(one)
        own = next((other.number for other in branch.adds if key is not None and key_of(other) == key), None)
        return self.first(model, key) or own

    def votes(self, model: Model, branch: Branch) -> bool:
        """Who has a key that another one has prepared comes again later."""
        others = (other for other in model.branches.values() if other.state in (IN_DOUBT, CARRIED, CAME_BACK))
        claimed = {key_of(one) for other in others for one in other.adds} - {None}
        if any(key_of(one) in claimed and self.first(model, key_of(one)) is None for one in branch.adds):
            return False
        branch.adds = [one for one in branch.adds if self.first(model, key_of(one)) is None]
        return True

    def committed(self, model: Model, branch: Branch) -> None:
        until_us = model.now_us + WINDOW_S * SECOND_US
        self.seen |= {key: (one.number, until_us) for one in branch.adds if (key := key_of(one)) is not None}

    def shows(self, world: World) -> bool:
        """Where the space was opened just now."""
        return not world.is_new or all(self.first(world.model, key) == probed(world, key) for key in ("k", "l"))

    def clear(self, world: World) -> None:
        mine = world.model.of(Dedup)
        ends = (end for _, end in mine.seen.values() if end <= world.model.now_us)
        mine.cleared_us = max([mine.cleared_us, *ends])  # also of a removal that fails, of which nobody can tell
        world.attempt(lambda: doors.forget_keys(world.space), lambda model: model.of(Dedup).let_go(model))
        if not world.level.hardening.journal:
            assert doors.count_keys(world.fs) <= len(world.model.of(Dedup).seen), "what is over leaves its directory"

    def let_go(self, model: Model) -> None:
        self.seen = {key: found for key, found in self.seen.items() if found[1] > model.now_us}


def probed(world: World, key: str) -> int | None:
    """The number of the message that the key has; nothing is left of who asks."""
    session = doors.session(world.space)
    session.start(PROBE)
    try:
        found = number_of(session.enqueue("work", b"", dedup_key=key, message_id=id_of(0)))
    except QueueFull:
        found = 0
    session.end(PROBE)
    session.rollback(PROBE)
    return found or None


def key_of(one: Known) -> str | None:
    return one.options.get("dedup_key") if one.queue == "work" else None
