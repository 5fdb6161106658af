"""An older checkpoint is put back under a query that writes to a queue: nothing is lost, and it is said how to go on.

Spark then plans batches anew, with other messages, under numbers that the sink knows as written.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from xaqueue.cli.main import app
from xaqueue.core.owner.open import is_owned
from xaqueue.core.owner.record import read_owner
from xaqueue.features.opening import create
from xaqueue.rpc.client.server_launcher import reach
from xaqueue.xa import Flag
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

WITHIN_S = 300


class Copy:
    """A stream from one space to another, at most ten messages a batch."""

    def __init__(self, spark: SparkSession, directory: Path, consume: str) -> None:
        self._spark = spark
        self._consume = consume
        self._put = 0
        self.source, self.sink = directory / "source", directory / "sink"
        self.checkpoint, self.aside = directory / "checkpoint", directory / "aside"
        for space in (self.source, self.sink):
            create(space, any_queue=True)

    def put(self, count: int) -> None:
        with closing(reach(self.source)) as manager:
            xid = Xid(1, b"put", b"%d" % self._put)
            manager.start(xid)
            for number in range(self._put, self._put + count):
                manager.enqueue("orders", b"%d" % number)
            manager.end(xid)
            manager.commit(xid, Flag.ONEPHASE)
        self._put += count

    def run(self, checkpoint: Path | None = None, to: str = "copy", **options: str) -> None:
        """Until nothing is new."""
        rows = self._spark.readStream.format("xaqueue").options(
            path=str(self.source), queue="orders", consume=self._consume, maxMessagesPerTrigger="10", **options
        )
        query = (
            rows.load()
            .writeStream.format("xaqueue")
            .options(path=str(self.sink), checkpointLocation=str(checkpoint or self.checkpoint))
            .options(**({"queue": to} if to else {}))  # else to those that the rows name
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WITHIN_S)

    def copied(self) -> list[int]:
        with closing(reach(self.sink)) as manager:
            return sorted(int(message.body) for message in manager.browse("copy"))

    def left(self) -> int:
        with closing(reach(self.source)) as manager:
            return sum(1 for _ in manager.browse("orders"))

    def put_back(self) -> None:
        shutil.rmtree(self.checkpoint)
        self.aside.rename(self.checkpoint)


def stop(space: Path) -> None:
    """The server that Spark has started."""
    owner = read_owner(space)
    if owner is not None and is_owned(space):
        os.kill(owner.pid, signal.SIGTERM)
    deadline = time.monotonic() + WITHIN_S
    while is_owned(space):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def copy(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Copy]:
    made = Copy(spark, tmp_path, request.param)
    yield made
    for space in (made.source, made.sink):
        stop(space)


@pytest.mark.parametrize("copy", ["keep"], indirect=True)
def test_a_stream_that_keeps_what_it_reads(copy: Copy, tmp_path: Path) -> None:
    """The batch that is planned anew has the number of the last one."""
    copy.put(15)
    copy.run()
    shutil.copytree(copy.checkpoint, copy.aside)
    copy.put(3)
    copy.run()
    copy.put_back()
    copy.put(12)
    for _ in range(2):
        with pytest.raises(Exception, match="An older checkpoint was put back") as told:
            copy.run()
        assert copy.copied() == list(range(18))
    starts = re.search(r"startingOffsets=(\S+) ", str(told.value))
    assert starts is not None
    copy.run(tmp_path / "another", startingOffsets=starts[1])
    assert (copy.copied(), copy.left()) == (list(range(30)), 30)


@pytest.mark.parametrize("copy", ["delete"], indirect=True)
def test_a_stream_that_consumes_what_it_reads(copy: Copy, tmp_path: Path) -> None:
    """The source refuses first; who tells it to go on with what there is meets the sink, which has more behind it."""
    copy.put(15)
    copy.run()
    shutil.copytree(copy.checkpoint, copy.aside)
    for _ in range(2):
        copy.put(3)
        copy.run()
    copy.put_back()
    copy.put(12)
    with pytest.raises(Exception, match="is consumed to 21"):
        copy.run()
    with pytest.raises(Exception, match=r"batch \d .* is refused .* up to batch \d already") as told:
        copy.run(failOnDataLoss="false")
    assert (copy.copied(), copy.left()) == (list(range(21)), 12)
    commands = re.findall(r"`xaqueue (release [^`]*)`", str(told.value))
    assert commands[:1] == [f"release orders --through 21 --space {copy.source}"]
    assert CliRunner().invoke(app, shlex.split(commands[0])).exit_code == 0
    copy.run(tmp_path / "another")
    assert (copy.copied(), copy.left()) == (list(range(33)), 0)


@pytest.mark.parametrize("copy", ["keep"], indirect=True)
@pytest.mark.parametrize("to", ["orders", ""], ids=["option", "column"])
def test_a_queue_is_not_copied_onto_itself(copy: Copy, to: str) -> None:
    copy.put(3)
    copy.sink = copy.source
    with pytest.raises(Exception, match="is read and written by one query"):
        copy.run(to=to)
    assert copy.left() == 3
