"""All kinds of records that features keep in a space, in the order in which an open comes to them.

Whoever opens a space, or looks into one, hands them over. Their names are found by ``options.KNOWN``.
"""

from __future__ import annotations

from xaqueue.core.model.record_kinds import RecordKind
from xaqueue.features.ages.volatile import VolatileKind
from xaqueue.features.batches.kind import BatchKind
from xaqueue.features.carry.carrier_note import CarrierKind
from xaqueue.features.counters.kind import CounterKind
from xaqueue.features.dedup.kind import KeyKind
from xaqueue.features.replica.kind import ReplicaKind
from xaqueue.features.retries.kind import TriesKind
from xaqueue.features.scrub.scrub import ScrubKind
from xaqueue.features.snapshots.restored import RestoredKind
from xaqueue.features.streams.keeping import TakenKind
from xaqueue.features.streams.kind import StreamKind
from xaqueue.features.topics.format import FormatKind

KINDS: tuple[RecordKind, ...] = (
    CounterKind(),
    KeyKind(),
    TriesKind(),
    BatchKind(),
    StreamKind(),
    TakenKind(),
    CarrierKind(),
    RestoredKind(),
    ScrubKind(),
    ReplicaKind(),
    FormatKind(),
    VolatileKind(),
)
