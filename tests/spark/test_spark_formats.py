"""A stream that an earlier version has begun goes on: its checkpoint, its reservation, what its sink remembers."""

from __future__ import annotations

import os
import signal
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import xaqueue
from support.writing import WRITTEN, run_stream
from xaqueue.core.owner.open import is_owned
from xaqueue.core.owner.record import read_owner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.mark.parametrize("version", sorted(path.name for path in WRITTEN.glob("*.tar.gz")))
def test_a_stream_of_then_goes_on(version: str, spark: SparkSession, tmp_path: Path) -> None:
    """Each message is there once, and none is left. Spark's files name the place where they were written."""
    with tarfile.open(WRITTEN / version) as archive:
        archive.extractall(tmp_path, filter="data")
    for path in (tmp_path / "checkpoint").rglob(".*.crc"):
        path.unlink()
    for path in (tmp_path / "checkpoint" / "offsets").iterdir():
        path.write_text(path.read_text().replace((tmp_path / "place").read_text(), str(tmp_path)))
    try:
        run_stream(spark, tmp_path)
        bodies = {
            space: [message.body for message in xaqueue.connect(tmp_path / space).browse("orders")]
            for space in ("streamed", "sunk")
        }
    finally:
        for space in ("streamed", "sunk"):
            owner = read_owner(tmp_path / space)  # else that of then, whose number is somebody's now
            if owner is not None and is_owned(tmp_path / space) and owner.pid != os.getpid():
                os.kill(owner.pid, signal.SIGTERM)
    assert bodies == {"streamed": [], "sunk": [b"%d" % number for number in range(23)]}
