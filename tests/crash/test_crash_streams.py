"""What no world of ``tests/sim`` loses of streams: what was consumed at a level that syncs nothing, and an archive of
which a checkpoint tells.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.careless_log import careless
from support.crash_cases import EXTREMES, trees_of
from support.crash_level import CHECKPOINTS, NONE, STRICT, open_space
from support.stream_story import BEFORE, FOUR, NEVER_KEPT, TWO, crashes, judge, play
from xaqueue.features.streams import cleanup

pytestmark = pytest.mark.usefixtures("quiet")


def raised_level() -> None:
    """The next owner has a higher level than the one that consumed, and clears; and the power goes."""
    fs, promised = play([("reserve", (TWO,)), ("consume", (TWO,))], NONE)
    promised.kept_above = NEVER_KEPT
    fs.survive_kill()
    cleanup.clear(open_space(fs, STRICT, closed_well=True))
    for tree in trees_of(fs, STRICT, EXTREMES):
        judge(tree, promised, STRICT)


def archived() -> None:
    acts = [
        *(("reserve", (FOUR,)), ("consume", (TWO, True)), ("put", (4,)), ("clear", ())),
        *(("consume", (FOUR, True)), ("clear", ())),
    ]
    for fs, promised in crashes(acts, CHECKPOINTS):
        promised.kept_above = BEFORE
        for tree in trees_of(fs, CHECKPOINTS, EXTREMES):
            judge(tree, promised, CHECKPOINTS)


@pytest.mark.parametrize(
    ("story", "kind"),
    [(raised_level, "_harden: content stream record"), (archived, "_harden_archive: all root")],
)
def test_what_is_synced_is_there(story: Callable[[], None], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    story()
    with careless(monkeypatch, kind) as care, pytest.raises(AssertionError):
        story()
    assert kind in care.asked
