"""A space is opened with all its features: what they bring is put together here, and handed to the core."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from xaqueue.batch import BATCH_FORMAT_IDS
from xaqueue.core.engine.features import Features, Keeping
from xaqueue.core.engine.state import Space
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.owner import open
from xaqueue.core.owner.chores import Chore
from xaqueue.core.recovery import recover
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.owner_file import OwnerFile
from xaqueue.core.storage.scheduling import Threads
from xaqueue.errors import SpaceError
from xaqueue.features.ages.chores import Expire
from xaqueue.features.batches.rule import BatchRule
from xaqueue.features.batches.sweep import Sweep
from xaqueue.features.carry import carry
from xaqueue.features.counters import counters
from xaqueue.features.dedup import dedup
from xaqueue.features.defining.queues_file import QueuesFile
from xaqueue.features.kinds import KINDS
from xaqueue.features.pair.pair import Pair
from xaqueue.features.replica import options as replica
from xaqueue.features.replica.replicas import check_replication
from xaqueue.features.retries.tries import Tries
from xaqueue.features.scrub.options import DAYS
from xaqueue.features.scrub.scrub import Scrub
from xaqueue.features.snapshots import store
from xaqueue.features.snapshots.chores import PruneJournal, TakeSnapshots
from xaqueue.features.snapshots.manifest import KEPT_JOURNAL, MANIFEST
from xaqueue.features.snapshots.options import policy_of
from xaqueue.features.streams import keeping
from xaqueue.features.streams.archiving import Archive
from xaqueue.features.streams.cleanup import Clear
from xaqueue.features.topics import blocks, format
from xaqueue.features.topics.hollow import Hollow


class Whole(Features):
    """All of them."""

    kinds = KINDS
    rules = dict.fromkeys(BATCH_FORMAT_IDS, BatchRule())
    admits = (dedup.admit,)
    returns = Tries()
    checkpoints = (counters.before_checkpoint,)
    merge = staticmethod(blocks.merge)
    keep = staticmethod(keeping.keep)

    def check(self, root: Path, definitions: Definitions, hardening: Hardening, waiting: Threads) -> None:
        if os.path.lexists(root / MANIFEST):
            raise SpaceError(
                f"{root} is a snapshot: it is not opened, but put in its space's place by `xaqueue restore`"
            )
        check_replication(root, definitions, hardening, waiting)

    def guard(self, root: Path, lock: OwnerFile, hardening: Hardening, *, is_taken: bool) -> Pair:
        return Pair(root, lock, hardening, beats=is_taken)

    def keeping(self, definitions: Definitions) -> Keeping:
        replication, is_timed = replica.policy_of(definitions), policy_of(definitions).point_in_time
        return Keeping(replication.waits, KEPT_JOURNAL if replication.is_on or is_timed else "", is_timed)

    def begin(self, port: FileSystem) -> int:
        store.give_up_restore(port)
        return store.journal_epoch(port)

    def definer(self, root: Path, space: Space) -> QueuesFile:
        return QueuesFile(root, space)

    def chores(self, space: Space, lasting: bool) -> Iterator[Chore]:
        yield Expire(space)
        yield Clear(space)
        yield Hollow(space)
        yield PruneJournal(space)
        yield counters.WriteCounters(space)
        if not space.waiting.is_served:  # else the server sees to it
            yield Sweep(space)
        if lasting and isinstance(space.definer, QueuesFile):
            yield Archive(space, space.definer.root)
            if policy_of(space.definitions).interval_min:
                yield TakeSnapshots(space, space.definer.root)
        if lasting and DAYS.of(space.definitions):
            yield Scrub(space)

    def close(self, space: Space) -> None:
        carry.close(space)

    def closed(self, space: Space) -> None:
        counters.write(space, closed=True)
        format.closed(space)


WHOLE = Whole()

create = partial(open.create, kinds=KINDS)
attach = partial(open.attach, features=WHOLE)
open_space = partial(recover.open_space, features=WHOLE)
