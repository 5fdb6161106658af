"""A queue holds no more than it may, of what is committed and of what branches add."""

from __future__ import annotations

from collections.abc import Sequence

from sim.model import Branch, Known, Model, Rules
from xaqueue.errors import QueueFull

ROOM = {"work": 6, "failed": 1}
BODY_BYTES = 4096


class Limits(Rules):
    """Of messages."""

    toml: Sequence[tuple[str, str]] = (
        ("queues.work", f"max_messages = {ROOM['work']}"),
        ("queues.failed", f"max_messages = {ROOM['failed']}"),
    )
    is_prompt = True

    def refuses(self, model: Model, branch: Branch, verb: str, queue: str) -> type[Exception] | None:
        return QueueFull if verb == "put" and self.room(model, queue, branch.takes) < 1 else None

    def room(self, model: Model, queue: str, takes: list[Known]) -> int:
        """For who takes these."""
        held = [*model.known, *(one for each in model.branches.values() for one in each.adds)]
        counted = sum(one.queue == queue for one in held) - sum(one.queue == queue for one in takes)
        return ROOM.get(queue, 1 << 30) - counted


class ByteLimits(Limits):
    """Of bytes: there is room for so many bodies, whatever their properties take, and for no more."""

    toml = tuple((f"queues.{name}", f"max_bytes = {(2 * most + 1) * BODY_BYTES // 2}") for name, most in ROOM.items())
    body_bytes = BODY_BYTES
