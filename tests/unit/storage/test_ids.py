"""Ids are unique: in many threads, and in a forked child."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from xaqueue.storage.ids import fresh_id


def test_ids_are_sixteen_bytes_and_never_the_same() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [made for batch in pool.map(lambda _: [fresh_id() for _ in range(1000)], range(16)) for made in batch]
    assert len(set(made)) == len(made) == 16_000
    assert {len(one) for one in made} == {16}


def test_a_forked_child_has_its_own() -> None:
    fresh_id()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, b"".join(fresh_id() for _ in range(100)))
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    data = os.read(read, 1 << 16)
    os.close(read)
    theirs = {data[at : at + 16] for at in range(0, len(data), 16)}
    assert len(theirs) == 100
    assert not theirs & {fresh_id() for _ in range(1000)}
