"""A served space and a replica of it, both in this process: the one can be killed, the other one stopped."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

from support.patience import eventually
from support.served import PATIENCE_S, ServerThread
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.features.opening import create
from xaqueue.features.replica.follower import ReplicaFollower, owned
from xaqueue.features.replica.shipping import shipping_of

SMALL = 64 * 1024
"""Bytes of a segment."""


class ReplicaThread:
    """Follows until ``stop``."""

    def __init__(self, root: Path, url: str) -> None:
        self.root = root
        self.failure: BaseException | None = None
        self._stopped = threading.Event()
        self._stack = ExitStack()
        fs, lock = self._stack.enter_context(owned(root))
        with self._stack:
            self.follower = ReplicaFollower(root, fs, lock, url, self._stopped)
            self._stack = self._stack.pop_all()
        self._thread = threading.Thread(target=self._run, name="replica")
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._stack:
                self.follower.run()
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def wait_for(self, server: ServerThread) -> None:
        """Until it has all that is recorded there, and its directories follow."""
        eventually(lambda: self._has_all_of(server))

    def _has_all_of(self, server: ServerThread) -> bool:
        if self.failure is not None:
            raise self.failure
        copy, shipping = self.follower._copy, shipping_of(server.space)
        assert shipping is not None
        return copy is not None and (copy.epoch, copy.lsn) >= shipping.end and not copy._pending


def made(root: Path, acknowledge: str = "local", timeout_s: float = 10, more: str = "", space: str = "") -> Path:
    create(root, sync="JOURNAL")
    write_definitions(root, text(acknowledge, timeout_s, more, space))
    return root


def text(acknowledge: str, timeout_s: float = 10, more: str = "", space: str = "") -> str:
    return (
        f'[default]\n[space]\nsync = "JOURNAL"\n{space}\n{more}\n[replication]\nacknowledge = "{acknowledge}"\n'
        f"acknowledge_timeout_s = {timeout_s}\n"
    )
