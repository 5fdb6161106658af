"""Plays worlds: ``python -m sim.run 7`` a seed, ``--steps 3,9,14`` only these steps of it, ``--hours 8`` one seed after
the other. A run that fails is made as short as it gets, and said with the command that plays it again.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import sys
import time
import traceback
from collections.abc import Sequence
from unittest import mock

from sim import doors
from sim.model import Model, Rules
from sim.opened import dice
from sim.rules.ages import Ages
from sim.rules.batches import Batches
from sim.rules.blocks import Blocks
from sim.rules.carry import Carry
from sim.rules.core import Core
from sim.rules.counts import Counts
from sim.rules.dedup import Dedup
from sim.rules.delays import Delays
from sim.rules.groups import Groups
from sim.rules.kept import Kept
from sim.rules.leases import Leases
from sim.rules.limits import ByteLimits, Limits
from sim.rules.managed import Managed
from sim.rules.moments import Moments
from sim.rules.replicas import Replicas, Waits
from sim.rules.restores import Restores
from sim.rules.retries import Retries
from sim.rules.streams import Streams
from sim.rules.takeovers import Takeovers
from sim.rules.topics import Topics
from sim.rules.undefine import Undefine
from sim.world import STEPS, World

FEATURES: tuple[type[Rules], ...] = (
    *(Retries, Limits, ByteLimits, Dedup, Groups, Delays, Leases, Topics),
    *(Streams, Batches, Carry, Managed, Undefine, Counts, Restores, Ages, Takeovers, Replicas, Waits, Moments),
    *(Blocks, Kept),
)
SHRINK_S = 60.0


def play(seed: int, steps: Sequence[int] | None = None, kinds: Sequence[type[Rules]] = ()) -> World:
    """Raises what the world fails with. steps: which of them; all, where nothing is said. kinds: rules that it has, and
    others rarely.
    """
    share = {each: min(each.share, 0.1) if kinds else each.share for each in FEATURES} | dict.fromkeys(kinds, 1.0)
    drawn = [Core(), *(each() for each in FEATURES if dice(seed, each.__name__).random() < share[each])]
    drawn = [each for each in drawn if holds(each)]
    needed = [kind for each in drawn for kind in each.needs if not any(isinstance(one, kind) for one in drawn)]
    drawn += [kind() for kind in needed]
    excluded = tuple(kind for each in drawn for kind in each.excludes)
    rules = [each for each in drawn if not isinstance(each, excluded)]
    doors.forget_ids()
    with (
        doors.ids(dice(seed, "ids")),
        doors.large(dice(seed, "large").choice((None, None, 1000, 5000))),
        doors.small_steps(dice(seed, "steps").random() < 0.3),
        doors.blocks(any(each.writes_blocks for each in rules)),
    ):
        world = World(seed, Model(tuple(rules), doors.NOON_US))
        with mock.patch("time.monotonic", world.monotonic):
            try:
                for at in range(STEPS) if steps is None else steps:
                    world.trace.append(f"step {at}:")
                    world.step(at)
            except BaseException as error:
                error.add_note("\n".join(world.trace))
                raise
    return world


def holds(rules: Rules) -> bool:
    """Whether there is a level for it and what it needs."""
    needed = [rules, *(kind() for kind in rules.needs)]
    return any(all(each.holds_at(level) for each in needed) for level in doors.LEVELS)


def failure_of(
    seed: int, steps: Sequence[int] | None = None, kinds: Sequence[type[Rules]] = ()
) -> BaseException | None:
    try:
        play(seed, steps, kinds)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    return None


def shrunk(
    seed: int, failure: BaseException, limit_s: float = SHRINK_S, kinds: Sequence[type[Rules]] = ()
) -> list[int]:
    """As few steps as still fail in this way."""
    kept, deadline = list(range(STEPS)), time.monotonic() + limit_s
    size = STEPS // 2
    while size and time.monotonic() < deadline:
        for at in range(0, len(kept), size):
            fewer = kept[:at] + kept[at + size :]
            if len(fewer) < len(kept) and type(failure_of(seed, fewer, kinds)) is type(failure):
                kept = fewer
                break
        else:
            size //= 2
    return kept


def told(seed: int, failure: BaseException, limit_s: float = SHRINK_S, kinds: Sequence[type[Rules]] = ()) -> str:
    """The failure of the shortest run, and how it is played again."""
    steps = shrunk(seed, failure, limit_s, kinds)
    last = failure_of(seed, steps, kinds) or failure
    trace = "".join(traceback.format_exception(last))
    command = f"PYTHONPATH=tests python -m sim.run {seed} --steps {','.join(map(str, steps))}"
    if kinds:
        command += f" --rules {','.join(kind.__name__ for kind in kinds)}"
    return f"{trace}\nseed {seed} fails; again: {command}"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="the first one; by chance where none is given")
    parser.add_argument("--steps", help="numbers of steps, with commas")
    parser.add_argument("--rules", default="", help="names of rules that each world has, with commas")
    parser.add_argument("--hours", type=float, default=0.0, help="goes on with the next seeds for so long")
    parser.add_argument("--seconds", type=float, default=0.0)
    given = parser.parse_args(words)
    named = {each.__name__: each for each in FEATURES}
    logging.disable(logging.CRITICAL)
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    kinds = [named[name] for name in given.rules.split(",") if name]
    if given.steps is not None:
        play(seed, [int(one) for one in given.steps.split(",")], kinds)
        return 0
    end = time.monotonic() + given.hours * 3600 + given.seconds
    for count in itertools.count(1):
        failure = failure_of(seed, None, kinds)
        if failure is not None:
            sys.stderr.write(told(seed, failure, kinds=kinds) + "\n")
            return 1
        if time.monotonic() >= end:
            sys.stdout.write(f"{count} seed{'s' * (count > 1)}, the last is {seed}\n")
            return 0
        seed += 1
    raise AssertionError


if __name__ == "__main__":
    sys.exit(main())
