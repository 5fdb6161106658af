"""Spaces are verified by Spark's executors: they find what processes of this machine do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.spark_space import FabricatedSpace
from xaqueue.errors import InvalidArgument
from xaqueue.offline.verify import verify as by_processes

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from xaqueue.spark.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_all_spaces_are_verified(spark: SparkSession, tmp_path: Path) -> None:
    space, other = FabricatedSpace(tmp_path / "space"), FabricatedSpace(tmp_path / "other")
    space.fill("orders", [*range(1, 31), *range(4_090, 4_100)])
    other.fill("orders", range(25, 28))
    torn = space.path("orders", 4_097)
    torn.write_bytes(torn.read_bytes()[:-1])
    spaces = [str(space.root), str(other.root)]
    report = tmp_path / "found.parquet"
    verdict = verify(spark, spaces, report)
    expected, findings = by_processes(spaces, 1)
    assert (verdict.messages, verdict.counts, verdict.wrong) == (42, expected.counts, 4)
    rows = {(found.space, found.severity.value, found.path, found.problem) for found in findings}
    assert {tuple(row) for row in spark.read.parquet(str(report)).collect()} == rows
    assert [one.severity for one in verdict.first[:4]] == ["damage", *["duplicate"] * 3]
    with pytest.raises(InvalidArgument, match="is there already"):
        verify(spark, spaces, report)
