"""A transaction costs what the table of ARCHITECTURE.md says, which ``python -m bench.steps`` makes anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.steps import VERSION, Column, Interpreter, Steps, read
from bench.transactions import PLACES, embedded, fill, play, rows

PAGE = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()
DEARER, CHEAPER = 1.03, 0.85
"""More is wrong; what is that much less is told, so that it cannot come back."""
POSTGRES = "PostgreSQL's row and a message"
PLAYS = 4
"""A busy machine adds some to one of them or the other."""


def wrong_in(found: Mapping[Column, Steps], page: str = PAGE) -> list[str]:
    """What the page does not say. Another version of Python has other bytecodes, and fewer calls at most; psycopg is
    in Python, too, and has versions of its own.
    """
    version, told = read(page)
    wrong = []
    for (name, verb), counted in found.items():
        least, bytecodes, calls = CHEAPER if version == VERSION else 0.0, *told[name, verb]
        if not least * calls <= counted.calls <= DEARER * calls:
            wrong.append(f"{name}, {verb}: {counted.calls} calls, not {calls}")
        if version == VERSION and verb != POSTGRES and not least <= counted.bytecodes / bytecodes <= DEARER:
            wrong.append(f"{name}, {verb}: {counted.bytecodes} bytecodes, not {bytecodes}")
    return wrong


@pytest.mark.parametrize(
    ("counted", "wrong"),
    [
        *((Steps(4000, 75), 0), (Steps(4120, 77), 0), (Steps(3400, 64), 0)),
        *((Steps(4121, 75), 1), (Steps(4000, 78), 1), (Steps(3399, 75), 1), (Steps(4000, 63), 1), (Steps(5000, 90), 2)),
    ],
)
def test_what_is_not_told_is_wrong(counted: Steps, wrong: int) -> None:
    page = f"| Python {VERSION}: bytecodes / calls / system calls / switches | here | there |\n|---|---|---|\n"
    assert len(wrong_in({("here", "add"): counted}, f"{page}| add | 4,000 / 75 / 12 / 0 | |\n")) == wrong


def test_more_calls_are_wrong_in_any_python() -> None:
    page = (
        "| Python 2.7: bytecodes / calls / system calls / switches | here |\n|---|---|\n| add | 4,000 / 75 / 1 / 0 |\n"
    )
    assert wrong_in({("here", "add"): Steps(9999, 10)}, page) == []
    assert wrong_in({("here", "add"): Steps(1, 78)}, page) == ["here, add: 78 calls, not 75.0"]


def test_every_transaction_costs_what_is_told(tmp_path: Path) -> None:
    pytest.importorskip("uvloop", reason="uvloop is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    with Interpreter() as ruler:
        for number in range(PLAYS):
            play(ruler, tmp_path / f"{number}", PLACES)
            wrong = wrong_in(ruler.found)
            if not wrong:
                break
    assert wrong == []
    assert {verb for _, verb in read(PAGE)[1].keys() - ruler.found.keys()} == {POSTGRES}


def test_a_row_in_postgresql_costs_what_is_told(tmp_path: Path, dsn: str) -> None:
    fill(tmp_path / "space")
    with Interpreter() as ruler, embedded(tmp_path / "space", "JOURNAL") as scene:
        for verb in rows(scene, tmp_path / "rows", dsn):
            ruler.measure(scene, verb)
    assert wrong_in(ruler.found) == []
    assert {verb for _, verb in ruler.found} == {POSTGRES, "SQLite's row and a message"}
