"""The process whose power is cut: the work of kill_child, which stands still at a chosen call until the power is gone.

What it says goes through a pipe and is no part of the disk that loses power. Arguments: those of kill_child, and
whether commit times outlive a power cut.
"""

from __future__ import annotations

import os
import signal
import sys

from support import kill_child
from xaqueue.tools.torture.ledger import Statement
from xaqueue.tools.torture.work import say


class Standstill(kill_child.Doom):
    """Stops the whole process, and says so, at the call that the parent chose."""

    def end(self) -> None:
        say(Statement("stopped"))
        os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    kill_child.rollback_reason = Standstill(sys.argv[6])
    kill_child.main(sys.argv[1:6], times=sys.argv[7] == "True")
