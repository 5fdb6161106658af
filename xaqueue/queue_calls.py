"""The methods of a connection that define queues and topics: durably, at once, and in no transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xaqueue.errors import InvalidArgument
from xaqueue.message import check_queue_name
from xaqueue.one_call import OneCall, alone
from xaqueue.snapshot import SnapshotStatus


class QueueCalls(OneCall):
    """The part of a ``Connection`` that is about queues."""

    @alone
    def define(self, queue: str, /, **settings: Any) -> None:
        """Defines a queue, or changes its definition: in queues.toml, durably, and at once for everybody.

        settings: keys as in queues.toml, see xaqueue(5): ``order="priority"``, ``max_tries=5``; None takes a key away.
        It belongs to no transaction. Raises InvalidArgument that names the key, and then nothing was changed;
        AccessDenied, and ResourceFailed where the space is fenced or open for reading only.
        """
        self._transaction.check_open()
        for key, value in settings.items():
            if key == "match" and isinstance(value, Mapping):
                continue
            if not isinstance(value, str | int | float | None) or (isinstance(value, int) and abs(value) >= 2**63):
                raise InvalidArgument(f"{key} = {value!r} is refused: a string, a number, true or false is wanted")
        self._manager.define(queue, settings)

    @alone
    def define_topic(self, topic: str, /, *, description: str | None = None) -> None:
        """Defines a topic, to which queues may subscribe, or changes what it is for; as ``define``."""
        self._transaction.check_open()
        self._manager.define(check_queue_name(topic), {"description": description}, "topics")

    def subscribe(self, topic: str, queue: str, match: Mapping[str, str] | None = None) -> None:
        """From now on the queue gets what is published to the topic, also when nobody is connected.

        It is defined where it is not yet. A queue subscribes to one topic. match: only messages with these headers; a
        value that ends in ``*`` stands for all that begin so. Durable, as ``define``, until ``unsubscribe``. Raises as
        ``define``; InvalidArgument where the topic is not defined.
        """
        self.define(queue, topic=check_queue_name(topic), match=dict(match) if match else None)

    def unsubscribe(self, queue: str) -> None:
        """The queue gets no more of what is published. It stays, with the messages that it has."""
        self.define(queue, topic=None, match=None)

    @alone
    def snapshot(self) -> SnapshotStatus:
        """Takes a snapshot of the space, in ``snapshots/`` of its directory, while others work; it has what was
        committed until now, in whatever queue. `xaqueue restore` puts it back.

        Removes the oldest where there are more than ``[snapshots] keep`` in queues.toml says. Raises OperationalError
        where there is no room.
        """
        self._transaction.check_open()
        return self._manager.snapshot()

    @alone
    def undefine(self, queue: str) -> None:
        """Takes the definition of a queue away: out of queues.toml, durably, and at once for everybody.

        Only where it has no message, none that somebody holds or is adding either, and no other queue names it; what
        it takes then says the [default] table, or it is unknown. It belongs to no transaction. Raises RetryLater where
        it has messages, UnknownQueue where it is not defined, QueueReserved, InvalidArgument, and then nothing was
        changed; otherwise as ``define``.
        """
        self._transaction.check_open()
        self._manager.undefine(check_queue_name(queue))
