"""A Java that only says what it is."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

FAKE = """#!/bin/sh
case "$*" in *incubator.vector*) exit {without_vector};; esac
echo {home} >&2
echo 'openjdk version "{version}" 2024-01-01' >&2
"""


def fake_java(home: Path, version: str, *, vector: bool = True) -> Path:
    """A directory whose bin/java says that it is this version, and has the vector module or not."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        FAKE.format(home=quote(f"    java.home = {home}"), version=version, without_vector=0 if vector else 1)
    )
    executable.chmod(0o755)
    return home
