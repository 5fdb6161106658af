"""The script ``xaqueue`` before anything of it is loaded, which takes a second: Ctrl-C ends it quietly from here on,
until a verb is at work, and behind that: there is nothing to undo, and nothing to say.

Installed as ``xaqueue_command``, a module of its own, for the import of the package would come before this one.
"""

from __future__ import annotations

import os
import signal


def end(*_: object) -> None:
    os._exit(130)  # as ExitCode.INTERRUPTED, which is not loaded yet


def main() -> None:
    try:
        listens = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, as in background
        if listens:
            signal.signal(signal.SIGINT, end)
        from xaqueue.cli.main import main as run

        run(end if listens else None)
    except KeyboardInterrupt:  # while that was set, and behind a verb
        end()
