"""Of a group one has its messages at a time, in their order."""

from __future__ import annotations

from typing import Any

from sim.model import Known, Model, Rules
from sim.world import World


class Groups(Rules):
    def options(self, world: World) -> dict[str, Any]:
        return {"group": world.dice.choice((None, "a", "a", "b"))}

    def is_free(self, model: Model, one: Known, here: list[Known], own: list[Known]) -> bool:
        group = one.options.get("group")
        held = (other for other in model.held() if other.queue == one.queue and other not in own)
        if group is None:
            return True
        first = next(other for other in here if other.options.get("group") == group)
        return first is one and all(other.options.get("group") != group for other in held)
