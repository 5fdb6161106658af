"""``xaqueue man``: the manual pages that came with the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Annotated, Literal

import typer

import xaqueue
from xaqueue.errors import SpaceError

MACROS = re.compile(r"\b(?:Ar|Cm|Fl|Li|Pa|Va|Oo|Oc|Op|Xo|Xc|Ns|Ta|Dq|Pq|Fn|Nm|Sy|No|Em)\b ?")


def man(
    section: Annotated[
        Literal["1", "5", "7", "tm", "spark", "operating"],
        typer.Argument(
            help="1: the commands; 5: files and protocol; 7: concepts and promises. tm: transactions over "
            "databases; spark; operating: storage, snapshots, failover, log events."
        ),
    ] = "1",
) -> None:
    """Show a manual page: by man on a terminal, else as text."""
    page = _page(section)
    if sys.stdout.isatty() and shutil.which("man"):
        raise typer.Exit(subprocess.run(["man", "-l", str(page)], check=False).returncode)
    typer.echo(_text(page))


def _page(section: str) -> Path:
    name = f"xaqueue.{section}" if section.isdigit() else f"xaqueue-{section}.7"
    places = [Path(xaqueue.__file__).parent.parent / "man" / name]  # of a checkout
    with suppress(PackageNotFoundError):
        # pip's own record: share/man is elsewhere with --user, and beside a distribution's Python
        places += [Path(str(file.locate())) for file in files("xaqueue") or () if file.name == name]
    for place in places:
        if place.is_file():
            return place
    raise SpaceError(
        f"the page {name} is not there: it belongs to {places[-1]}. Install the package again: pip install "
        "--force-reinstall xaqueue"
    )


def _text(page: Path) -> str:
    for command in (["mandoc", "-T", "utf8"], ["man", "-l"]):
        if shutil.which(command[0]):
            done = subprocess.run([*command, str(page)], capture_output=True, check=False)
            if done.returncode == 0:
                return re.sub(r".\x08", "", done.stdout.decode("utf-8", "replace"))
    return _stripped(page.read_text("utf-8"))


def _stripped(source: str) -> str:
    """The source without its macros, where there is no formatter: it can be read."""
    lines = []
    for line in source.splitlines():
        if line.startswith(('.\\"', ".Bl", ".El", ".Bd", ".Ed", ".Os", ".Dd", ".Dt", ".Pp")):
            continue
        text = line
        if line.startswith("."):  # only there a macro is one: a sentence may begin with No
            text = re.sub(r"\bFl ", "-", re.sub(r"\bNm\b(?! xaqueue)", "xaqueue", line[1:]))
            text = MACROS.sub("", re.sub(r"^[A-Z][a-z]\b ?", "", text))
        lines.append(f"\n{text}\n" if line.startswith((".Sh", ".Ss")) else text.replace("\\-", "-").replace("\\&", ""))
    return "\n".join(lines)
