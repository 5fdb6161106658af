"""What the benchmark of Spark says of its figures; the sources themselves are measured in test_spark_stream."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from xaqueue.bench import page_cache, spark_bars, spark_bench, spark_sources
from xaqueue.bench.environment import IN_MEMORY, look
from xaqueue.bench.spark_query import Memory, Run
from xaqueue.bench.spark_sources import Source
from xaqueue.storage.read_ahead import blocks_read


def measured(messages: int = 100_000, rows_per_s: float = 50_000.0, **more: Any) -> dict[str, Any]:
    run = Run(messages, messages / rows_per_s, [4.0, 6.0, 90.0], 2048, Memory(500.0, 700.0)).figures()
    sample = Run(1_000, 1.0, [3.0], 0).figures()
    return {"messages": messages, "runs": {"xaqueue": run, "binary_file": sample}, "ratio": 50.0, **more}


def test_a_row_says_what_was_read_and_what_it_took() -> None:
    rows = list(spark_bars.lines(measured()))
    assert rows[0] == (
        "xaqueue, keep: 50,000 messages a second, 3 batches, planning 6.0 ms, JVM 500 MB, Python 700 MB, "
        "checkpoint 2 KB"
    )
    assert rows[1].startswith("binaryFile as shipped: 1,000 messages a second (of a sample: 1,000 of 100,000), 1 batch")


def test_what_came_from_disk_is_told_apart() -> None:
    rows = list(spark_bars.lines(measured(from_disk_per_s={"xaqueue": 29_000.4, "binary_file_tuned": 4_000.0})))
    assert "from disk, xaqueue, keep: 29,000 messages a second" in rows
    assert "from disk, binaryFile tuned: 4,000 messages a second" in rows


@pytest.mark.parametrize(("ms_a_space", "told"), [(2.34, "2.3 ms a space"), (-0.1, "a space less than runs differ")])
def test_what_a_message_a_batch_and_a_space_cost(ms_a_space: float, told: str) -> None:
    scale = {"us_a_message": 9.26, "ms_a_batch": 228.4, "ms_a_space": ms_a_space}
    assert f"cost: 9.3 us a message, 228 ms a batch, {told}" in spark_bars.lines(measured(scale=scale))


def test_files_are_in_memory_or_on_disk_as_is_wanted(tmp_path: Path) -> None:
    space = tmp_path / "space"
    spark_bench.lay_out(space, "orders", 300, 5_000)
    os.sync()
    page_cache.drop(space, "orders")
    read = []
    for _ in range(2):
        before = blocks_read()
        page_cache.fill(space, "orders")
        read.append(blocks_read() - before)
    assert read[0] > 300 or look(tmp_path).file_system in IN_MEMORY
    assert read[1] < 300


@pytest.mark.parametrize(
    ("messages", "rows_per_s", "told"),
    [
        (100_000, 45_000.0, "met: messages a second, xaqueue, keep: 45,000.0, at least 45,000 is wanted"),
        (100_000, 44_000.0, "MISSED: messages a second, xaqueue, keep: 44,000.0, at least 45,000 is wanted"),
        (
            99_999,
            50_000.0,
            "what is wanted is for 100,000 messages and more: below that a query's start is most of its time",
        ),
        (1_000_000, 50_000.0, "MISSED: messages a second, xaqueue, keep: 50,000.0, at least 80,000 is wanted"),
    ],
)
def test_the_bar_of_a_source_goes_by_how_much_it_reads(messages: int, rows_per_s: float, told: str) -> None:
    assert told in spark_bars.verdicts(measured(messages, rows_per_s))


def test_every_other_bar() -> None:
    planning = {"1000": {"planning_ms": 9.9}, "1000000": {"planning_ms": 10.0}}
    found = list(
        spark_bars.verdicts(measured(ratio=19.9, ratio_tuned=10.0, planning=planning, sink={"messages_per_s": 5e3}))
    )
    assert [line.partition(":")[0] for line in found] == ["met", "MISSED", "met", "met", "MISSED", "met"]
    assert found[4] == "MISSED: ms of planning with 1,000,000 waiting: 10.0, below 10 is wanted"


def process_of(source: Source, scratch: Path) -> Run:
    return Run(os.getpid(), 1.0)


def test_each_source_keeps_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_sources, "measure", process_of)
    with spark_sources.apart() as measure:
        ran_in = [measure(Source(name, tmp_path, "orders"), tmp_path).rows for name in ("ours", "theirs", "ours")]
    assert ran_in[0] == ran_in[2]
    assert len({os.getpid(), *ran_in}) == 3
