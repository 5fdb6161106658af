"""The server owns one space, and serves it to many sessions in one thread.

The requests of one turn of the event loop share one round of group commit. A session that ends, whoever ended it, rolls
back its active branches and nothing else.

Without being asked it rolls back branches that take too long, ends peers that do, ends itself once nobody has been
connected for long enough where it was told so, and tells systemd how far it is: one datagram a state, to the socket
that the environment names (sd_notify(3), sd_watchdog_enabled(3)). Where nobody asked to be told, nothing is sent.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from xaqueue.access import Identity
from xaqueue.core.engine.session import Session
from xaqueue.core.engine.state import Space
from xaqueue.core.engine.timeouts import expire
from xaqueue.core.model.layout import SOCKET
from xaqueue.core.owner.open import announce
from xaqueue.core.storage.group_commit import Unacknowledged
from xaqueue.core.storage.layers import OwnerFileSystem
from xaqueue.core.storage.owner_file import OwnerFile
from xaqueue.errors import InvalidArgument, ResourceFailed, RetryLater, SpaceError, SpaceInUse
from xaqueue.features.batches.sweep import sweep
from xaqueue.features.scrub.scrub import scrub
from xaqueue.features.snapshots.restoring import attach_or_restore
from xaqueue.rpc import wire
from xaqueue.rpc.methods.meters import metrics_in
from xaqueue.rpc.methods.sessions import SessionStatus, with_work
from xaqueue.rpc.server.listeners import ListenConfig, Listeners, clear_own
from xaqueue.rpc.server.page_maker import PageMaker
from xaqueue.rpc.server.peer import NEVER_S, Caller, Limits
from xaqueue.rpc.server.scheduler import Scheduler
from xaqueue.rpc.server.session import ServerSession

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HANG_S = 5.0
"""Behind the time that peers have: a session that is still there then waits for a call that hangs in the kernel."""
TICK_S = 1.0
LEAST_TICK_S = 0.01
SWEEP_S = 60.0
"""Between two looks for what dead queries left."""
SEND_S = 1.0
READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"

log = logging.getLogger("xaqueue.server")


class Housekeeping:
    """Runs from the start to ``stop``, in the loop's thread. Branches are rolled back in a greenlet: that may wait."""

    def __init__(self, server: Server) -> None:
        limits = server.limits
        shortest = min(
            limits.branch_idle_s, limits.session_idle_s, limits.login_s, limits.stalled_s, limits.idle_exit_s
        )
        self._tick_s = max(min(TICK_S, shortest / 4), LEAST_TICK_S)
        self._server, self._loop = server, server.loop
        self._resting = asyncio.Event()
        self._resting.set()
        self._failed = False
        self._sweep_at = 0.0
        self._busy_at: float | None = None
        """When a session was seen last; None until the server is ready for them."""
        self._next = self._loop.call_later(self._tick_s, self._tick)

    def ready(self) -> None:
        """From now on sessions are waited for."""
        self._busy_at = self._loop.time()

    def session_ended(self) -> None:
        """One was there until now."""
        if self._busy_at is not None:
            self._busy_at = self._loop.time()

    async def stop(self) -> None:
        """Returns once nothing of it is on its way."""
        self._next.cancel()
        await self._resting.wait()

    def _tick(self) -> None:
        self._next = self._loop.call_later(self._tick_s, self._tick)
        now = self._loop.time()
        for session in list(self._server.sessions):
            session.check_timeouts(now)
        self._leave_idle(now)
        if self._resting.is_set() and not self._failed:
            self._resting.clear()
            self._server.scheduler.spawn(self._expire).switch()

    def _leave_idle(self, now: float) -> None:
        if self._busy_at is None:
            return
        if any(session.guest is None for session in self._server.sessions):
            self._busy_at = now
        elif now - self._busy_at >= self._server.limits.idle_exit_s:
            log.info("[idle-exit] nobody was connected for %g s: the server ends", self._server.limits.idle_exit_s)
            self._busy_at = None
            self._server.stop()

    def _expire(self) -> None:
        try:
            expire(self._server.space, time.monotonic(), self._server.limits.branch_idle_s)
            now = self._loop.time()
            if now >= self._sweep_at:
                self._sweep_at = now + SWEEP_S
                sweep(self._server.space)
        except ResourceFailed:  # which is logged, and the server ends
            self._failed = True
        finally:
            self._resting.set()


