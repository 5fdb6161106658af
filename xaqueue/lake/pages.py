"""What has left queues, page by page, for who has not the directory: a process beside the server answers; see
``xaqueue.rpc.server.page_maker``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pyarrow as pa

from xaqueue.lake.history import kept, read
from xaqueue.lake.scan import chosen
from xaqueue.rpc.server.page_maker import serve
from xaqueue.rpc.wire import PAGE_BYTES

_root = sys.argv[1]


def span_kept(queue: str, after: int, upto: int, columns: Sequence[str]) -> tuple[int, bytes]:
    wanted, sink = chosen(["seq", *(name for name in columns if name != "seq")], archived=True), pa.BufferOutputStream()
    last, size_bytes = upto, 0
    with pa.ipc.new_stream(sink, wanted.schema) as stream:
        for table in read(kept(queue, _root, wanted), after, upto):
            stream.write_table(table)
            size_bytes += table.nbytes
            if size_bytes >= PAGE_BYTES:
                last = table["seq"][-1].as_py()
                break
    return last, sink.getvalue().to_pybytes()


if __name__ == "__main__":
    serve({"span_kept": span_kept})
