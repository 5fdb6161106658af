"""The engine is killed, and its power is taken, in a directory: cd tests && python -m torture DIR

A process with a scratch space in DIR is killed again and again. Then power is lost at random calls by the rules: what
was synced is there, of the rest any part. Each time the space is opened again, and must have lost nothing that was
acknowledged, nothing twice, nothing in part. Leaves nothing behind. Exit 1 where flags broke a promise, or where fewer
than 20 kills, or losses of power, give no verdict.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torture import run
from xaqueue.cli.exit_codes import ended_in_order
from xaqueue.errors import InvalidArgument
from xaqueue.tools.rates import aligned


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where a space is to be; must exist")
    parser.add_argument("--flags", action="append", metavar="FLAGS", help="may be repeated; all levels without it")
    parser.add_argument("--seconds", type=float, help="of each level; without it 10, or until there is a verdict")
    parser.add_argument("--seed", help="of an earlier run, for the same work again")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    if not given.directory.is_dir():
        parser.error(f"{given.directory} is no directory: make one, on the disk that a space is to be on")
    say = partial(print, flush=True)
    try:
        with ended_in_order():
            results, seed = run.run(
                given.directory, given.flags or (), given.seconds, partial(say, file=sys.stderr), given.seed
            )
    except InvalidArgument as refused:
        parser.error(str(refused))
    if given.json:
        say(json.dumps(run.as_dict(results, seed)))
    else:
        rows = aligned(("flags", "killed", "power lost, by the rules"), list(run.rows(results)))
        say("\n".join([*rows, *run.lines(results), f"seed {seed}"]))
    return 0 if run.is_safe(results) else 1


if __name__ == "__main__":
    sys.exit(main())
