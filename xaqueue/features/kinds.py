"""All kinds of records that features keep in a space, in the order in which an open comes to them."""

from __future__ import annotations

from xaqueue.core.model.record_kinds import RecordKind
from xaqueue.features.batches.kind import BatchKind
from xaqueue.features.carry.kind import CarrierKind
from xaqueue.features.dedup.kind import KeyKind
from xaqueue.features.retries.kind import TriesKind
from xaqueue.features.snapshots.kind import RestoredKind
from xaqueue.features.streams.kind import StreamKind

KINDS: tuple[RecordKind, ...] = (KeyKind(), StreamKind(), CarrierKind(), BatchKind(), RestoredKind(), TriesKind())
