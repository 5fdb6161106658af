"""All that a queues.toml takes: the core's keys and those of each feature, put together.

A new option is a line in the ``options.py`` of its feature, and is acted on there. A new feature has a line here.
"""

from __future__ import annotations

from xaqueue.core.model.definitions import ACCESS, OF_QUEUE, OF_SPACE
from xaqueue.core.model.options import Known
from xaqueue.core.model.record_kinds import RecordKind
from xaqueue.core.owner.record import find_group
from xaqueue.features.ages import options as ages
from xaqueue.features.batches import options as batches
from xaqueue.features.dedup import options as dedup
from xaqueue.features.groups import groups
from xaqueue.features.limits import options as limits
from xaqueue.features.replica import options as replica
from xaqueue.features.retries import options as retries
from xaqueue.features.scrub import options as scrub
from xaqueue.features.snapshots import options as snapshots
from xaqueue.features.streams import options as streams
from xaqueue.features.topics import options as topics


def _kinds() -> tuple[RecordKind, ...]:
    from xaqueue.features.kinds import KINDS  # half of the package, and who reads a queues.toml needs none of it

    return KINDS


_ORDER, _DESCRIPTION, *_FILES = OF_QUEUE
_TOPICS = (topics.TOPIC, topics.MATCH)
_LIMITS = (ages.MAX_AGE_S, *limits.KEYS)
_TIMES = (batches.SWEEP_AFTER_S, batches.FORGET_AFTER_S, streams.CLEANUP_INTERVAL_S)
KNOWN = Known(
    space=(*OF_SPACE[:-3], *_TIMES, OF_SPACE[-3], scrub.DAYS, *OF_SPACE[-2:]),
    queue=(_ORDER, _DESCRIPTION, *retries.KEYS, *_LIMITS, *_FILES, *_TOPICS, dedup.WINDOW_S, streams.ARCHIVE),
    tables=(topics.TOPICS, ACCESS, snapshots.TABLE, replica.TABLE),
    checks=(retries.check, limits.check, topics.check, dedup.check),
    undefining=(topics.check_undefining,),
    reloading=(replica.check_reloading, lambda _, asked: find_group(asked.readers)),
    acts=(groups.act, retries.act, limits.act, ages.act, streams.act),
    stand_in=ages.stand_in,
    kinds=_kinds,
)