class Notifier:
    """Made from the environment that systemd gave this process. Raises InvalidArgument for what it cannot reach."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        if name and name[0] not in "/@":
            raise InvalidArgument(f"NOTIFY_SOCKET {name!r} is no Unix socket: only those are notified, drop --notify")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self.watchdog_s = _watchdog_s(environment) if name else None
        """How often at least systemd wants to hear that the server is alive; None where it does not."""

    def notify(self, *states: str) -> None:
        """Sends states like READY and ``STATUS=text``, together. That nobody takes them stops no server."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
            sending.settimeout(SEND_S)
            try:
                sending.sendto("\n".join(states).encode(), self._address)
            except OSError as error:
                log.warning("[notify-failed] systemd is not told %s: %s", states[0], error)

    async def stay_alive(self, is_well: Callable[[], bool]) -> None:
        """Says so, twice as often as is wanted, for ever: this loop turns, and its server is well.

        Where it is not, systemd ends and starts it again after the time that its unit gives.
        """
        while self.watchdog_s is not None:
            if is_well():
                self.notify(ALIVE)
            await asyncio.sleep(self.watchdog_s / 2)


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """Of this process, and not of one that inherited the environment."""
    wanted, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not wanted.isdecimal() or int(wanted) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(wanted) / 1_000_000


