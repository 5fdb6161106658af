"""What the console has of the last hour: an hour and no more, and only of queues that are there."""

from __future__ import annotations

from typing import Any

from xaqueue.web.history import KEPT, THIN, History


def row(name: str, depth: int, came: int) -> dict[str, Any]:
    return {"name": name, "depth": depth, "counters": {"enqueued": came}}


def test_an_hour_is_kept_and_all_queues_are_shown_by_fewer_points() -> None:
    history = History()
    assert history.shown()["at"] == history.shown("orders")["at"] == []
    for point in range(KEPT + 5):
        history.add(point, [row("orders", point, 2 * point)])
    told = history.shown("orders")
    assert told["at"] == [*range(5, KEPT + 5)]
    assert told["queues"]["orders"] == {"depth": told["at"], "came": [2 * at for at in told["at"]]}
    few = history.shown()
    assert few["at"] == few["queues"]["orders"]["depth"] == told["at"][::-THIN][::-1]


def test_a_queue_that_is_new_has_fewer_points_and_one_that_is_gone_has_none() -> None:
    history = History()
    history.add(1, [row("orders", 1, 1)])
    history.add(2, [row("orders", 2, 2), row("new", 0, 0)])
    assert history.shown("new")["queues"] == {"new": {"depth": [0], "came": [0]}}
    history.add(3, [row("new", 1, 1)])
    assert history.shown()["queues"].keys() == {"new"}
    assert history.shown("orders") == {"every_s": 20.0, "at": [1.0, 2.0, 3.0], "queues": {}}
