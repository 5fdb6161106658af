"""A standalone cluster of processes that see none of the spaces' directories: an empty file system lies over them."""

from __future__ import annotations

import os
import random
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
import pytest

import xaqueue
from support.certificates import Authority
from support.disks import run
from support.patience import eventually
from xaqueue.features.opening import create
from xaqueue.offline.spans import QueueFiles
from xaqueue.spark import QUICK_START
from xaqueue.spark.java import java_home

HERE = Path(__file__).parent
TOKEN = "0123456789abcdef-of-the-cluster"
WORKERS = ("127.0.0.2", "127.0.0.3")
MEMORY_MB = 512
START_S = 120.0


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Far:
    """Served spaces, and a cluster that has nothing but their URLs."""

    def __init__(self, root: Path, sources: int, sinks: int) -> None:
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
        self._ports = {name: free_port() for name in (*self.sources, *self.sinks)}
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._cluster: list[subprocess.Popen[bytes]] = []
        self.log = root / "log"
        self.master = ""
        for name in self._ports:
            create(self.hidden / name, any_queue=True)
            self.serve(name)

    def url(self, name: str) -> str:
        return f"xaqs://127.0.0.1:{self._ports[name]}?token_file={self.token}&ca={self._ca}"

    def serve(self, name: str) -> None:
        """Once nobody has the port any more."""
        place, made = f"127.0.0.1:{self._ports[name]}", self._certificate
        words = ["--tls", place, "--cert", made.cert, "--key", made.key, "--token-file", self.token]
        command = [sys.executable, "-m", "xaqueue", "serve", "--space", self.hidden / name, *words]
        with self.log.open("ab") as said:
            self._servers[name] = subprocess.Popen([*map(str, command)], stdout=said, stderr=said)

    def kill_server(self, name: str) -> None:
        self._servers[name].kill()
        self._servers[name].wait()
        self.serve(name)

    def fill(self, name: str, first: int, count: int) -> None:
        with xaqueue.connect(self.url(name)) as queues:
            for begin in range(first, first + count, 500):
                queues.enqueue_many("orders", [b"%d" % one for one in range(begin, min(begin + 500, first + count))])
                queues.commit()
        files = QueueFiles(self.hidden / name, "orders")
        eventually(lambda: sum(1 for _ in files.sizes(0, files.watermark())) == count)

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
        port = free_port()
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
            sys.executable, HERE / "far_child.py", self.master, *words, self.root / "checkpoint", *options,
            SPARK_LOCAL_IP="127.0.0.1",
        )  # fmt: skip

    def copy_all(self, kills: int, dice: random.Random, pause_s: tuple[float, float], *options: str) -> list[str]:
        """Until all is copied, while somebody is killed now and then; returns who was."""
        killed: list[str] = []
        driver = self.drive(*options)
        try:
            while True:
                try:
                    if driver.wait(dice.uniform(*pause_s) if len(killed) < kills else START_S * 4) == 0:
                        return killed
                    killed.append("driver, which had failed")
                    driver = self.drive(*options)
                except subprocess.TimeoutExpired:
                    who = dice.choice(("driver", "worker", "executor", "executor", "server", "server"))
                    killed.append(who)
                    if who == "driver":
                        os.killpg(driver.pid, signal.SIGKILL)
                        driver.wait()
                        driver = self.drive(*options)
                    elif who == "worker":
                        number = dice.randrange(len(WORKERS))
                        os.killpg(self._cluster[number + 1].pid, signal.SIGKILL)
                        self._cluster[number + 1].wait()
                        self._cluster[number + 1] = self._worker(WORKERS[number])
                    elif who == "server":
                        self.kill_server(dice.choice(list(self._servers)))
                    else:
                        for pid in dice.sample(found := self.executors(), min(1, len(found))):
                            with suppress(ProcessLookupError):
                                os.kill(pid, signal.SIGKILL)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()

    def executors(self) -> list[int]:
        """Of this cluster alone: each works below the directory of its worker."""
        found = []
        for pid in run("pgrep", "-f", "CoarseGrainedExecutorBackend").stdout.split():
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/cwd").startswith(f"{self.root}/127"):  # noqa: PTH115
                    found.append(int(pid))
        return found

    def stop(self) -> None:
        for process in (*self._cluster, *self._servers.values()):
            with suppress(ProcessLookupError):
                if process in self._cluster:
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
            process.wait()
        for pid in self.executors():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

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


@contextmanager
def far(root: Path, sources: int, sinks: int) -> Iterator[Far]:
    made = Far(root, sources, sinks)
    try:
        made.start_cluster()
        yield made
    finally:
        made.stop()
