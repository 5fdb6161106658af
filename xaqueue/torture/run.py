"""A torture: every level of hardening, killed and without power, in a directory that is left as it was."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from xaqueue.space.owner import open
from xaqueue.storage.hardening import Hardening
from xaqueue.torture.kills import survive_kills
from xaqueue.torture.power import survive_power_losses
from xaqueue.torture.scratch import made
from xaqueue.torture.verdict import Result

LEVELS = ("JOURNAL", "FSYNC;DSYNC", "FDATASYNC;DSYNC", "FSYNC", "FDATASYNC", "DSYNC", "NONE")


def run(
    directory: Path, flags: Sequence[str], seconds: float, progress: Callable[[str], None], seed: str | None = None
) -> tuple[list[Result], str]:
    """The result of each level, and the seed. ``seconds``: for each level, half of it for each kind of crash.

    Raises InvalidArgument for flags that are none, DiskFull, OSError.
    """
    seed = seed or f"{random.SystemRandom().randrange(10**9)}"
    levels = [str(Hardening.parse(text)) for text in (flags or LEVELS)]
    results = []
    with tempfile.TemporaryDirectory(prefix="xaqueue-torture-", dir=directory) as scratch:
        place = Path(scratch)
        for level in levels:
            progress(f"killing {level}")
            with made(place / "kills"):
                open.create(place / "kills" / "space", any_queue=True)
                killed = survive_kills(place / "kills" / "space", level, seconds / 2, seed)
            progress(f"taking the power from {level}")
            with made(place / "power"):
                power = survive_power_losses(place / "power", level, seconds / 2, seed)
            results.append(Result(level, killed, power))
    return results, seed
