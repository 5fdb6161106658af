"""Ids are unique: in many threads, and in a forked child."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from xaqueue.core.storage.ids import fresh_id, fresh_ids


def test_ids_are_sixteen_bytes_and_never_the_same() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [made for batch in pool.map(lambda _: [fresh_id() for _ in range(1000)], range(16)) for made in batch]
        made += [made for batch in pool.map(fresh_ids, range(100)) for made in batch]
    assert len(set(made)) == len(made) == 16_000 + sum(range(100))
    assert {len(one) for one in made} == {16}
