"""A PgBouncer in front of one PostgreSQL, as Debian's pgbouncer installs it, lending connections by transaction.

It refuses to run as root, so for root it runs as PostgreSQL's user, whose sockets it has to reach; it ends with its
starter.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

MISSING = "no PgBouncer is found: apt-get install pgbouncer"
START_S = 30.0
PORT = 6432
PR_SET_PDEATHSIG = 1
SETTINGS = {
    "listen_port": str(PORT),
    "auth_type": "any",
    "pool_mode": "transaction",
    "max_client_conn": "200",
    "default_pool_size": "20",
    "server_login_retry": "1",
}
"""server_login_retry: it asks a PostgreSQL that is being started again each second, and not each fifteen."""
_libc = ctypes.CDLL(None)


def program() -> str | None:
    return shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")


class PgBouncer:
    """Started; skips where there is none. dsn: that of the database behind it, through it."""

    def __init__(self, dsn: str, **settings: str) -> None:
        found = program()
        if found is None:
            pytest.skip(MISSING)
        words = conninfo_to_dict(dsn)
        self._home = Path(tempfile.mkdtemp(prefix="xaqueue-bouncer-"))
        self.dsn = make_conninfo(dsn, host=str(self._home), port=PORT)
        behind = f"host={words['host']} port=5432 dbname={words['dbname']} user={words['user']}"
        lines = {**SETTINGS, "unix_socket_dir": str(self._home), "logfile": str(self._home / "log"), **settings}
        written = "".join(f"{name} = {value}\n" for name, value in lines.items())
        ini = self._home / "pgbouncer.ini"
        ini.write_text(f"[databases]\n{words['dbname']} = {behind}\n[pgbouncer]\n{written}")
        self._command = [found, "-q", str(ini)]
        self._as: dict[str, Any] = {}
        if not os.geteuid():
            owner = (Path(str(words["host"])) / ".s.PGSQL.5432").stat()
            self._as = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
            for path in (self._home, ini):
                os.chown(path, owner.st_uid, owner.st_gid)
        self.start()

    @property
    def log(self) -> str:
        path = self._home / "log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_end_with_its_starter,
            **self._as,
        )
        give_up = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < give_up, self.log
            time.sleep(0.01)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as tried:
            return tried.connect_ex(str(self._home / f".s.PGSQL.{PORT}")) == 0

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def restart(self) -> None:
        """As behind a crash."""
        self.kill()
        (self._home / f".s.PGSQL.{PORT}").unlink(missing_ok=True)
        self.start()

    def __enter__(self) -> PgBouncer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._home)


def _end_with_its_starter() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
