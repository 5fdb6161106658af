"""A space behind a server, as a ResourceManager: what needs no answer is pipelined with the next call that does.

So a two-phase transaction of any number of enqueues is two round trips. What can be checked without the server is
checked at once; a pipelined call that the server refuses fails the next call of its branch, which can only be rolled
back then.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from xaqueue.errors import ConnectionLost, ProtocolError, ResourceFailed, RolledBack, UnknownXid
from xaqueue.rpc.client.branch import BranchProgress
from xaqueue.rpc.methods.batches import BatchCalls
from xaqueue.rpc.methods.branches import BranchCalls
from xaqueue.rpc.methods.messages import MessageCalls
from xaqueue.rpc.methods.streams import StreamCalls
from xaqueue.xa import Outcome
from xaqueue.xid import Xid


class RemoteManager(BranchCalls, MessageCalls, BatchCalls, StreamCalls):
    """A ResourceManager over a socket; used by one thread at a time."""

    def status(self) -> dict[str, Any]:
        """What ``xaqueue status`` shows of a served space."""
        answer: dict[str, Any] = self.call("status")
        return answer

    def flush(self) -> None:
        """Sends what is pipelined and waits until it is done. Raises what it failed with."""
        self._check_working()
        if self._socket is not None:
            try:
                self._ask("echo")
            except (RolledBack, ResourceFailed):
                if self._branch.progress is BranchProgress.NEVER_BEGAN and self._branch.why is not None:
                    raise self._branch.why from None
                raise

    def close(self, left: Xid | None = None) -> None:
        """Returns when the server has rolled back what was active; at once where the connection to it is lost."""
        if self._closed:
            return
        try:
            if self._socket is not None and not self._socket.is_stale and self._branch.xid is not None:
                self._end_session(left)
        except ConnectionLost:
            return  # then it does so by itself
        finally:
            self.drop()

    def _end_session(self, left: Xid | None) -> None:
        """By no other connection than this one."""
        if left is not None:
            with suppress(UnknownXid, ProtocolError, ResourceFailed, RolledBack):
                if Outcome(self._ask("outcome", left)) is not Outcome.IN_DOUBT:
                    self._ask("rollback", left, 0)
        with suppress(RolledBack):
            self._ask("close")
            return
        self._ask("close")  # a pipelined call of the branch had failed, which its next call tells
