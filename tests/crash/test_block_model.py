"""The rules of blocks of messages hold in every order, and each of them is needed (``support.block_model``)."""

from __future__ import annotations

from typing import Any

import pytest

from support.block_model import Fault, Rules, State, explore

RUN, ONE, OTHER, MIXED = 0b0011, 0b0010, 0b0100, 0b1001
"""Two messages of the block, one, and what the other branch takes; one of the block and the one with its own file."""
BEGUN: dict[str, Any] = {"gone": (OTHER,), "shown": OTHER, "planned": OTHER}
"""The third was taken before: two that take one each end the block."""
BESIDE: dict[str, dict[str, Any]] = {
    "alone": {},
    "no room": {"failures": 1},
    "damage": {"damages": 1},
    "hollowing": {"hollows": 1},
    "reader": {"reads": 1},
    "snapshot": {"snapshots": 1},
}


def rules(name: str, takes: tuple[int, int], broken: str = "", **beside: Any) -> Rules:
    """name: of a level. Below one that syncs names only a kill is survived, and with a journal all is lost or kept."""
    begun = BEGUN if takes == (0b0001, ONE) else {}
    return Rules(
        name == "JOURNAL",
        takes,
        survives_power=name != "FSYNC",
        tears=name == "torn",
        broken=broken,
        start=State()._replace(**(begun | beside)),
    )


@pytest.mark.parametrize("takes", [(0b0001, ONE), (RUN, OTHER), (MIXED, ONE)], ids=["ones", "run", "mixed"])
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("level", ["FSYNC;DSYNC", "FSYNC", "torn"])
def test_no_promise_is_broken(level: str, beside: str, takes: tuple[int, int]) -> None:
    """torn: where a loss of power may leave any of the bits that were written and not synced."""
    assert explore(rules(level, takes, crashes=2, **BESIDE[beside])) > 1000


@pytest.mark.parametrize(
    ("takes", "beside"),
    [*(((RUN, OTHER), name) for name in BESIDE if name != "reader"), ((0b0001, ONE), "reader")],
    ids=str,
)
def test_no_promise_is_broken_with_a_journal(takes: tuple[int, int], beside: str) -> None:
    assert explore(rules("JOURNAL", takes, **BESIDE[beside])) > 1000


@pytest.mark.parametrize(
    ("broken", "level", "takes", "beside"),
    [
        ("own bits", "FSYNC;DSYNC", (0b0001, ONE), {}),
        ("own bits", "JOURNAL", (RUN, OTHER), {}),
        ("bits kept", "FSYNC;DSYNC", (0b0001, ONE), {"failures": 1}),
        ("bits kept", "JOURNAL", (RUN, OTHER), {"failures": 1}),
        ("bits back late", "FSYNC;DSYNC", (0b0001, ONE), {"failures": 1}),
        ("bits back late", "JOURNAL", (RUN, OTHER), {"failures": 1}),
        ("bits early", "FSYNC;DSYNC", (RUN, OTHER), {}),
        ("bits of the plan", "FSYNC;DSYNC", (RUN, OTHER), {}),
        ("gone first", "FSYNC;DSYNC", (RUN, OTHER), {}),
        ("gone first", "FSYNC", (RUN, OTHER), {}),
        ("gone first", "JOURNAL", (RUN, OTHER), {"reads": 1}),
        ("block read first", "FSYNC;DSYNC", (RUN, OTHER), {"reads": 1}),
        ("block read first", "JOURNAL", (0b0001, ONE), {"reads": 1}),
        ("no branch block", "FSYNC;DSYNC", (MIXED, ONE), {}),
        ("no branch block", "FSYNC", (MIXED, ONE), {}),
        ("no branch block", "torn", (RUN, OTHER), {}),
        ("gone linked", "FSYNC;DSYNC", (RUN, OTHER), {"snapshots": 1}),
        ("hollowed early", "JOURNAL", (RUN, OTHER), {"hollows": 1, "failures": 1}),
        ("each record replayed", "JOURNAL", (MIXED, ONE), {"reads": 1}),
        ("order of the first", "JOURNAL", (0b0001, ONE), {"reads": 1}),
        ("trusts pages", "FSYNC;DSYNC", (0b0001, ONE), {"crashes": 2}),
    ],
)
def test_each_rule_is_needed(broken: str, level: str, takes: tuple[int, int], beside: dict[str, int]) -> None:
    with pytest.raises(Fault):
        explore(rules(level, takes, broken, **beside))


def test_a_run_of_one_block_needs_its_branch_block_only_where_a_sector_may_be_torn() -> None:
    """Its bits are written at once; several files, or blocks, are not."""
    assert explore(rules("FSYNC;DSYNC", (RUN, OTHER), "no branch block", crashes=2)) > 1000
