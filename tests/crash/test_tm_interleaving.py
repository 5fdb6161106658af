"""Every interleaving of votes, failures and crashes of three participants ends the same for all of them."""

from __future__ import annotations

import pytest

from support.voting_world import LAST, NAMES, judged, vote


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("last", [None, LAST])
@pytest.mark.parametrize("is_parallel", [True, False])
def test_every_interleaving_of_three(last: str | None, tells: bool, is_parallel: bool) -> None:
    assert judged(lambda choices: vote(choices, NAMES, last, tells, crashes=True, is_parallel=is_parallel)) > 5000
