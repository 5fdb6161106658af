"""Spark's Python workers import PySpark as pip installed it, and not from the zip file that Spark puts before it.

Python keeps no compiled code of a zip file: each worker that Spark starts would compile PySpark anew, for half a second
of a core, and each streaming query starts one. So Spark is given a shim for its Python: a script in the user's cache
that drops pip's own zip files from PYTHONPATH. What they hold is in site-packages too, to the letter. Where PySpark
comes from anywhere else, or no shim can be kept, Spark is given this Python itself.
"""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import pyspark

from xaqueue.spark.java import cache_directory, write_script

_SHIM = """#!/bin/sh
set -f; IFS=:; kept=
for entry in $PYTHONPATH; do case $entry in {zips}/*.zip) ;; *) kept=$kept${{kept:+:}}$entry;; esac; done
export PYTHONPATH="$kept"; unset IFS
exec {python} "$@"
"""


def worker_python(environ: Mapping[str, str] | None = None) -> str:
    """The program to be given to Spark as PYSPARK_PYTHON: this Python, behind its shim where that can be."""
    zips = Path(pyspark.__file__).parent / "python" / "lib"
    if not _is_installed(zips.parents[2]) or not zips.is_dir():
        return sys.executable
    script = _SHIM.format(zips=shlex.quote(str(zips)), python=shlex.quote(sys.executable))
    try:
        cache = cache_directory(os.environ if environ is None else environ)
        shim = cache / f"python-{sha256(script.encode()).hexdigest()[:12]}" / "python3"
        write_script(shim, script)
    except (OSError, RuntimeError):  # a home that cannot be written, or none
        return sys.executable
    return str(shim) if os.access(shim, os.X_OK) else sys.executable


def _is_installed(directory: Path) -> bool:
    """Whether any start of this Python finds what is in the directory."""
    return any(directory == Path(sysconfig.get_path(name)) for name in ("purelib", "platlib"))
