"""The guide does what it shows: its sessions are typed into a shell, its code is that of examples, the site builds.

A block of code in a page is one of these:

    ```console              commands behind "$ " and what they print; "..." stands for anything, alone for lines
    ```python title="f.py"  a file (of any kind) that is there for the commands below it
    ```python               some lines of a file of examples/, as they stand there
    ```text                 a picture, or what is no command and no code
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support import ROOT
from support.chromium import browsing, expect, looking
from xaqueue.cli.main import app
from xaqueue.core.model.branch import TRANSITIONS, Call, State
from xaqueue.xa import Code

GUIDE = ROOT / "man" / "guide"
PAGES = sorted(GUIDE.glob("*.md"))
FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PATIENCE_S = 60.0
DONE = "--done--"
BY_HAND = ("python3 -m venv", "pip install", "sudo ", "docker ", "kubectl ")
"""What begins so is not typed: it is for the reader's machine."""
NEEDS = {"asyncio": "aiosqlite", "migrating": "persistqueue", "start-data": "pyarrow"}
NOISE = re.compile(r"^bash: line \d+: +\d+ (Killed|Terminated)|is on tmpfs, which is memory")
"""What an interactive shell says otherwise, and what is so where the tests are."""


def fences(page: Path) -> list[tuple[str, str, str]]:
    """Kind, title and text of each block."""
    return [(found[1], found[2] or "", found[3]) for found in FENCE.finditer(page.read_text())]


def with_sessions() -> list[str]:
    """That of the lake needs a Java, and has a test of its own."""
    return [page.stem for page in PAGES if page.stem != "lake" and any(kind == "console" for kind, *_ in fences(page))]


