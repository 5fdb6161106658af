"""What memory holds of a committed message: everything that decides its turn, and nothing of its body."""

from __future__ import annotations

from xaqueue.core.model.message_name import Tags, read_tags
from xaqueue.core.model.retry import Retry
from xaqueue.message import MessageId

_PLAIN = Tags()


class Entry:
    """Of one message. ``locked``: a branch has it, or it is about to leave."""

    __slots__ = (
        "correlation",
        "expires_at",
        "group",
        "is_plain",
        "locked",
        "message_id",
        "not_before",
        "priority",
        "queued",
        "retry",
        "seq",
        "tags",
        "tries",
    )

    def __init__(self, seq: int, message_id: MessageId, tags: str = "", retry: Retry | None = None) -> None:
        """tags: of its file's name; see ``message_name``. retry: where a delivery of it has failed."""
        self.seq = seq
        self.message_id = message_id
        self.tags = tags
        said = read_tags(tags) if tags else _PLAIN
        self.correlation, self.expires_at, self.group, self.not_before, self.priority, self.tries = said
        self.is_plain = not tags
        """Nothing but its number decides its turn."""
        self.retry: Retry | None = None
        self.locked = False
        self.queued = False
        if retry is not None:
            self.fail(retry)

    def fail(self, retry: Retry) -> None:
        """A delivery of it has failed."""
        self.retry, self.tries, self.is_plain = retry, retry.tries, False
        if retry.not_before is not None:
            self.not_before = max(retry.not_before, self.not_before or 0)
