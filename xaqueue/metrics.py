"""What a space tells Prometheus, by prometheus_client: ``pip install 'xaqueue[metrics]'``.

    registry = xaqueue.metrics.registry(conn)  # a CollectorRegistry, to be mounted or pushed as any other
    prometheus_client.start_http_server(9100, registry=registry)

Each scrape asks the owner once. ``xaqueue serve --http`` has the same under /metrics, and ``xaqueue metrics`` writes it
for a text file collector. The guide's page on monitoring lists all names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from xaqueue.connection import Connection
from xaqueue.core.engine.state import Space
from xaqueue.core.storage.layers import SYNC_STEPS_S
from xaqueue.endpoint import is_url, parse
from xaqueue.errors import Error, InvalidArgument
from xaqueue.features.replica.replicated import REPLICA, SOURCE, ReplicationStatus
from xaqueue.offline import inspect
from xaqueue.offline.inspect_branches import in_doubt
from xaqueue.rpc.client import reach
from xaqueue.rpc.client.manager import RemoteManager, remote_manager
from xaqueue.rpc.methods.meters import Metrics, QueueRow, metrics_in, metrics_of
from xaqueue.rpc.wire import decode

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

Ask = Callable[[], dict[str, Any]]
"""Asks the owner; raises Error where there is none, or it does not answer."""
MISSING = "metrics need prometheus_client: pip install 'xaqueue[metrics]'"
ANSWER_S = 10.0
"""As long as Prometheus waits for a scrape."""
US = 1_000_000


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / US


STATES = ("recovering", "ready", "read-only", "draining", "fenced")
OF_STATE = ("ready", "delayed", "locked", "in_doubt", "exhausted")
"""States of messages, as they stand in a row of a queue."""
OF_SPACE: tuple[tuple[str, str, str, Callable[[Metrics], float | None]], ...] = (
    ("epoch", "gauge", "Number of the owner of now", lambda m: m.epoch),
    ("owner_start_timestamp_seconds", "gauge", "When the owner of now began", lambda m: _seconds(m.began_at or None)),
    ("last_fence_timestamp_seconds", "gauge", "When an earlier owner was fenced; 0: none", lambda m: m.fenced_at / US),
    ("sessions", "gauge", "Sessions of a server", lambda m: m.sessions),
    ("waiting_sessions", "gauge", "Sessions that wait for a message", lambda m: m.waiting),
    ("active_branches", "gauge", "Branches that are not prepared", lambda m: m.active),
    ("indoubt_branches", "gauge", "Branches in doubt", lambda m: m.in_doubt),
    ("indoubt_damaged_branches", "gauge", "Branches in doubt that have lost something", lambda m: m.damaged),
    ("indoubt_oldest_seconds", "gauge", "Age of the oldest branch in doubt", lambda m: _seconds(m.in_doubt_age)),
    ("free_bytes", "gauge", "Free on the file system", lambda m: m.free_bytes),
    ("free_inodes", "gauge", "Free inodes, where it counts them", lambda m: m.free_inodes),
    ("disk_low", "gauge", "1: enqueues are refused for want of room", lambda m: m.is_low),
    ("quarantined_files", "gauge", "Files in quarantine/", lambda m: m.quarantined),
    ("rounds", "counter", "Rounds of group commit", lambda m: m.rounds),
    ("steps", "counter", "Steps that these have hardened", lambda m: m.steps),
    ("journal_position_bytes", "gauge", "LSN of the next record", lambda m: m.journal_end),
    ("journal_behind_bytes", "gauge", "Of the journal, not in the directories yet", lambda m: m.behind_bytes),
    ("reads_from_memory", "counter", "Reads that memory has answered", lambda m: m.hits),
    ("reads_from_files", "counter", "Reads that it has not", lambda m: m.misses),
)
"""Name, type, meaning, and the figure; None where nobody knows it now. Of a counter the name gets ``_total``."""
OF_REPLICATION: tuple[tuple[str, str, str, Callable[[ReplicationStatus], float]], ...] = (
    ("replica_lag_bytes", "gauge", "Of the journal, which a replica does not have", lambda r: r.lag_bytes),
    ("replica_lag_seconds", "gauge", "How old what it has is", lambda r: r.lag_s),
    ("replica_connected", "gauge", "1: heard of just now", lambda r: r.connected),
    ("replica_waits", "gauge", "1: commits wait for a replica", lambda r: r.waits),
)
OF_QUEUE = (
    ("queue_oldest_seconds", "gauge", "Age of the oldest message that is ready", 6),
    ("queue_bytes", "gauge", "Of its messages' files", 7),
    ("queue_consumers", "gauge", "Sessions that wait for a message of it", 8),
    ("messages_enqueued", "counter", "Messages that came", 13),
    ("messages_dequeued", "counter", "Messages that were consumed", 14),
    ("messages_redelivered", "counter", "Deliveries of which one had failed before", 15),
    ("messages_expired", "counter", "Messages that nobody took in time", 16),
    ("messages_moved", "counter", "Messages that somebody moved to another queue", 19),
)
"""Likewise, with the place in a row of ``meters.QueueRow``."""
OF_REASON = (("tries", 17), ("rejected", 18))
"""Why a message left for a failure queue."""
OF_FEW = (
    ("queue_stuck", "1: messages that are to leave it cannot be moved; absent else", 9),
    ("queue_full", "1: it is at a limit of its own; absent else", 10),
    ("queue_used_ratio", "The share of its limit that it has; absent where it is empty, or has none", 20),
)


def registry(of: Connection | str | os.PathLike[str], *, space: str = "") -> CollectorRegistry:
    """A registry of one space, for prometheus_client; a scrape may come in any thread.

    of: an open connection, or a directory or URL, which is asked at each scrape. A connection to a server gets a
    session of its own for that. space: a label of all, where there are several. Where nobody answers there is
    xaqueue_up 0. Raises InvalidArgument: prometheus_client is missing, or there is no such kind of space.
    """
    check_library()
    from prometheus_client import CollectorRegistry

    made = CollectorRegistry(auto_describe=False)
    made.register(SpaceCollector(_asking(of), space))
    return made


def check_library() -> None:
    """Raises InvalidArgument where prometheus_client is missing."""
    if find_spec("prometheus_client") is None:
        raise InvalidArgument(MISSING)


def text_of(ask: Ask, space: str = "") -> bytes:
    """In Prometheus's text format; see ``registry``. Raises as ``ask`` does where that is no Error.

    As prometheus_client writes it, which takes four times as long where there are many queues.
    """
    kept = []  # as long as the ids of their labels are used
    lines, known = list[str](), dict[int, str]()
    for family in SpaceCollector(ask, space).collect():
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        kind = "gauge" if family.type == "info" else family.type
        lines.append(f"# HELP {name} {family.documentation}\n# TYPE {name} {kind}\n")
        for sample in family.samples:
            labels = known.get(id(sample.labels))  # all families of a queue have the same
            if labels is None:
                pairs = ",".join(f'{key}="{_escaped(value)}"' for key, value in sample.labels.items())
                labels = known[id(sample.labels)] = f"{{{pairs}}}" if pairs else ""
            lines.append(f"{sample.name}{labels} {sample.value}\n")
        kept.append(family)
    return "".join(lines).encode()


def ask_at(place: str) -> dict[str, Any]:
    """The server of a directory, or behind a URL; else what the files tell, without being its owner. Raises Error."""
    url = place if is_url(place) else reach.served_at(place)
    if not url:
        return metrics_of(inspect.status(place), in_doubt(place))
    return _asked(remote_manager(url, connect_s=1.0, answer_s=ANSWER_S))


def _asking(of: Connection | str | os.PathLike[str]) -> Ask:
    if not isinstance(of, Connection):
        place = os.fspath(of)
        if is_url(place):
            parse(place)
        return partial(ask_at, place)
    manager = of._manager  # noqa: SLF001
    if isinstance(manager, RemoteManager):
        return lambda: _asked(manager.another(ANSWER_S))
    space = getattr(manager, "space", None)  # also of one in memory
    if isinstance(space, Space):
        return partial(metrics_in, space, 0)
    raise InvalidArgument(f"there are no metrics of {of!r}: give a connection to a space, its directory or its URL")


def _asked(manager: RemoteManager) -> dict[str, Any]:
    """By a session that is made for it."""
    with closing(manager):
        answer: dict[str, Any] = manager.call("metrics")
        return answer


def name_of(place: str) -> str:
    """Of a space, as a label: the same whether it answers or not, and no secret."""
    return str(parse(place)).partition("?")[0] if is_url(place) else os.path.realpath(place)


class SpaceCollector:
    """Makes all families of one space at each scrape."""

    def __init__(self, ask: Ask, space: str) -> None:
        """space: a label of all, where it is not empty."""
        self._ask = ask
        self._labels = {"space": space.encode("utf-8", "backslashreplace").decode()} if space else {}

    def collect(self) -> Iterator[Metric]:
        own = self._labels
        try:
            answer = self._ask()
            rows: list[QueueRow] = answer.pop("queues", [])
            found = decode(Metrics, answer)
        except Error:
            yield _family("up", "gauge", "1: the space's owner answers", [(own, 0.0)])
            return
        yield _family("up", "gauge", "1: the space's owner answers", [(own, float(bool(found.state)))])
        info = {**own, "version": version("xaqueue"), "sync": found.sync}
        yield _family("build", "info", "The version of xaqueue, and the sync flags", [(info, 1.0)])
        states = [({**own, "state": state}, float(state == found.state)) for state in STATES]
        yield _family("state", "gauge", "1 for the state that it is in", states)
        for name, kind, meaning, figure in OF_SPACE:
            value = figure(found)
            if value is not None:
                yield _family(name, kind, meaning, [(own, value)])
        if found.sync_counts:
            yield self._histogram(found)
        replication = found.replication
        if replication is not None and replication.role in (SOURCE, REPLICA):
            for name, kind, meaning, value_of in OF_REPLICATION:
                yield _family(name, kind, meaning, [(own, value_of(replication))])
        yield from self._of_queues(rows)

    def _of_queues(self, rows: list[QueueRow]) -> Iterator[Metric]:
        named = [(row, {**self._labels, "queue": row[0]}) for row in rows]
        states = [
            ({**labels, "state": state}, row[at])
            for row, labels in named
            for at, state in enumerate(OF_STATE, 1)
            if row[at] or at == 1
        ]
        yield _family("queue_messages", "gauge", "Messages, by state; one that none is in is absent, but ready", states)
        for name, kind, meaning, at in OF_QUEUE:
            unit = US if name.endswith("_seconds") else 1
            yield _family(name, kind, meaning, [(labels, cast(int, row[at]) / unit) for row, labels in named])
        failed = [({**labels, "reason": why}, row[at]) for row, labels in named for why, at in OF_REASON]
        yield _family("messages_dead_lettered", "counter", "Messages that left for a failure queue", failed)
        for name, meaning, at in OF_FEW:
            yield _family(name, "gauge", meaning, [(labels, float(row[at])) for row, labels in named if row[at]])
        streams = [({**labels, "stream": row[11]}, row[12]) for row, labels in named if row[11]]
        yield _family("stream_lag_messages", "gauge", "Messages that a stream has not consumed", streams)

    def _histogram(self, found: Metrics) -> Metric:
        from prometheus_client.core import HistogramMetricFamily

        buckets, below = list[tuple[str, float]](), 0
        for step, count in zip((*map(str, SYNC_STEPS_S), "+Inf"), found.sync_counts, strict=True):
            below += count
            buckets.append((step, float(below)))
        made = HistogramMetricFamily("xaqueue_sync_duration_seconds", "How long syncs took", labels=list(self._labels))
        made.add_metric(list(self._labels.values()), buckets, found.sync_total_s)
        return made


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _family(name: str, kind: str, meaning: str, rows: list[tuple[dict[str, str], Any]]) -> Metric:
    """rows: labels and value."""
    from prometheus_client.core import Metric
    from prometheus_client.samples import Sample

    made = Metric(f"xaqueue_{name}", meaning, kind)
    full = made.name + {"counter": "_total", "info": "_info"}.get(kind, "")
    made.samples = [Sample(full, labels, float(value)) for labels, value in rows]
    return made
