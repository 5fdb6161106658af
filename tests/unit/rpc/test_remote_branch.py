"""The client's table of a branch: every verb has a row in every state."""

from __future__ import annotations

from itertools import product

import pytest

from xaqueue.errors import ConnectionLost, OutcomeUnknown, ResourceFailed, RolledBack
from xaqueue.rpc.client.branch import TRANSITIONS, Action, BranchCall, BranchProgress, RemoteBranch
from xaqueue.xid import Xid

X = Xid(1, b"branch", b"")
LOST = ConnectionLost("gone")


def test_every_verb_in_every_state() -> None:
    states = [progress for progress in BranchProgress if progress is not BranchProgress.NONE]
    assert set(TRANSITIONS) == set(product(states, BranchCall))


def test_only_what_is_asked_changes_the_state() -> None:
    for (before, verb), (action, after) in TRANSITIONS.items():
        if action is not Action.ASK:
            assert after in (before, BranchProgress.NONE), (before, verb)


@pytest.mark.parametrize(
    ("before", "after", "refusal"),
    [
        (BranchProgress.OPEN, BranchProgress.LOST, RolledBack),
        (BranchProgress.LOST, BranchProgress.LOST, RolledBack),
        (BranchProgress.NEVER_BEGAN, BranchProgress.NEVER_BEGAN, RolledBack),
        (BranchProgress.PREPARING, BranchProgress.PREPARING, OutcomeUnknown),
        (BranchProgress.COMMITTING, BranchProgress.COMMITTING, OutcomeUnknown),
    ],
)
def test_a_lost_connection(before: BranchProgress, after: BranchProgress, refusal: type[Exception]) -> None:
    branch = RemoteBranch.of(X, before)
    branch.disconnect(LOST)
    assert branch.progress is after
    assert type(branch.refusal()) is refusal


def test_without_a_branch_nothing_is_lost() -> None:
    branch = RemoteBranch()
    branch.disconnect(LOST)
    assert vars(branch) == {}


@pytest.mark.parametrize(
    ("pipelined", "after"), [("start", BranchProgress.NEVER_BEGAN), ("enqueue", BranchProgress.LOST)]
)
def test_a_refused_pipelined_call(pipelined: str, after: BranchProgress) -> None:
    branch = RemoteBranch.of(X, BranchProgress.PREPARING)
    branch.fail(ResourceFailed("the space is fenced"), pipelined)
    assert branch.progress is after
    assert type(branch.refusal()) is ResourceFailed
