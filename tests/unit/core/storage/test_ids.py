"""Ids are unique: in many threads, and in a forked child."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from xaqueue.core.storage.ids import fresh_id, fresh_ids
from xaqueue.message import ids_in


def test_ids_are_sixteen_bytes_and_never_the_same() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [made for batch in pool.map(lambda _: [fresh_id() for _ in range(1000)], range(16)) for made in batch]
        made += [made for batch in pool.map(fresh_ids, range(100)) for made in batch]
    assert len(set(made)) == len(made) == 16_000 + sum(range(100))
    assert {len(one) for one in made} == {16}


@pytest.mark.parametrize(("make", "first"), [(fresh_ids, 20_000), (lambda count: ids_in(bytes(16 * count)), 30_000)])
def test_many_ids_leave_nothing_behind(make: Callable[[int], object], first: int) -> None:
    """However many a call or a client's frame has: no form of so many is kept."""
    make(1)
    tracemalloc.start()
    try:
        for count in range(first, first + 20):
            make(count)
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
