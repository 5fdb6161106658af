"""What is kept of queues is read, every bit of it: files of messages, and Parquet. What is found becomes a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from xaqueue.core.model import layout
from xaqueue.core.model.layout import RANGE_BITS
from xaqueue.errors import DamagedBlock
from xaqueue.features.streams.record import archived_path
from xaqueue.lake.archive_files import KeptFiles, queues_kept
from xaqueue.lake.archive_tables import TableFile, Tables, queue_directory
from xaqueue.lake.batches import record_batches
from xaqueue.lake.columns import Rows
from xaqueue.lake.scan import chosen
from xaqueue.offline.findings import Finding, Severity

_COLUMNS = chosen(None)


def check_archive(space: str) -> Iterator[Finding]:
    """What is wrong with it, while others may be at work."""
    for queue in queues_kept(space):
        kept, tables = KeptFiles(space, queue), Tables(space, queue)
        for number in kept.ranges(with_leaving=False):
            of = kept.range(number, with_leaving=False)
            for one in of.files:
                path = f"{archived_path(layout.range_path(queue, number << RANGE_BITS))}/{one.name}"
                with_one = of._replace(files=[one])
                try:
                    for _ in record_batches(kept.found(with_one), Rows(queue, space), _COLUMNS):
                        pass
                except DamagedBlock as damage:
                    yield Finding(Severity.DAMAGE, path, str(damage).rpartition(": ")[2], space=space)
        for file in tables.files():
            path = f"{queue_directory(queue)}/day={file.day}/{file.name}"
            with suppress(FileNotFoundError):  # it became one with others
                if why := _wrong_with(tables, file):
                    yield Finding(Severity.DAMAGE, path, why, space=space)


def _wrong_with(tables: Tables, file: TableFile) -> str:
    last, days = file.after, set[str]()
    try:
        with pq.ParquetFile(tables.path(file), page_checksum_verification=True) as found:
            for batch in found.iter_batches(1_000):
                for seq in batch["seq"].to_pylist():
                    if seq <= last:
                        return f"number {seq} comes behind {last}"
                    last = seq
                days |= {time.strftime("%Y-%m-%d") for time in batch["committed_at"].to_pylist()}
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException, KeyError) as error:
        return f"cannot be read: {error}"
    if last != file.upto:
        return f"its last number is {last}, and its name says {file.upto}"
    return "" if days == {file.day} else f"has messages of {', '.join(sorted(days))}"


def write_report(findings: Sequence[Finding], report: Path) -> None:
    """In CSV or Parquet, as the ending says."""
    names = "space", "severity", "path", "problem"
    rows = [[str(getattr(one, name)).encode("utf-8", "backslashreplace") for one in findings] for name in names]
    columns = {name: pa.array(row, pa.string()) for name, row in zip(names, rows, strict=True)}
    (csv.write_csv if report.suffix == ".csv" else pq.write_table)(pa.table(columns), report)
