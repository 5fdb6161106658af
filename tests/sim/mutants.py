"""The world against a product that is wrong on purpose: ``python -m sim.mutants`` says by which seed each is found.

A mutant leaves out a kind of sync (``careless_log``), leaves out or puts off a call of the file system for a kind of
path, or drops a rule of a feature. ``mutants.toml`` has what was found when this was run last; a mutant that is not
found stands there with 0, and who takes away a crash story for it sees first that it is not.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sim import doors, run
from sim.model import Rules
from sim.rules.ages import Ages
from sim.rules.batches import Batches
from sim.rules.blocks import Blocks
from sim.rules.carry import Carry
from sim.rules.counts import Counts
from sim.rules.dedup import Dedup
from sim.rules.delays import Delays
from sim.rules.groups import Groups
from sim.rules.leases import Leases
from sim.rules.limits import ByteLimits, Limits
from sim.rules.moments import Moments
from sim.rules.replicas import Replicas, Waits
from sim.rules.restores import Restores
from sim.rules.retries import Retries
from sim.rules.streams import Streams
from sim.rules.takeovers import Takeovers
from sim.rules.topics import Topics
from sim.rules.undefine import Undefine
from support.careless_log import careless
from support.crash_level import CYCLING, FILLING, LAGGING, STRICT, Level
from support.forgetful import ForgetfulFileSystem
from xaqueue.core.engine import many
from xaqueue.core.model.layout import Watermark
from xaqueue.core.model.message_block import encode_gone
from xaqueue.features.pair.pair_fs import PairFileSystem
from xaqueue.features.replica.journal_copy import JournalCopy

FOUND = Path(__file__).with_name("mutants.toml")
SEEDS = 300
DIRECTORIES, JOURNALS = (STRICT,), (LAGGING, FILLING, CYCLING)
ANY = (*DIRECTORIES, *JOURNALS)


@dataclass
class Struck:
    """How often a mutant was wrong: one that never is says nothing of the world."""

    times: int = 0


@dataclass(frozen=True)
class Mutant:
    name: str
    wrong: Callable[[Struck], Any]
    """Makes the context in which the product is wrong."""
    kinds: tuple[type[Rules], ...] = ()
    levels: tuple[Level, ...] = ANY

    def found_by(self, seeds: int, first: int = 1) -> int:
        """The first seed that fails; 0: none of so many does. Raises AssertionError where it never was wrong."""
        struck = Struck()
        with mock.patch.object(doors, "LEVELS", self.levels):
            with self.wrong(struck):
                found = (seed for seed in range(first, first + seeds) if self._fails(seed))
                seed = next(found, 0)
            assert struck.times, f"{self.name}: it is never wrong: the product has changed"
            assert not seed or not self._fails(seed), f"{self.name}: seed {seed} fails without it, too"
        return seed

    def _fails(self, seed: int) -> bool:
        return run.failure_of(seed, None, self.kinds) is not None


def unsynced(kind: str, kinds: tuple[type[Rules], ...] = (), levels: tuple[Level, ...] = DIRECTORIES) -> Mutant:
    """A kind of sync is left out, as the tables of the crash ring name it."""

    @contextmanager
    def wrong(struck: Struck) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch, careless(patch, kind) as care:
            yield
            struck.times += kind in care.asked

    return Mutant(f"left out: {kind}", wrong, kinds, levels)


def undone(call: str, part: str, kinds: tuple[type[Rules], ...] = (), levels: tuple[Level, ...] = ANY) -> Mutant:
    """A call of the file system does nothing on paths that have this part."""

    @contextmanager
    def wrong(struck: Struck) -> Iterator[None]:
        real = getattr(ForgetfulFileSystem, call)

        def pass_over(fs: ForgetfulFileSystem, path: str, *rest: Any) -> Any:
            if part not in f"{rest[0] if call in ('link', 'rename') else path}/":
                return real(fs, path, *rest)
            struck.times += 1
            return None

        with mock.patch.object(ForgetfulFileSystem, call, pass_over):
            yield

    return Mutant(f"undone: {call} of {part}", wrong, kinds, levels)


def dropped(target: str, instead: Any, *kinds: type[Rules], levels: tuple[Level, ...] = ANY) -> Mutant:
    """A function of the package returns this instead of doing anything."""

    @contextmanager
    def wrong(struck: Struck) -> Iterator[None]:
        def drop(*_: Any, **__: Any) -> Any:
            struck.times += 1
            return instead

        with mock.patch(f"xaqueue.{target}", drop):
            yield

    return Mutant(f"dropped: {target}", wrong, kinds, levels)


def in_place(call: str, *kinds: type[Rules]) -> Mutant:
    """An owner of a pair does this where its name stands, and not in a directory of its own first."""

    @contextmanager
    def wrong(struck: Struck) -> Iterator[None]:
        def do(pair: PairFileSystem, path: str, *rest: Any) -> None:
            pair.check()
            struck.times += 1
            if call == "link":  # its target is behind its source
                rest = (pair._place(rest[0]),)
            getattr(pair._fs, call)(path, *rest)

        with mock.patch.object(PairFileSystem, call, do):
            yield

    return Mutant(f"in place: {call} of a pair", wrong, (Takeovers, *kinds), JOURNALS)


def follows_all() -> Mutant:
    """The directories of a replica are what its source may lose yet."""

    @contextmanager
    def wrong(struck: Struck) -> Iterator[None]:
        real = JournalCopy.follow

        def follow(copy: JournalCopy, *, everything: bool = False) -> None:
            struck.times += copy.hardened < copy.lsn
            real(copy, everything=True)

        with mock.patch.object(JournalCopy, "follow", follow):
            yield

    return Mutant("before its source has it: JournalCopy.follow", wrong, (Waits,), JOURNALS)


def own_bits() -> Mutant:
    """A step says of a block of many messages what it takes, and not all that is gone."""

    @contextmanager
    def wrong(struck: Struck) -> Iterator[None]:
        def encode(queue: str, named: Any, gone: int, epoch: int) -> tuple[bytes, bytes]:
            own = gone & ~before.get((queue, named), 0)
            before[queue, named] = gone
            struck.times += own != gone
            return encode_gone(queue, named, own, epoch)

        before: dict[Any, int] = {}
        with mock.patch.object(many, "encode_gone", encode):
            yield

    return Mutant("own bits: many.leave", wrong, (Blocks,), JOURNALS)


CORE_SYNCS = (
    "prepare: content block",
    "prepare: content first block",
    "prepare: target prepared",
    "commit: target range",
    "commit: source prepared",
    "one_phase: target range",
    "rollback: source prepared",
    "decision: target heuristic",
    "forget: source heuristic",
    "_record: content decision",
    "_publish: content watermark",
    "_sync_directories: names prepared",
    "_sync_directories: names range",
)
JOURNAL_SYNCS = (
    "write: content segment",
    "write_checkpoint: content segment",
    "make_segment: content new segment",
    "make_segment: names journal",
    "harden: names journal",
    "harden: content segment",
    "checkpoint: all root",
)
BATCH_SYNCS = (
    "decide: content batch record",
    "batch: target batches",
    "batch: content watermark",
    "batch: target committed",
    "batch: target queue",
    "batch: target range",
    "batch: target prepared",
    "batch: source prepared",
    "batch: source range",
    "_sync_directories: names batches",
)
STREAM_SYNCS = (
    "_write: content stream record",
    "stream: target streams",
    "_sync_directories: names streams",
    "_archive: names queue",
    "_archive: names archive",
    "_archive: names root",
    "stream: target range",
)
SNAPSHOT_SYNCS = (
    "_take: all root",
    "_take: names snapshots",
    "put_in_place: all root",
    "put_in_place: content .restoring/READY.new",
    "put_in_place: names .restoring",
    "_swap: names removed",
    "_swap: names root",
    "_swap: all root",
)
MOMENT_SYNCS = ("_release: names snapshots/journal",)
REPLICA_SYNCS = (
    "_write: content segment",
    "_start_over: all root",
    "take: all root",
    "take_place: all root",
    "_harden: content segment",
    "_finish_incoming: content segment",
    "replace_file: content .replication.new",
    "replace_file: content .restored.new",
)
COUNTER_SYNCS = ("replace_file: content .counters.new", "replace_file: names root")
REDUNDANT = {
    "batch: target tries": "a try that is lost with the power is not counted, and its message is safe",
    "stream: source range": "so that a round in which others add to the range syncs it behind the archive",
    "_harden_cleared: all root": "the record says what is consumed after it is released, too, and with a journal the "
    "checkpoint behind it syncs all; it tells of a lack of room",
    "_harden: content stream record": "of a level that syncs nothing, which no world has: test_crash_streams",
    "run: content stream record": "the same, of many at once",
}
"""Syncs of features whose loss no seed finds, and why they are kept."""
BY_FEATURES: tuple[str, ...] = (
    "decide:",
    "_write:",
    "_archive: names",
    "_harden_archive:",
    "_harden_cleared:",
    "_remove_expired:",
)
BY_FEATURES += ("_take:", "put_in_place:", "_swap:", "replace_file:", "batch:", "stream:")

MUTANTS: Sequence[Mutant] = (
    *map(unsynced, CORE_SYNCS),
    *(unsynced(kind, (), JOURNALS) for kind in JOURNAL_SYNCS),
    *(unsynced(kind, (Batches,)) for kind in BATCH_SYNCS),
    *(unsynced(kind, (Streams,)) for kind in STREAM_SYNCS),
    unsynced("_harden_archive: all root", (Streams,), (CYCLING,)),
    *(unsynced(kind, (Restores,)) for kind in SNAPSHOT_SYNCS),
    *(unsynced(kind, (Counts,)) for kind in COUNTER_SYNCS),
    *(unsynced(kind, (Moments,), JOURNALS) for kind in MOMENT_SYNCS),
    *(unsynced(kind, (Replicas,), JOURNALS) for kind in REPLICA_SYNCS),
    undone("link", "snapshots/journal/", (Moments,), JOURNALS),
    dropped("features.snapshots.restore._Build._done_again", {}, Moments, levels=JOURNALS),
    dropped("features.snapshots.restore._Build._keep_journal", None, Moments, levels=JOURNALS),
    dropped("features.snapshots.history.History._limit", sys.maxsize, Moments, levels=JOURNALS),
    dropped("features.snapshots.history.History._belongs", True, Moments, levels=JOURNALS),
    dropped("features.replica.journal_copy.JournalCopy._finish_incoming", None, Replicas, levels=JOURNALS),
    dropped("features.replica.journal_copy.JournalCopy._harden", None, Replicas, levels=JOURNALS),
    dropped("features.replica.journal_copy.JournalCopy._watermark", Watermark(0, 0), Replicas, levels=JOURNALS),
    follows_all(),
    dropped("features.replica.shipping.Shipping._await", True, Waits, levels=JOURNALS),
    dropped("features.replica.promote._jump", {}, Replicas, levels=JOURNALS),
    dropped("features.replica.promote.branches_in", [], Replicas, levels=JOURNALS),
    undone("link", "snapshots/", (Restores,)),
    dropped("features.snapshots.restored.Marks.passes", None, Restores),
    dropped("features.snapshots.restored.RestoredKind.doubt", None, Restores),
    dropped("features.snapshots.restore._Build._queues", set(), Restores, levels=JOURNALS),
    undone("unlink", "/range="),
    undone("rename", "/queue=other/", (Topics,), DIRECTORIES),
    dropped("features.topics.bulk.subscribers", [], Topics),
    undone("rename", "/.dedup/", (Dedup,), DIRECTORIES),
    undone("sync_dir", "/.dedup/", (Dedup,), DIRECTORIES),
    undone("unlink", "/.dedup/", (Dedup,), DIRECTORIES),
    dropped("features.dedup.dedup.Claims._holder_locked", None, Dedup),
    dropped("features.dedup.dedup.Claims.ops", (), Dedup),
    dropped("features.dedup.dedup._publish_locked", None, Dedup),
    undone("rename", "/.retries/", (Retries,), DIRECTORIES),
    dropped("features.retries.tries.count_killed", None, Retries),
    dropped("features.retries.tries.records_of", [], Retries),
    dropped("features.groups.groups.Group.lets", True, Groups),
    dropped("features.groups.groups.Group.come_back", None, Groups),
    dropped("features.limits.queue_room._lack", "", Limits),
    dropped("features.limits.queue_room._lack", "", ByteLimits),
    undone("rename", "batches/", (Batches,), DIRECTORIES),
    dropped("features.dedup.dedup.restore", None, Dedup),
    dropped("features.batches.batches.decision", None, Batches),
    undone("rename", "streams/", (Streams,), DIRECTORIES),
    undone("rename", "archive/", (Streams,)),
    dropped("features.streams.cleanup._archive", None, Streams),
    dropped("features.carry.carrier.Carrier.has_applied", False, Carry, levels=JOURNALS),
    dropped("features.carry.carry._apply", None, Carry, levels=JOURNALS),
    unsynced("_remove_expired: names range", (Delays,)),
    dropped("features.streams.cleanup._remove_expired", None, Delays),
    dropped("core.model.index.QueueIndex.find_expired", None, Delays),
    dropped("features.defining.queues_file.check_empty", None, Undefine),
    undone("sync_data", "/.watermark", (Undefine,), DIRECTORIES),
    undone("rename", "counters/", (Counts,)),
    undone("sync_file", "counters", (Counts,)),
    dropped("features.counters.counters.go_on", None, Counts),
    dropped("features.retries.moving.move_all", True, Delays, Retries),
    dropped("features.retries.tries.return_untried", None, Leases, Retries),
    dropped("features.leases.leases._hand_over_locked", None, Leases),
    dropped("features.retries.moving.reject", None, Leases, Retries),
    dropped("core.engine.timeouts.expire", 1),
    dropped("features.ages.ages.Ages.strike", True, Ages),
    dropped("features.ages.ages.Ages._end_of", 1, Ages),
    dropped("features.pair.pair_fs.retire", None, Takeovers, levels=JOURNALS),
    dropped("features.pair.pair_fs.PairFileSystem._is_temporary", False, Takeovers, Counts, levels=JOURNALS),
    dropped("features.pair.pair.is_in_place", True, Takeovers, levels=JOURNALS),
    dropped("core.engine.state.Space.check_owner", None, Takeovers, levels=JOURNALS),
    dropped("core.storage.journal.Journal._begin_anew", [], Takeovers, levels=JOURNALS),
    in_place("link", Topics),
    in_place("write_at"),
    own_bits(),
    dropped("core.model.change.Change.take_back", None, Blocks, levels=JOURNALS),
    undone("rename", "/.gone/", (Blocks,), JOURNALS),
    undone("write_at", "/.gone/", (Blocks,), DIRECTORIES),
    unsynced("one_phase: content bitmap", (Blocks,)),
)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="or beginnings of names; all, where nothing is said")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    given = parser.parse_args(words)
    logging.disable(logging.CRITICAL)
    chosen = [one for one in MUTANTS if not given.names or one.name.startswith(tuple(given.names))]
    for one in chosen:
        began = time.monotonic()
        try:
            seed: object = one.found_by(given.seeds)
        except (AssertionError, AttributeError) as error:
            seed = f'"{error}"'
        sys.stdout.write(f'"{one.name}" = {seed}  # {time.monotonic() - began:.0f} s\n')
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