class Server:
    """Made within its event loop; ``serve`` runs it until ``stop`` or a signal."""

    def __init__(
        self, root: Path, *, sync: str | None = None, limits: Limits | None = None, lock: OwnerFile | None = None
    ) -> None:
        """lock: that a standby has taken; see ``attach``."""
        self.root = root
        self._sync = sync
        self._lock = lock
        self.limits = limits or Limits()
        self.loop = asyncio.get_running_loop()
        self.scheduler = Scheduler(self.loop)
        self.pages = PageMaker(root, self.scheduler, lambda: self.space.log.rounds)
        self.kept_pages = PageMaker(root, self.scheduler, lambda: self.space.log.rounds, "xaqueue.lake.pages")
        self.space: Space
        self._opening: asyncio.Future[Session]
        self.sessions: set[ServerSession] = set()
        self.listeners = Listeners(partial(ServerSession, self), self.limits)
        self._housekeeping: Housekeeping
        self.notifier = Notifier({})
        """Whom it tells that it is ready, and that it stops."""
        self.on_stop_overdue: Callable[[bool], object] = lambda is_fenced: None
        """Called where it does not end: its disk may hang."""
        self.verifies = False
        """Every message is read before it says that it serves."""
        self.is_stop_requested = False
        """To stop, and not to open the space anew."""
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._stop_timer: threading.Timer | None = None

    # What sessions ask

    def refusal(self) -> str | None:
        if self._stopping.is_set():
            return "the server is stopping: connect again when it runs"
        if len(self.sessions) >= self.limits.sessions:
            return f"{len(self.sessions)} sessions are open, which is the limit: try again later"
        return None

    def check_memory(self) -> None:
        """One of the largest has room, with what was read behind it."""
        limit = max(self.limits.request_memory_bytes, self.limits.request_bytes + wire.CHUNK_BYTES)
        if sum(session.waiting_bytes for session in self.sessions) > limit:
            max(self.sessions, key=lambda session: session.waiting_bytes).refuse_memory(limit)

    def cut(self, key: bytes) -> None:
        for session in list(self.sessions):
            if session.caller.key == key:
                session.cut()

    def ended(self, session: ServerSession) -> None:
        self.sessions.discard(session)
        if session.guest is None:
            log.info("[session-ends] %s is over", session.caller.who)
            self._housekeeping.session_ended()
        self._ended.set()

    def admit(self, connected: socket.socket, guest: Identity) -> None:
        """In any thread: a session with whoever has the other end of a socket pair. Raises RuntimeError: it is over."""

        accepting = self.loop.connect_accepted_socket(partial(ServerSession, self, guest), connected)
        try:
            asyncio.run_coroutine_threadsafe(accepting, self.loop)
        except RuntimeError:
            accepting.close()  # else it complains that nobody has run it
            raise

    def metrics(self) -> dict[str, Any]:
        return metrics_in(self.space, self.session_count)

    @property
    def session_count(self) -> int:
        return sum(session.guest is None for session in self.sessions)

    def session_list(self, asks: Caller) -> list[SessionStatus]:
        there = [session for session in self.sessions if session.guest is None]
        found = [(session.status_for(asks), session.caller.session) for session in there]
        return self.scheduler.run(partial(with_work, self.space, found))

    @property
    def endpoint(self) -> str:
        """Where commands on this machine find it."""
        return self.listeners.urls[0] if self.listeners.urls else ""

    # Its life

    async def recover(self) -> None:
        """Returns once those in doubt can be listed and finished; all messages are loaded behind that.

        Raises SpaceInUse, SpaceError, InvalidArgument.
        """
        branches = asyncio.Event()

        def answer(space: Space) -> None:
            self.space = space
            self.loop.call_soon_threadsafe(branches.set)

        opened = partial(
            attach_or_restore, self.root, sync=self._sync, waiting=self.scheduler, on_branches=answer, lock=self._lock
        )
        self._opening = self.loop.run_in_executor(None, opened)
        self._opening.add_done_callback(lambda _: branches.set())
        await branches.wait()
        if self._opening.done():
            self.space = (await self._opening).space
        if self.space.waiting is not self.scheduler:
            (await self._opening).close()
            raise SpaceInUse(f"{self.root} is open in this process already: close it there before it is served")
        if isinstance(self.space.fs, OwnerFileSystem):
            self.scheduler.syncs = self.space.fs.syncs
        self.space.outcomes.of_local = True
        self.limits = self.limits.for_bodies(self.space.definitions.max_body_bytes)
        self._housekeeping = Housekeeping(self)

    async def listen(self, config: ListenConfig) -> None:
        """Raises InvalidArgument and OperationalError, and then some may be open already."""
        if self._lock is not None:
            clear_own(self.root / SOCKET)
        await self.listeners.listen(config, knows_tokens=self.space.definitions.access.names_any("token"))

    async def serve(self, ready: Callable[[], None] = lambda: None) -> None:
        """Answers until it is told to stop; then ends all sessions and closes the space.

        So it does once the space is fenced, and then raises ResourceFailed: only a new start clears that.
        """
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # as nohup asks for
            with suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread
                self.loop.add_signal_handler(number, self.stop)
        try:
            owner = await self._opening
        except (SpaceError, ResourceFailed):  # it may have waited for its replica
            await self._close(None)
            if self.is_stop_requested:
                return
            raise
        alive = self.loop.create_task(self.notifier.stay_alive(self.is_well))
        if self.verifies and self.space.read_only is None:
            await self._verify()
        announce(self.root, self.endpoint, awaited=self.limits.idle_exit_s >= NEVER_S)
        log.info("[serving] %s at %s", self.root, ", ".join(self.listeners.urls))
        self._housekeeping.ready()
        ready()
        self.notifier.notify(READY, f"STATUS=serving {self.root} at {self.endpoint}")
        self.space.log.when_fenced(self._leave_fenced)
        try:
            await self._stopping.wait()
        finally:
            self.notifier.notify(STOPPING, "STATUS=stopping: what is active is rolled back")
            await self._close(owner)
            alive.cancel()
        if self.space.log.fenced:
            raise ResourceFailed(
                f"{self.root} is fenced, as the log says, and no longer served: start the server again, which reads "
                "the disk anew"
            )

    async def _verify(self) -> None:
        """What is damaged is set aside, as by a dequeue. A fence ends the server behind that."""
        try:
            with suppress(ResourceFailed):
                await self.loop.run_in_executor(None, scrub, self.space, self._stopping.is_set)
        except (RetryLater, OSError) as error:
            log.warning("[scrub-broken-off] not every message was read: %s", error)

    async def give_up(self) -> None:
        """Closes the space before it was served."""
        await self._close(await self._opening)

    def is_well(self) -> bool:
        """Whether starting it again is no help: it is not fenced."""
        return self.space.read_only is not None or self.space.failure is None

    def stop(self) -> None:
        """No new work; active branches are rolled back. The second time, nobody waits for peers to read answers."""
        if self._stopping.is_set():
            log.warning("[stop-again] told to stop again: sessions are cut off")
            self._cut_off()
        else:
            log.info("[stopping] no new work is taken, and active branches are rolled back")
        self.is_stop_requested = True
        if self.space.shipping is not None and self.space.shipping.refusal:  # it is being opened
            self._stop_waiting()
        self._stopping.set()

    def _stop_waiting(self) -> None:
        if self.space.shipping is not None:
            self.space.shipping.stop()

    def _leave_fenced(self) -> None:
        """In any thread. A loop that hangs in the kernel, or a close that does, does not keep the server."""
        self._stop_timer = threading.Timer(self.limits.stop_s + HANG_S, self._hangs)
        self._stop_timer.daemon = True
        self._stop_timer.start()
        with suppress(RuntimeError):  # the loop is over
            self.loop.call_soon_threadsafe(self._stopping.set)

    async def _close(self, owner: Session | None) -> None:
        """Replicas go last: what the others have on their way waits for them."""
        await self.listeners.close()
        self.space.is_closing = True
        deadline = self.loop.call_later(self.limits.stop_s, self._cut_off)
        hang = self.loop.call_later(self.limits.stop_s + HANG_S, self._hangs)
        await self._end([session for session in self.sessions if not session.caller.is_replica])
        await self._housekeeping.stop()
        await self._end(list(self.sessions))
        deadline.cancel()
        hang.cancel()
        close = threading.Timer(self.limits.close_s, self._hangs, [True])  # this loop is what hangs
        close.daemon = True
        close.start()
        try:
            if self.space.shipping is not None:
                self.space.shipping.close()
            if owner is not None:
                owner.close()
        finally:
            close.cancel()
            self.pages.stop()
            self.kept_pages.stop()
            self.scheduler.close()
            if self._stop_timer is not None:
                self._stop_timer.cancel()

    def _hangs(self, is_closing: bool = False) -> None:
        """is_closing: it is the disk, and what it has not taken is in the journal."""
        self.on_stop_overdue(is_closing or self.space.log.fenced)

    async def _end(self, sessions: list[ServerSession]) -> None:
        for session in sessions:
            session.stop()
        while not self.sessions.isdisjoint(sessions):
            self._ended.clear()
            await self._ended.wait()

    def _cut_off(self) -> None:
        self._stop_waiting()
        for session in list(self.sessions):
            session.cut()


