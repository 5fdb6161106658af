"""The process that is killed: it resolves what the last one left, then several threads work until its end.

What it says is in its parent's pipe before its next call, and so outlives it. Arguments: space, flags, name of this
life, seed, number of threads. The decided branches, a JSON list, come through standard input: the parent keeps them,
as a transaction manager keeps its log.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from xaqueue.errors import DiskFull
from xaqueue.space.owner.open import attach
from xaqueue.torture.ledger import Said
from xaqueue.torture.reopen import Look, problems, recover
from xaqueue.torture.work import Worker

FAILED, NO_ROOM = 3, 4


def say(said: Said) -> None:
    os.write(1, said.line())


def live(space: Path, flags: str, life: str, seed: str, threads: int, look: Look = problems) -> None:
    """Does not return. ``look``: says what is wrong with the space once it is recovered."""
    recover(attach(space, sync=flags, watch=False), set(json.load(sys.stdin)), say)
    for problem in look(space):
        say(Said("fault", f"after recovery: {problem}"))
    say(Said("ready"))
    workers = [Worker(attach(space, sync=flags, watch=False), f"{life}.{i}", seed, say) for i in range(threads)]
    running = [threading.Thread(target=_run, args=(worker,)) for worker in workers]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def _run(worker: Worker) -> None:
    try:
        worker.run()
    except BrokenPipeError:  # nobody listens any more
        os._exit(FAILED)
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(NO_ROOM if isinstance(error, DiskFull) else FAILED)


if __name__ == "__main__":
    space, flags, life, seed, threads = sys.argv[1:]
    live(Path(space), flags, life, seed, int(threads))
