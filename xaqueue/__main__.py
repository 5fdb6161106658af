"""``python -m xaqueue`` is the command ``xaqueue``, for a Python whose scripts are not on PATH."""

from __future__ import annotations

try:
    from xaqueue_command import main  # where it is installed
except ImportError:
    from xaqueue.cli.command import main

if __name__ == "__main__":
    main()