def run(
    root: Path,
    listen: ListenConfig,
    *,
    sync: str | None = None,
    limits: Limits | None = None,
    notify: bool = False,
    verifies: bool = False,
    stand_by: Callable[[Callable[[], None]], OwnerFile] | None = None,
    show: Callable[[Server | None], None] = lambda _: None,
    on_stop_overdue: Callable[[bool], object] = lambda is_fenced: None,
    ready: Callable[[list[str]], None] = lambda _: None,
) -> None:
    """Serves the space there until SIGTERM, SIGINT or SIGHUP. Raises ResourceFailed once it is fenced.

    notify: whether systemd is told how far it is. verifies: every message is read before. stand_by: waits until the
    space is free, and calls what it is given now and then; see ``standby.wait``. on_stop_overdue: ends the process of a
    server that hangs, fenced or not. ready: is given the URLs. show: is given the server when it listens, to ``admit``
    guests, and None when it ends.
    """

    notifier = Notifier() if notify else Notifier({})
    lock = None
    if stand_by is not None:
        notifier.notify(READY, f"STATUS=standing by for {root}")
        lock = stand_by(partial(notifier.notify, ALIVE) if notifier.watchdog_s else lambda: None)

    async def main() -> bool:
        """Whether to open the space anew: its replica did not answer, and it waits for that one then."""
        server = Server(root, sync=sync, limits=limits, lock=lock)
        server.on_stop_overdue = on_stop_overdue
        server.notifier, server.verifies = notifier, verifies
        alive = server.loop.create_task(
            notifier.stay_alive(lambda: lock is not None)
        )  # systemd waits no more for READY
        await server.recover()
        alive.cancel()
        try:
            await server.listen(listen)
            show(server)
        except BaseException:
            await server.give_up()
            raise
        gc.freeze()  # what is there now stays: no collection of a transaction's garbage looks through it
        try:
            await server.serve(lambda: ready(server.listeners.urls))
        except ResourceFailed:
            if lock is None and not server.is_stop_requested and isinstance(server.space.failure, Unacknowledged):
                log.warning("[reopened] what was not acknowledged is shown once the replica has it")
                return True
            raise
        finally:
            show(None)
        return False

    is_reopened = True
    while is_reopened:
        try:
            import uvloop
        except ModuleNotFoundError:
            is_reopened = asyncio.run(main())
        else:
            is_reopened = uvloop.run(main())