class Shell:
    """One bash for a page; what its commands print comes in as it is printed."""

    def __init__(self, directory: Path) -> None:
        for name, words in (("xaqueue", "-m xaqueue"), ("python", "-W error")):
            script = directory / "bin" / name
            script.parent.mkdir(exist_ok=True)
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            script.chmod(0o755)
        (work := directory / "work").mkdir()
        (work / "examples").symlink_to(ROOT / "examples")
        self.work = work
        environment = {name: value for name, value in os.environ.items() if not name.startswith("XAQUEUE_")}
        environment |= {"PATH": f"{directory}/bin:{os.environ['PATH']}", "COLUMNS": "120"}
        self.process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=work,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.printed: list[str] = []
        self.looked_at = 0
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not NOISE.search(line):
                self.printed.append(line)

    def paste(self, session: list[tuple[str, str]]) -> None:
        """All commands at once, as a reader does; what runs on in the background may print what it should later."""
        assert self.process.stdin is not None
        typed = "".join(f"{command}\necho; echo {DONE}\n" for command, _ in session)
        print(typed, end="", file=self.process.stdin, flush=True)
        until = time.monotonic() + PATIENCE_S
        wrong = "nothing yet"
        while wrong:
            assert time.monotonic() < until, wrong
            time.sleep(0.01)
            upto = len(self.printed)
            wrong = wrong_of(session, "".join(self.printed[self.looked_at : upto]).split(f"\n{DONE}\n"))
        self.looked_at = upto

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("kill $(jobs -p) 2>/dev/null; wait\nexit\n")
        self.process.stdin.close()
        self.process.wait(PATIENCE_S)
        self.reader.join(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


def wrong_of(session: list[tuple[str, str]], printed: list[str]) -> str:
    """What has not come yet; of the background it may be among what other commands print."""
    if len(printed) <= len(session):
        return f"$ {session[len(printed) - 1][0]}\nhas not ended, and printed:\n{printed[-1]}"
    late = [line for command, expected in session if command.endswith("&") for line in lines_of(expected)]
    for (command, expected), segment in zip([*session, ("&", "")], printed, strict=True):
        own = []
        for line in lines_of(segment):
            of_background = next((one for one in late if matches(line, one)), None)
            own.append(line) if of_background is None else late.remove(of_background)
        if not matches("\n".join(own), "" if command.endswith("&") else expected):
            return f"$ {command}\nprinted:\n{segment}\nexpected:\n{expected}"
    return f"in the background nobody printed {late}" if late else ""


def matches(printed: str, expected: str) -> bool:
    wanted = [
        "(?:.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n" for line in lines_of(expected)
    ]
    return re.fullmatch("".join(wanted), "".join(f"{line}\n" for line in lines_of(printed))) is not None


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    opened = Shell(tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize("page", with_sessions())
def test_a_session_prints_what_its_page_shows(page: str, shell: Shell) -> None:
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    typed = 0
    for kind, title, text in fences(GUIDE / f"{page}.md"):
        if title:
            (shell.work / title).write_text(text)
        elif kind == "console":
            session = re.findall(r"^\$ (.*(?:\\\n.*)*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE)
            session = [one for one in session if not one[0].startswith(BY_HAND)]
            shell.paste(session)
            typed += len(session)
    assert typed > 0


def test_a_queue_becomes_a_table_as_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of files, a Delta table and an Iceberg table, and then the archive."""
    import pyarrow.dataset as ds

    monkeypatch.chdir(tmp_path)
    for place in ("data", "lake"):
        Path(place).mkdir()
    for kind, _, text in fences(GUIDE / "lake.md"):
        for line in text.splitlines() if kind == "console" else ():
            done = CliRunner().invoke(app, shlex.split(line.removeprefix("$ xaqueue ")))
            assert done.exit_code == 0, done.output
    rows = ds.dataset("lake/orders").to_table().to_pylist()
    assert [(row["item"], row["count"]) for row in rows] == [("apples", 2), ("pears", 3)]
    assert ds.dataset("lake/orders/_dead_letters").count_rows() == 1


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    examples = ["\n".join(bare(path.read_text())) for path in (ROOT / "examples").rglob("*") if is_text(path)]
    wrong = [
        f"{page.name}: {text[:60]!r}"
        for page in PAGES
        for kind, title, text in fences(page)
        if kind not in ("console", "text") and not title
        if not any("\n".join(bare(text)) in example for example in examples)
    ]
    assert wrong == []
    assert all(page.read_text().count("\n```") == 2 * len(fences(page)) for page in PAGES)


def test_the_figures_are_those_that_were_measured() -> None:
    told = (GUIDE / "performance.md").read_text()
    engine, ledger = (
        json.loads((GUIDE / "figures" / f"{name}.json").read_text())["results"] for name in ("engine", "ledger")
    )
    rows = [[f"`{row['flags']}`", row["threads"], row["operation"], row["per_s"], row["bare_per_s"]] for row in engine]
    rows += [[row["way"], row["threads"], row["transaction"], row["per_s"]] for row in ledger]
    latencies = [(row["p50_us"], row["p99_us"]) for row in (*engine, *ledger)]
    for row, latency in zip(rows, latencies, strict=True):
        cells = [f"{cell:,.0f}" if isinstance(cell, float) else str(cell) for cell in (*row, *latency)]
        assert f"| {' | '.join(cells)} |\n" in told
    assert told.count("\n| `") + told.count(" | produce | ") + told.count(" | consume | ") == len(rows)


def test_what_a_state_takes_is_what_the_table_says() -> None:
    """Of states.md: the calls that get XA_OK there."""
    told = (GUIDE / "states.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| [^|]+ \| ([^|]+) \| [^|]+ \|$", told, re.MULTILINE)
    taken = {state.value: names(call.value for call in Call if answer(call, state) is Code.XA_OK) for state in State}
    assert len(rows) > 8
    assert {state: names(re.split(", ", calls.strip())) for state, calls in rows} == {
        state: taken[state] for state, _ in rows
    }


def answer(call: Call, state: State) -> Code | None:
    return TRANSITIONS.get((call, state), (None, state))[0]


def names(calls: Iterable[str]) -> set[str]:
    """``end`` is three calls, ``commit(ONEPHASE)`` one that has a flag."""
    return {"end" if call.startswith("end") else call.removesuffix("()") for call in calls}


def is_text(path: Path) -> bool:
    return path.is_file() and path.suffix not in (".png", ".pyc")


def bare(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines() if line.strip()]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages, links, anchors and names of the API: mkdocs looks at them all. With its -q it would count no warning."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    place = tmp_path_factory.mktemp("guide") / "site"
    words = ["build", "--strict", "-f", str(ROOT / "man" / "mkdocs.yml"), "-d", str(place)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", *words], env=quiet, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.mark.xdist_group("site")
def test_the_site_builds_without_a_warning(site: Path) -> None:
    pages = {path.name: path.read_text() for path in site.glob("*.html")}
    page = pages["api.html"]
    assert all(f'id="xaqueue.Connection.{name}"' in page for name in ("enqueue", "dequeue", "tpc_prepare", "receive"))
    assert page.count(">Parameters:<") > 10
    assert [
        name for name, text in pages.items() if name.startswith("api") and re.search(r"\bRaises [A-Z`]", text)
    ] == []
    # The search works from file://, without the internet.
    assert (site / "search" / "search_index.js").is_file()
    assert all('<script src="offline.js">' in text or name == "404.html" for name, text in pages.items())
    assert [name for name, text in pages.items() if re.search(r'(src|<link[^>]* href)="https?://', text)] == []


@pytest.mark.xdist_group("site")
def test_a_word_is_found_from_file_without_the_internet(site: Path) -> None:
    with browsing() as browser, looking(browser, (site / "console.html").as_uri()) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.locator("[data-md-component=search-query]").press_sequentially("savepoint")  # it listens to keys
        found = page.locator(".md-search-result__item a")
        expect(page.locator(".md-search-result__list")).to_contain_text(re.compile("savepoint", re.IGNORECASE))
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
        # Each picture of this page is there, and none is wider than the screen of a telephone.
        page.set_viewport_size({"width": 390, "height": 844})
        pictures = page.evaluate(
            "[...document.images].map((one) => [one.naturalWidth, one.getBoundingClientRect().right])"
        )
        assert len(pictures) > 20
        assert all(width > 0 and right <= 390 for width, right in pictures)
        page.goto(str(found.first.get_attribute("href")))
        expect(page.locator("article")).to_contain_text(re.compile("savepoint", re.IGNORECASE))
