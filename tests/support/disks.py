"""Small disks for tests: file systems of a given size, mounted for a while, and ways to fill them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

INSIDE = "XAQUEUE_TEST_NAMESPACE"
PAGE = 4096


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[bool]:
    """Mounts at ``place`` for the block; False where that is not permitted."""
    place.mkdir(exist_ok=True)
    done = shutil.which("mount") is not None and run("mount", *options, str(place)).returncode == 0
    try:
        yield done
    finally:
        if done:
            run("umount", "-l", str(place))


@contextmanager
def mounted_image(place: Path, size_bytes: int, *make: str) -> Iterator[None]:
    """A file system in a file, made by the command ``make``; skips the test where it cannot be made or mounted."""
    image = place.with_suffix(".image")
    image.touch()
    os.truncate(image, size_bytes)
    if shutil.which(make[0]) is None or run(*make, str(image)).returncode:
        pytest.skip(f"no file system to mount: {make[0]} is missing or failed")
    try:
        with mounted(place, "-o", "loop", str(image)) as permitted:
            if not permitted:
                pytest.skip("mounting an image is not permitted here")
            yield
    finally:
        image.unlink()


def run_in_namespace(request: pytest.FixtureRequest) -> None:
    """Without the right to mount: this one test again, in a namespace of its own, where that is permitted."""
    if os.environ.get(INSIDE) or run("unshare", "-Urm", "true").returncode:
        pytest.skip("mounting is not permitted here, and namespaces are not either")
    pytest_options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts="]
    command = ["unshare", "-Urm", sys.executable, "-m", "pytest", *pytest_options, request.node.nodeid]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=request.config.rootpath,
        env={**os.environ, INSIDE: "1"},
    )
    assert ran.returncode == 0, ran.stdout
    pytest.skip("passed in a mount namespace of its own")


def fill(root: Path) -> Path:
    """Takes every page that is left; returns what to free."""
    path = root.with_name("filler")
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"f" * PAGE):
            pass
    return path


def exhaust_inodes(root: Path) -> Path:
    """Takes every inode that is left; returns what to free."""
    directory = root.with_name("fillers")
    directory.mkdir()
    with suppress(OSError):
        for number in range(10_000):
            (directory / str(number)).touch()
    return directory


def free(filler: Path) -> None:
    if filler.is_dir():
        shutil.rmtree(filler)
    else:
        filler.unlink()
