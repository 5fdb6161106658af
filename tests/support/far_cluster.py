"""A standalone cluster of processes that see none of the spaces' directories: an empty file system lies over them.

Whoever is at work there may be killed, or stopped for some seconds, at any moment:

    driver, worker, executor    of Spark's
    server                      of a space, which is started again
    pair                        one of the two of a space that has two: the other one has it from then on
    stall                       the same stopped, taken over from, and continued: it is fenced, and ends
    straggler                   the Python processes of an executor are stopped: Spark makes a second attempt elsewhere
    writing                     a driver, an executor or a server while a batch is being written
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pyspark
import pytest

import xaqueue
from support.certificates import Authority
from support.disks import run
from support.pair import TAKEOVER_S, free_ports
from support.patience import eventually
from xaqueue.errors import Error
from xaqueue.features.opening import create
from xaqueue.offline.spans import QueueFiles
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.spark import QUICK_START
from xaqueue.spark.java import java_home

HERE = Path(__file__).parent
TOKEN = "0123456789abcdef-of-the-cluster"
WORKERS = ("127.0.0.2", "127.0.0.3")
MEMORY_MB = 512
START_S = 240.0
STRAGGLES_S = 1.0, 6.0
MORE = 5_000
"""Messages."""


class Far:
    """Served spaces, and a cluster that has nothing but their URLs."""

    def __init__(self, root: Path, sources: int, sinks: int) -> None:
        """The first source and the first sink have two servers each."""
        if run("unshare", "-Urm", "true").returncode:
            pytest.skip("mounting is not permitted here, and namespaces are not either")
        self.root, self.hidden = root, root / "hidden"
        self.hidden.mkdir()
        authority = Authority(root, "authority")
        self._certificate = authority.issue("127.0.0.1")
        self.token = root / "token"
        self.token.touch(0o600)
        self.token.write_text(TOKEN)
        self._ca = authority.ca
        self.sources = [f"source{number}" for number in range(sources)]
        self.sinks = [f"sink{number}" for number in range(sinks)]
        self.pairs = [self.sources[0], self.sinks[0]]
        names = [*self.sources, *self.sinks]
        self._ports = {name: free_ports(1 + (name in self.pairs)) for name in names}
        self._servers: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self._cluster: list[subprocess.Popen[bytes]] = []
        self._driver: subprocess.Popen[bytes] | None = None
        self.log, self.events = root / "log", root / "events"
        self.events.mkdir()
        self.master, self.filled = "", 0
        for name, ports in self._ports.items():
            create(self.hidden / name, any_queue=True)
            for number in range(len(ports)):
                self.serve(name, number)

    def url(self, name: str) -> str:
        places = ",".join(f"127.0.0.1:{port}" for port in self._ports[name])
        return f"xaqs://{places}?token_file={self.token}&ca={self._ca}"

    def serve(self, name: str, number: int) -> None:
        """Once nobody has the port any more."""
        place, made = f"127.0.0.1:{self._ports[name][number]}", self._certificate
        words: list[object] = ["--tls", place, "--cert", made.cert, "--key", made.key, "--token-file", self.token]
        if name in self.pairs:
            words += ["--standby", "--takeover-after", TAKEOVER_S]
        command = [sys.executable, "-m", "xaqueue", "serve", "--space", self.hidden / name, *words]
        with self.log.open("ab") as said:
            self._servers[name, number] = subprocess.Popen([*map(str, command)], stdout=said, stderr=said)

    def kill_server(self, name: str, number: int, *, stalled: bool = False) -> None:
        """stalled: it is stopped first, until the other one has the space, and goes on for a while."""
        server = self._servers[name, number]
        if stalled:
            server.send_signal(signal.SIGSTOP)
            time.sleep(2 * TAKEOVER_S)
            server.send_signal(signal.SIGCONT)
            time.sleep(TAKEOVER_S)
        server.kill()
        server.wait()
        self.serve(name, number)

    def fill(self, name: str, count: int) -> None:
        """With the numbers that come next."""
        before = QueueFiles(self.hidden / name, "orders").watermark()
        numbers = range(self.filled, self.filled + count)
        with xaqueue.connect(self.url(name)) as queues:
            for begin in numbers[::500]:
                queues.enqueue_many("orders", [b"%d" % one for one in numbers[begin - self.filled :][:500]])
                queues.commit()
        self.filled += count
        files = QueueFiles(self.hidden / name, "orders")
        eventually(lambda: sum(1 for _ in files.sizes(before, files.watermark())) == count)

    # The cluster

    def _far(self, *words: object, **more: str) -> subprocess.Popen[bytes]:
        """A process that does not see the spaces."""
        hide = f"mount -t tmpfs none {shlex.quote(str(self.hidden))} && exec " + shlex.join(map(str, words))
        env = os.environ | {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable} | more
        with self.log.open("ab") as said:
            return subprocess.Popen(
                ["unshare", "-Urm", "sh", "-c", hide], stdout=said, stderr=said, env=env, start_new_session=True
            )

    def start_cluster(self) -> None:
        spark = Path(pyspark.__file__).parent
        (port,) = free_ports(1)
        self.master = f"spark://127.0.0.1:{port}"
        quick = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_START, "SPARK_HOME": str(spark)}
        start = (spark / "bin" / "spark-class", "org.apache.spark.deploy.master.Master")
        self._cluster.append(self._far(*start, "--host", "127.0.0.1", "--port", port, "--webui-port", 0, **quick))
        self._cluster += map(self._worker, WORKERS)

    def _worker(self, host: str) -> subprocess.Popen[bytes]:
        spark = Path(pyspark.__file__).parent
        quick = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_START, "SPARK_HOME": str(spark)}
        start = (spark / "bin" / "spark-class", "org.apache.spark.deploy.worker.Worker", self.master)
        given = ("--host", host, "--cores", 1, "--memory", f"{MEMORY_MB}m", "--webui-port", 0)
        return self._far(*start, *given, "--work-dir", self.root / host, **quick)

    def drive(self, *options: str) -> subprocess.Popen[bytes]:
        """A driver that copies all there is; options: of Spark's."""
        words = [",".join(map(self.url, self.sources)), ",".join(map(self.url, self.sinks))]
        return self._far(
            sys.executable, HERE / "far_child.py", self.master, *words, self.root / "checkpoint",
            f"spark.eventLog.dir={self.events.as_uri()}", *options,
            SPARK_LOCAL_IP="127.0.0.1",
        )  # fmt: skip

    def copy_all(self, strikes: Sequence[str], dice: random.Random, pause_s: tuple[float, float], *options: str) -> int:
        """Until all is copied, while these are struck, one after the other; where that is before the last of them, more
        is put in. Returns how many drivers had failed by themselves, and were started again."""
        left, failed = list(strikes), 0
        self._driver = self.drive(*options)
        while True:
            try:
                code = self._driver.wait(dice.uniform(*pause_s) if left else 4 * START_S)
            except subprocess.TimeoutExpired:
                assert left, "it never ends"
                if self.strike(left[0], dice):
                    left.pop(0)
                if self._driver.poll() != -signal.SIGKILL:
                    continue
            else:
                if code == 0 and not left:
                    return failed
                if code == 0:
                    self.fill(dice.choice(self.sources), MORE)
                failed += code != 0
                assert failed <= len(strikes), "drivers fail, see the log"
            self._driver = self.drive(*options)

    def strike(self, who: str, dice: random.Random) -> bool:
        """Whether somebody of that kind was there."""
        if who in ("writing", "straggler") and not self._is_there(self._writes):
            return False
        if who == "writing":
            who = dice.choice(("driver", "executor", "server", "pair"))
        if who == "driver" and self._driver is not None:
            _kill_group(self._driver)
        elif who == "worker":
            number = dice.randrange(len(WORKERS))
            _kill_group(self._cluster[number + 1])
            self._cluster[number + 1] = self._worker(WORKERS[number])
        elif who == "executor":
            if not (found := self._is_there(self.executors)):
                return False
            _send(dice.choice(found), signal.SIGKILL)
        elif who == "straggler":
            if not (found := self._is_there(self._tasks)):
                return False
            _stop_for(dice.choice(found), dice.uniform(*STRAGGLES_S))
        elif who == "server":
            self.kill_server(dice.choice([*self._ports]), 0)
        else:
            self.kill_server(dice.choice(self.pairs), dice.randrange(2), stalled=who == "stall")
        return True

    def _is_there(self, look: Callable[[], list[int]]) -> list[int]:
        """What it finds at last; nothing where the driver has ended meanwhile."""
        deadline = time.monotonic() + START_S
        while not (found := look()) and time.monotonic() < deadline:
            if self._driver is None or self._driver.poll() is not None:
                break
            time.sleep(0.01)
        return found

    def _writes(self) -> list[int]:
        """How many branches a batch has with each server of a sink, being written or prepared, and not decided."""
        found = []
        for name in self.sinks:
            with suppress(Error), closing(remote_manager(self.url(name), connect_s=1.0)) as asked:
                said = asked.call("drain")
                found.append(said["active"] + said["in_doubt"])
        return [*filter(None, found)]

    def speculated(self) -> int:
        """How many second attempts Spark has made at a task, as far as killed drivers had written it down."""
        lines: list[str] = []
        for path in self.events.rglob("events_*"):
            with suppress(FileNotFoundError):  # renamed, or gone, as a driver ends
                lines += path.read_text("utf-8", "replace").splitlines()
        return sum('"SparkListenerTaskStart"' in line and '"Speculative":true' in line for line in lines)

    def executors(self) -> list[int]:
        return self._of_cluster("CoarseGrainedExecutorBackend")

    def _tasks(self) -> list[int]:
        """Groups of the Python processes that read and write for an executor."""
        found = self._of_cluster("pyspark.daemon")
        with suppress(ProcessLookupError):
            return sorted({os.getpgid(pid) for pid in found} & {*found})
        return []

    def _of_cluster(self, words: str) -> list[int]:
        """Of this cluster alone: each works below the directory of its worker."""
        found = []
        for pid in run("pgrep", "-f", words).stdout.split():
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/cwd").startswith(f"{self.root}/127"):  # noqa: PTH115
                    found.append(int(pid))
        return found

    def stop(self) -> None:
        for group in (*self._cluster, *filter(None, [self._driver])):
            _kill_group(group)
        for server in self._servers.values():
            server.kill()
            server.wait()
        for pid in self.executors():
            _send(pid, signal.SIGKILL)

    def copies(self) -> list[int]:
        found: list[int] = []
        for name in self.sinks:
            with xaqueue.connect(self.url(name)) as queues:
                found += [int(message.body) for message in queues.browse("copies")]
        return sorted(found)

    def left(self) -> int:
        count = 0
        for name in self.sources:
            with xaqueue.connect(self.url(name)) as queues:
                count += sum(1 for _ in queues.browse("orders"))
        return count


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _stop_for(group: int, seconds: float) -> None:
    for number, pause_s in ((signal.SIGSTOP, seconds), (signal.SIGCONT, 0.0)):
        with suppress(ProcessLookupError):
            os.killpg(group, number)
        time.sleep(pause_s)


@contextmanager
def far(root: Path, sources: int, sinks: int) -> Iterator[Far]:
    made = Far(root, sources, sinks)
    try:
        made.start_cluster()
        yield made
    finally:
        made.stop()
