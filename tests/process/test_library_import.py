"""What the library loads: nothing that only the command line, a server or Spark needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PRINT = (
    "import sys; names = {name.partition('.')[0] for name, module in list(sys.modules.items()) "
    "if getattr(module, '__file__', None)}; print(*(names - sys.stdlib_module_names - {'__main__'}))"
)
"""The packages that are loaded and no part of Python; an extension's own pseudo-modules have no file."""


def loaded(script: str) -> set[str]:
    """By a child without what an editable install loads at every start of Python."""
    path = [entry for entry in sys.path if entry]
    code = f"import sys; sys.path[:] = {path!r}\n{script}\n{PRINT}"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_import_loads_no_package_but_msgpack() -> None:
    script = "import xaqueue\nxaqueue.connect, xaqueue.Connection, xaqueue.Error, xaqueue.Xid, xaqueue.Message"
    assert loaded(script) - {"msgpack"} == {"xaqueue"}


def test_the_import_loads_neither_engine_nor_server() -> None:
    script = (
        "import sys, xaqueue\n"
        "engine = [name for name in sys.modules if name.startswith(('xaqueue.rpc', 'xaqueue.tm', 'xaqueue.cli'))]\n"
        "assert engine == [], engine\n"
        "assert not {'asyncio', 'socket', 'ssl', 'logging', 'multiprocessing', 'tomllib'} & set(sys.modules)"
    )
    loaded(script)


def test_an_embedded_space_loads_what_watches_it_and_nothing_of_the_command_line(tmp_path: Path) -> None:
    space = str(tmp_path / "space")
    script = (
        "import xaqueue\n"
        f"with xaqueue.connect({space!r}, create=True) as connection: connection.enqueue('orders', b'x')\n"
        f"with xaqueue.connect({space!r}) as connection: assert connection.dequeue('orders').body == b'x'"
    )
    assert loaded(script) <= {"xaqueue", "msgpack", "watchdog"}
