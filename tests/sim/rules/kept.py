"""What is taken of a queue with an archive is in that, and nothing is there and in its queue, whoever dies."""

from __future__ import annotations

from sim.model import Branch, Model, Rules
from sim.opened import number_of
from sim.rules.replicas import Replicas
from sim.world import World
from support.archived import archived, live


class Kept(Rules):
    share = 0.0
    """In no world where nobody asks for them."""
    excludes = (Replicas,)
    """A replica's archive begins with it."""
    toml = (("queues.kept", 'archive = "parquet"'),)
    puts = ("kept", "kept", "kept")
    writes_blocks = True

    def __init__(self) -> None:
        self.taken: list[int] = []
        """Messages that sessions took."""

    def committed(self, model: Model, branch: Branch) -> None:
        moved = [one.number for one in branch.adds]
        self.taken += [one.number for one in branch.takes if one.queue == "kept" and one.number not in moved]

    def shows(self, world: World) -> bool:
        """Once the directories have all that the journal tells."""
        if not world.is_new:
            return True
        kept = archived(world.fs, "kept")
        assert kept.keys().isdisjoint(live(world.fs, "kept")), "what is there is in the archive, too"
        return {number_of(one.message_id) for one in kept.values()}.issuperset(self.taken)
