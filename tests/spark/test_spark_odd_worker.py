"""One machine of a cluster sees something else under the spaces' paths: it is refused by name, and nothing is lost."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from socket import gethostname

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyspark

import xaqueue
from support.disks import run
from support.pair import free_ports
from support.served import ServerThread, serving
from support.spark_space import FabricatedSpace
from xaqueue.features.opening import create
from xaqueue.spark import QUICK_START
from xaqueue.spark.java import java_home

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.xdist_group("spark-kill")]

CHILD = Path(__file__).parents[1] / "support" / "odd_child.py"
NOBODY = 65_534
BEFORE, COUNT = 40, 100
WITHIN_S = 500

REFUSED = {
    "wrong": r"sees another space, {other}, than the space {id} that the driver sees as {path}",
    "older": r"queue 'orders' of {path} as .* sees it is consumed to 0 and not reserved for stream ",
    "empty": r"does not see the space {id} that the driver sees as {path}",
    "user": r"may not read the space {path}, as the driver does .*: run executors as the driver's user, or let a group",
}


class Cluster:
    """A master, and workers as processes."""

    def __init__(self, root: Path) -> None:
        self._root, self._bin = root, Path(pyspark.__file__).parent / "bin"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = f"spark://127.0.0.1:{free_ports(1)[0]}"
        host, port = self.master.removeprefix("spark://").split(":")
        self._start("", "Master", "--host", host, "--port", port)

    def worker(self, host: str, before: str = "") -> subprocess.Popen[bytes]:
        """before: done in a mount namespace of its own, as a user who is root there and nowhere else."""
        given = ("--host", host, "--cores", "1", "--memory", "512m", "--work-dir", self._root / host)
        return self._start(before, "Worker", self.master, *given)

    def _start(self, before: str, name: str, *words: object) -> subprocess.Popen[bytes]:
        command = [
            self._bin / "spark-class",
            f"org.apache.spark.deploy.{name.lower()}.{name}",
            *words,
            "--webui-port",
            0,
        ]
        line = shlex.join(map(str, command))
        quick = {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
            "SPARK_HOME": str(self._bin.parent),
        }
        env = os.environ | quick | {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable}
        words = ("unshare", "-Urm", "sh", "-c", f"{before} exec {line}") if before else ("sh", "-c", f"exec {line}")
        with (self._root / "log").open("ab") as log:
            made = subprocess.Popen([*map(str, words)], stdout=log, stderr=log, env=env, start_new_session=True)
        self._processes.append(made)
        return made

    def drive(self, executors: int, cases: dict[str, dict[str, str]]) -> dict[str, dict[str, object]]:
        """How each query ended."""
        words = [sys.executable, CHILD, self.master, executors, json.dumps(cases)]
        env = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
        with (self._root / "log").open("ab") as log:
            done = subprocess.run(
                [*map(str, words)], stdout=subprocess.PIPE, stderr=log, env=env, timeout=WITHIN_S, check=True
            )
        return dict(json.loads(done.stdout))

    def stop(self) -> None:
        for process in self._processes:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """With its executors."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if run("unshare", "-Urm", "true").returncode or os.geteuid():
        pytest.skip("mounting is not permitted here, and namespaces are not either")
    made = Cluster(tmp_path)
    yield made
    made.stop()


def put(path: Path, first: int, upto: int) -> None:
    with xaqueue.connect(path) as queues:
        queues.enqueue_many("orders", [b"%03d" % number for number in range(first, upto)])


def left(server: ServerThread) -> int:
    with xaqueue.connect(server.url) as queues:
        return sum(1 for _ in queues.browse("orders"))


def id_of(path: Path) -> str:
    return (path / "FORMAT").read_text().split()[3][:8]


def test_a_machine_that_sees_something_else_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    spaces = {name: tmp_path / name for name in ("wrong", "older", "empty", "other")}
    for path in spaces.values():
        create(path, any_queue=True)
        put(path, 0, BEFORE)
    shutil.copytree(spaces["older"], tmp_path / "copy")
    put(spaces["other"], BEFORE, 2 * COUNT)
    for name in ("wrong", "older", "empty"):
        put(spaces[name], BEFORE, COUNT)
    users = FabricatedSpace(tmp_path / "user")
    for seq in range(COUNT):
        users.put("orders", seq + 1, b"%03d" % seq)
    users.publish("orders", COUNT)
    for one in (users.root, *users.root.rglob("*")):
        os.chown(one, NOBODY, NOBODY)
    users.root.chmod(0o700)

    mounts = (
        ("--bind", spaces["other"], spaces["wrong"]),
        ("--bind", tmp_path / "copy", spaces["older"]),
        ("-t", "tmpfs", "none", spaces["empty"]),
    )
    mounted = "".join(shlex.join(["mount", *map(str, words)]) + " && " for words in mounts)
    with ExitStack() as stack:
        servers = {name: stack.enter_context(serving(spaces[name])) for name in ("wrong", "older", "empty")}
        cases = {
            name: {
                "path": str(tmp_path / name),
                "to": str(tmp_path / "to" / name),
                "checkpoint": f"{tmp_path}/c/{name}",
            }
            | ({"server": servers[name].url, "consume": "delete"} if name in servers else {})
            for name in REFUSED
        }
        cluster.worker("127.0.0.2")
        odd = cluster.worker("127.0.0.3", mounted)
        found = cluster.drive(2, cases)
        for name, text in REFUSED.items():
            path = tmp_path / name
            wanted = text.format(path=path, id=id_of(path), other=id_of(spaces["other"]))
            why = str(found[name]["why"])
            assert re.search(wanted, why), (name, why)
            assert gethostname() in why
            assert found[name]["rows"] == []
        assert {name: left(server) for name, server in servers.items()} == dict.fromkeys(servers, COUNT)
        kill(odd)
        cluster.worker("127.0.0.4")
        found = cluster.drive(2, cases)
        everything = [f"{number:03}" for number in range(COUNT)]
        assert {name: one["rows"] for name, one in found.items()} == dict.fromkeys(cases, everything)
