"""One MariaDB for the tests of a process, as Debian's mariadb-server installs it; skipped where there is none.

Like the PostgreSQL of the tests it runs without syncs, in a directory of its own, and ends with its starter.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

MISSING = "no MariaDB server is found: apt-get install mariadb-server"
START_S = 60.0
PR_SET_PDEATHSIG = 1
SETTINGS = (
    *("--skip-networking", "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M"),
    *("--innodb-flush-method=nosync", "--skip-log-bin"),
)
_libc = ctypes.CDLL(None)
_databases = count(1)


class MariadbServer:
    """One in a directory of its own, in which root needs no password; skips where there is none to start."""

    def __init__(self, home: Path) -> None:
        server, install = shutil.which("mariadbd", path="/usr/sbin:/usr/bin"), shutil.which("mariadb-install-db")
        if server is None or install is None:
            pytest.skip(MISSING)
        user = pwd.getpwuid(os.geteuid()).pw_name if os.geteuid() else "mysql"
        if user == "mysql":
            shutil.chown(home, user)
        self.socket, self._log = home / "socket", home / "log"
        # A tmpdir of its own: at its start a server deletes all temporary tables it finds there, another server's too.
        common = [f"--datadir={home / 'data'}", f"--tmpdir={home}", f"--user={user}"]
        self._command = [server, "--no-defaults", *common, f"--socket={self.socket}", f"--pid-file={home / 'pid'}"]
        installed = subprocess.run(
            [install, "--no-defaults", *common, "--auth-root-authentication-method=normal", "--skip-test-db"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert installed.returncode == 0, installed.stdout
        self.start()

    def start(self) -> None:
        """Also behind ``kill``."""
        with self._log.open("wb") as said:
            self._process = subprocess.Popen(
                [*self._command, *SETTINGS],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                preexec_fn=_end_with_its_starter,
            )
        until = time.monotonic() + START_S
        while "ready for connections" not in self._log.read_text("utf-8", "replace"):
            assert self._process.poll() is None, self._log.read_text("utf-8", "replace")
            assert time.monotonic() < until
            time.sleep(0.02)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@contextmanager
def started() -> Iterator[str]:
    """The path of the socket of a server, for the time of the block."""
    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as name:
        server = MariadbServer(Path(name))
        try:
            yield str(server.socket)
        finally:
            server.kill()


def _end_with_its_starter() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def database(socket: str) -> Iterator[str]:
    """A new database; it goes with everything in it, prepared branches too."""
    import pymysql

    name = f"test_{next(_databases)}"
    with pymysql.connect(unix_socket=socket, user="root", autocommit=True) as own, own.cursor() as cursor:
        cursor.execute(f"create database {name}")
        yield name
        cursor.execute("xa recover")
        for format_id, end, _, data in cursor.fetchall():
            with suppress(pymysql.OperationalError):  # it had done nothing, and was gone with its connection
                cursor.execute(f"xa rollback X'{data[:end].hex()}', X'{data[end:].hex()}', {format_id}")
        cursor.execute(f"drop database {name}")
