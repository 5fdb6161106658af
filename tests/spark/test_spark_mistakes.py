"""Mistakes of a data engineer: the last line that he sees says what is wrong, and what is right."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import xaqueue
from support.served import serving
from support.spark_space import FabricatedSpace
from xaqueue.features.opening import create

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

WITHIN_S = 120


class Scene:
    """A space with ten orders, one that is served, and queries over them that end when all is read."""

    def __init__(self, spark: SparkSession, root: Path, server: str) -> None:
        self.spark, self.root, self.server = spark, root, server
        self.space = FabricatedSpace(root / "spaces" / "shop")
        self.space.fill("orders", range(1, 11))

    def _given(self, options: dict[str, object]) -> dict[str, str]:
        given = {"path": self.space.root, "queue": "orders"} | options
        return {name: str(value) for name, value in given.items() if value is not None}

    def read(self, *, schema: str = "", **options: object) -> DataFrame:
        reader = self.spark.read.format("xaqueue").options(**self._given(options))
        return (reader.schema(schema) if schema else reader).load()

    def stream(self, **options: object) -> DataFrame:
        return self.spark.readStream.format("xaqueue").options(**self._given(options)).load()

    def served(self, **options: object) -> DataFrame:
        return self.stream(path=self.root / "served", server=self.server, **options)

    def run(self, frame: DataFrame, checkpoint: str = "checkpoint", sink: str = "noop", **options: object) -> None:
        writer = frame.writeStream.format(sink).option("checkpointLocation", str(self.root / checkpoint))
        query = writer.options(**{name: str(value) for name, value in options.items()}).trigger(availableNow=True)
        query.start().awaitTermination(WITHIN_S)

    def write(self, *columns: str, mode: str = "append", **options: object) -> None:
        frame = self.spark.range(3).selectExpr(*(columns or ("CAST(id AS STRING) AS body",)))
        given = {"path": self.server, "queue": "copies"} | options
        written = {name: str(value) for name, value in given.items() if value is not None}
        frame.write.format("xaqueue").options(**written).mode(mode).save()


def consumed_twice(scene: Scene) -> None:
    scene.run(scene.served(consume="delete", streamName="nightly"), "one")
    scene.run(scene.served(consume="delete"), "two")


def emptied(scene: Scene) -> None:
    """Under a stream that has read it."""
    scene.run(scene.stream())
    scene.space.publish("orders", 3)
    scene.run(scene.stream())


def another(scene: Scene) -> None:
    """Another space under the path."""
    scene.run(scene.stream())
    path = scene.space.root / "FORMAT"
    path.write_text(path.read_text().replace(" 00000000-", " 11111111-"))
    scene.run(scene.stream())


def damaged(scene: Scene) -> None:
    scene.space.path("orders", 3).write_bytes(b"damaged")
    scene.read().count()


def linked(scene: Scene) -> None:
    (scene.root / "spaces" / "link").symlink_to(scene.space.root)
    scene.read(path=scene.root / "spaces" / "*").count()


def released(scene: Scene) -> None:
    """Somebody has consumed what was to be read."""
    scene.space.keep("orders", "nightly#1", 4)
    scene.read(startingOffsets=2).count()


MISTAKES: dict[str, tuple[Callable[[Scene], object], str]] = {
    "no path": (lambda s: s.read(path=None).count(), r'option "path" is missing: the directory of the queue space'),
    "a path that is not there": (
        lambda s: s.read(path=s.root / "shop").count(),
        r"cannot read queue 'orders': .*/shop is no queue space: mend the path, or bring back the disk",
    ),
    "the directory of the spaces": (
        lambda s: s.run(s.stream(path=s.root / "spaces")),
        r".*/spaces is no queue space.* did you mean .*/spaces/\*\?",
    ),
    "a pattern that matches none": (
        lambda s: s.run(s.stream(path=s.root / "none" / "*")),
        r"no queue space matches .*/none/\*: make one, or mend the pattern",
    ),
    "a bucket": (
        lambda s: s.read(path="s3a://bucket/shop").count(),
        r'option "path" is .* Give the path, /data/space or file:///data/space',
    ),
    "one space twice": (linked, r".* are one space, whose messages would be read twice: name it once"),
    "no queue": (lambda s: s.read(queue=None).count(), r'option "queue" is missing: the name of the queue to read'),
    "a queue misspelt": (
        lambda s: s.run(s.stream(queue="order")),
        r".* has no queue 'order': did you mean 'orders'",
    ),
    "queue and subscribe": (lambda s: s.read(subscribe="orders").count(), r".* exclude each other, so give one"),
    "an option misspelt": (
        lambda s: s.read(startingOffset="latest").count(),
        r'option "startingoffset" is unknown to a reader \(did you mean startingOffsets\?\)',
    ),
    "a word that is none": (lambda s: s.run(s.stream(consume="remove")), r"option .consume. is 'remove': delete, arch"),
    "a size that is none": (lambda s: s.run(s.stream(maxBytesPerTrigger="10x")), r"option .max.* is '10x': bytes are"),
    "offsets that are none": (
        lambda s: s.read(startingOffsets="first").count(),
        r'option "startingOffsets" is \'first\': "earliest", "latest" or a commit sequence number is accepted',
    ),
    "a time without its zone": (
        lambda s: s.read(startingTimestamp="2026-11-22 10:00").count(),
        r".*: milliseconds since 1970 are accepted, or a time with its zone",
    ),
    "offsets ahead of the queue": (
        lambda s: s.read(startingOffsets=400).count(),
        r"startingOffsets 400 is ahead of queue 'orders' in .*, which ends at 10",
    ),
    "offsets of another queue": (
        lambda s: s.read(startingOffsets='{"bills": 4}').count(),
        r"option 'startingOffsets' names queue 'bills', which is not read here: orders are\. Mend the name, or",
    ),
    "an end of a stream": (
        lambda s: s.run(s.stream(endingOffsets=4)),
        r'option "endingOffsets" is for spark.read: leave it out, and end with .* by \.trigger\(availableNow=True\)',
    ),
    "a batch that consumes": (
        lambda s: s.read(consume="delete").count(),
        r"consume=delete is for spark.readStream: leave it out here, spark.read removes nothing",
    ),
    "consuming from the middle": (
        lambda s: s.run(s.served(consume="delete", startingOffsets=1)),
        r"the stream is to begin behind 1 of queue .* Begin with startingOffsets=earliest and a new checkpoint",
    ),
    "consumed already": (released, r"startingOffsets 2 of queue .* lies below 4, up to which it was consumed"),
    "two that consume, or a checkpoint deleted": (
        consumed_twice,
        r".* is reserved for stream nightly#.*`xaqueue release orders --space .*/served` ends the reservation, and "
        r"this query reads from message \d+ on",
    ),
    "the checkpoint of another query": (
        lambda s: s.run(s.served(consume="delete", checkpointLocation=s.root / "other")),
        r".*/other is not the checkpoint of stream .*: give the source the option .checkpointLocation. that the query",
    ),
    "a space emptied": (emptied, r"the stream's offset 10 is ahead of queue .* Start another checkpoint, or mend"),
    "another space under the path": (another, r".* is another space than the one that the stream has read there"),
    "a damaged file": (
        damaged,
        r".*/committed/queue=orders/.*: 7 bytes are less .* `xaqueue check orders --repair --space .*/shop` sets",
    ),
    "a column that there is not": (
        lambda s: s.read(schema="seq LONG, text STRING").count(),
        r"a message has no column 'text': \.schema\(\.\.\.\) may name",
    ),
    "a column of another type": (
        lambda s: s.read(schema="seq LONG, body STRING").count(),
        r"column 'body' is BINARY, not STRING: say so in \.schema\(\.\.\.\), and cast in the query",
    ),
    "a table of a queue": (
        lambda s: s.spark.sql(f"CREATE TABLE t USING xaqueue OPTIONS (path '{s.space.root}', queue 'orders')"),
        r"a queue is no table of a catalog.*use CREATE TEMPORARY VIEW name USING xaqueue",
    ),
    "a sink that is not there": (
        lambda s: s.write(path=s.root / "new"),
        r".*/new is no queue space: make it one with `xaqueue init .*/new`",
    ),
    "a stream's sink that is not there": (
        lambda s: s.run(s.stream().select("body"), sink="xaqueue", path=s.root / "new", queue="copies"),
        r".*/new is no queue space: mend the path, or bring back the disk",
    ),
    "no queue to write to": (
        lambda s: s.write(queue=None),
        r'the queue is missing: give option "queue", or a column of that',
    ),
    "a column that says nothing": (
        lambda s: s.write("CAST(id AS STRING) AS body", "id AS customer"),
        r"column 'customer' says nothing of a message",
    ),
    "a null for a body": (
        lambda s: s.write("CAST(NULL AS STRING) AS body"),
        r"a body is null: filter such rows, or give them an empty body with coalesce",
    ),
    "overwriting": (
        lambda s: s.write(mode="overwrite"),
        r'mode "overwrite" is refused: a queue takes new messages, so use \.mode\("append"\)',
    ),
    "a name without a number": (lambda s: s.write(txnAppId="nightly"), r'option "txnAppId" needs "txnVersion"'),
    "a token in a URL": (
        lambda s: s.read(path=s.server + "?token=secret").count(),
        r"token= in a URL is refused, since URLs are printed: use token_file=",
    ),
    "a server that nobody names": (
        lambda s: s.run(s.stream(readFrom="server")),
        r'option "readFrom" is server, and nothing says which one serves .*: give its URL as option "server", or as',
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    root = tmp_path_factory.mktemp("served") / "served"
    create(root, any_queue=True)
    with serving(root) as made:
        yield root, made.url


@pytest.fixture
def scene(spark: SparkSession, server: tuple[Path, str], tmp_path: Path) -> Scene:
    root, url = server
    (tmp_path / "served").symlink_to(root)
    with xaqueue.connect(url) as queues:
        queues.enqueue_many("orders", [b"%d" % number for number in range(5)])
        queues.commit()
    return Scene(spark, tmp_path, url)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_last_line_says_what_is_wrong(mistake: str, scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    make, wanted = MISTAKES[mistake]
    with pytest.raises(Exception) as raised:  # noqa: PT011
        make(scene)
    capsys.readouterr()
    sys.excepthook(raised.type, raised.value, raised.tb)
    seen = capsys.readouterr().err
    assert re.match(rf"xaqueue: {wanted}", seen.splitlines()[-1]), seen[-3_000:]
    assert "UnboundLocalError" not in seen
