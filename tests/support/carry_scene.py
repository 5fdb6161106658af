"""A space, a transaction manager and databases that carry what is done in the space, all of which may die at any call.

What is so in the end is told by the databases alone: a transaction is committed exactly if its database has its work.
So the queues must hold what these transactions have added, and nothing that they have taken; each message once.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from support.crash_level import LAGGING, NOON_US
from support.forgetful import Crashed, ForgetfulFileSystem, LastingFileSystem, Tree
from support.tm_ledger import Ledger
from support.tm_world import STARTED, Rig, World, mortal
from xaqueue.connection import Connection
from xaqueue.core.engine.state import Space
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import DecisionLogError, OutcomeUnknown, QueueWaiting, ResourceFailed, RolledBack
from xaqueue.features.opening import open_space
from xaqueue.features.session import Session
from xaqueue.tm.coordinator import TraceStep as Step

QUEUE, LEDGER = "queue", "ledger"
SPACE = "0123456789abcdef0123456789abcdef"
ROUNDS = 12
"""Rounds of recovery after which all is quiet, at the latest."""
GIVEN = (b"given 1", b"given 2", b"given 3")


Files = ForgetfulFileSystem | LastingFileSystem


class MortalSpace(ForgetfulFileSystem):
    """Each of its calls is one at which everybody may die."""

    world: World

    def _call(self) -> None:
        try:
            self.world.point()
            super()._call()
        except Crashed:
            self.crashed = True
            self.world.alive = False
            raise


@dataclass(frozen=True)
class Deed:
    """One transaction's: (queue, body) of what it adds, and how many messages it takes of each queue."""

    puts: tuple[tuple[str, bytes], ...] = ()
    takes: tuple[str, ...] = ()
    ledger: str = LEDGER


@dataclass
class Done:
    """What a transaction did until its commit."""

    deed: Deed
    taken: list[bytes] = field(default_factory=list)
    told: bool | None = None


class Scene:
    """``rig`` and ``space`` are of the present life."""

    def __init__(self, *, fault: str = "", ledgers: Sequence[str] = (LEDGER,)) -> None:
        self.world = World()
        self.ledgers = {name: Ledger(self.world, can_carry=True) for name in ledgers}
        self.fault = fault
        self.fault_of: Callable[[], str] | None = None
        self.gone: set[bytes] = set()
        """What others have consumed."""
        self.epoch = 0
        self.space: Space | None = None
        self.space_fs: Files = GIVEN_TREE.open()
        self.done: dict[bytes, Done] = {}
        self.log_fs: Files = mortal(STARTED, self.world)

    def fork(self) -> Scene:
        """What is durable elsewhere, for one of several things that may come next."""
        other = Scene(ledgers=list(self.ledgers))
        other.done, other.epoch, other.gone = copy.deepcopy(self.done), self.epoch, set(self.gone)
        for name, ledger in self.ledgers.items():
            mine = other.ledgers[name]
            mine.has_table, mine.rows, mine.done = ledger.has_table, dict(ledger.rows), set(ledger.done)
            mine.on_their_way = copy.deepcopy(ledger.on_their_way)
        return other

    def trees_after_kill(self) -> tuple[Tree, Tree]:
        """Of the space and of the log."""
        space, log = self.space_fs.tree_after_kill(), self.log_fs.tree_after_kill()
        return Tree(space.nodes, space.links), Tree(log.nodes, log.links)

    # A life

    def open_mortal(self, space: Tree, log: Tree) -> None:
        fs = MortalSpace(None, space)
        fs.world = self.world
        self._boot(fs, mortal(log, self.world))

    def open_for_good(self, space: Tree, log: Tree) -> None:
        self._boot(space.open_for_good(), log.open_for_good())

    def _boot(self, space_fs: Files, log_fs: Files) -> None:
        self.space_fs, self.log_fs, self.space = space_fs, log_fs, None
        parties: dict[str, Callable[[], object]] = {QUEUE: self.connect}
        parties |= {name: ledger.connect for name, ledger in self.ledgers.items()}
        self.rig = Rig(log_fs, parties, on_step=self._step)

    def _step(self, step: Step, gtrid: bytes, participant: str) -> None:
        self.world.point()

    def connect(self) -> Connection:
        if self.space is None or self.space.failure is not None:
            self.epoch += 1
            definitions = Definitions(default=QueueDefinition(), journal_segment_bytes=LAGGING.segment_bytes)
            self.space = open_space(
                self.space_fs,
                definitions,
                hardening=LAGGING.hardening,
                epoch=self.epoch,
                suspect=self.space_fs.calls > 0,  # it is the same boot
                now_ns=lambda: NOON_US * 1000,
                space_id=SPACE,
            )
            assert self.space.read_only is None
        return Connection(Session(self.space), fresh_id)

    def close(self) -> None:
        assert self.space is not None
        self.space.close()

    # What is done in it

    def make_ready(self, names: Sequence[str] = ()) -> None:
        """These databases, or all, may carry from here on."""
        deciding = self.rig.coordinator.deciding
        wanted = names or list(self.ledgers)
        for name in wanted:
            deciding.is_ready(QUEUE, name)
        for _ in range(ROUNDS):
            self.rig.recover()
        assert not self.world.alive or all(deciding.is_ready(QUEUE, name) for name in wanted)

    def lose(self, name: str, fault: str) -> None:
        """The next commit of this database goes wrong, and it is away from then on."""
        ledger = self.ledgers[name]

        def lost() -> str:
            ledger.is_down_next = True
            return fault

        self.fault_of = lost

    def play(self, deeds: Sequence[Deed]) -> None:
        """Raises Crashed."""
        for number, deed in enumerate(deeds):
            tx = self.rig.transaction()
            done = self.done[tx.gtrid] = Done(deed)
            fault = self.fault if number == len(deeds) - 1 else ""
            self.ledgers[deed.ledger].fault_of = self.fault_of or partial(str, fault)
            try:
                with tx:
                    for queue in deed.takes:
                        message = tx[QUEUE].dequeue(queue)
                        assert message is not None
                        done.taken.append(message.body)
                    for queue, body in deed.puts:
                        tx[QUEUE].enqueue(queue, body)
                    tx[deed.ledger].work(tx.gtrid)
            except RolledBack:
                done.told = False
            except (OutcomeUnknown, DecisionLogError, ResourceFailed):
                continue
            else:
                done.told = True

    def heal(self) -> None:
        self.world.revive()
        self.fault = ""
        for ledger in self.ledgers.values():
            ledger.fault_of = str

    # What is so afterwards

    def expected(self) -> dict[str, set[bytes]]:
        """By queue, by what the databases have."""
        found: dict[str, set[bytes]] = {"in": set(GIVEN), "out": set()}
        committed = [done for gtrid, done in self.done.items() if gtrid.decode() in self.ledgers[done.deed.ledger].done]
        for done in committed:
            for queue, body in done.deed.puts:
                found[queue].add(body)
        for done in committed:
            for body in done.taken:
                for bodies in found.values():
                    bodies.discard(body)
        return {queue: bodies - self.gone for queue, bodies in found.items()}

    def judge_handed_out(self) -> None:
        """While databases are away: what is handed out is nobody's, and what may be is not passed over in silence."""
        expected = self.expected()
        with self.connect() as connection:
            for queue, wanted in expected.items():
                found = set()
                with contextlib.suppress(QueueWaiting):
                    while (message := connection.dequeue(queue)) is not None:
                        assert message.body in wanted or not self.is_settled(message.body), "it was taken, durably"
                        found.add(message.body)
                connection.rollback()

    def is_settled(self, body: bytes) -> bool:
        """Whether no transaction that is on its way has to do with it."""
        on_their_way = {
            gtrid for ledger in self.ledgers.values() for work in ledger.on_their_way for gtrid in work.done
        }
        ours = [done for gtrid, done in self.done.items() if gtrid.decode() in on_their_way]
        return not any(body in done.taken or body in dict.fromkeys(b for _, b in done.deed.puts) for done in ours)

    def recover(self, space: Tree, log: Tree) -> None:
        """A life in which the databases are away, one in which they are back, and one that has nothing left to do."""
        self.heal()
        for ledger in self.ledgers.values():
            ledger.is_down = True
        self.open_for_good(space, log)
        self.rig.recover()
        self.judge_handed_out()
        for ledger in self.ledgers.values():
            ledger.is_down = False
        self.settle()
        self.judge()
        self.rig.log.close()
        self.close()
        self._boot(self.space_fs, self.log_fs)
        self.settle()
        self.judge()
        assert self.space is not None
        assert not self.space.gates
        for ledger in self.ledgers.values():
            assert ledger.decisions() == [], "rows go once nobody can need them"

    def settle(self) -> None:
        """Recovery until nothing changes, and what is on its way has landed or is refused."""
        for _ in range(ROUNDS):
            self.rig.recover()
        for ledger in self.ledgers.values():
            ledger.land()
        for _ in range(3):
            reports = self.rig.recover()
        assert all(report.complete for report in reports.values()), reports
        assert self.rig.coordinator.in_doubt() == []

    def judge(self) -> None:
        for gtrid, done in self.done.items():
            if done.told is not None:
                assert (gtrid.decode() in self.ledgers[done.deed.ledger].done) == done.told
        with self.connect() as connection:
            for queue, wanted in self.expected().items():
                found = [message.body for message in connection.browse(queue)]
                assert sorted(found) == sorted(wanted), f"queue {queue}"
                handed_out = set()
                while (message := connection.dequeue(queue)) is not None:
                    handed_out.add(message.body)
                assert handed_out == wanted
                connection.rollback()


def _given() -> Tree:
    """Three messages in a queue of a space that was closed."""
    fs = Tree({}).open()
    fs.make_dir("committed")
    space = open_space(fs, Definitions(default=QueueDefinition()), hardening=LAGGING.hardening)
    with Connection(Session(space), fresh_id) as connection:
        for body in GIVEN:
            connection.enqueue("in", body)
    space.close()
    return fs.tree_after_kill()


GIVEN_TREE = _given()


def deaths(make: Callable[[], Scene], run: Callable[[Scene], None], every: int = 1, first: int = 0) -> Iterator[Scene]:
    """The scene after each death, or one in so many; at last the one that nobody died in."""
    for die_at in count(first, every):
        scene = make()
        scene.open_mortal(GIVEN_TREE, STARTED)
        scene.world.die_at = die_at
        with contextlib.suppress(Crashed):
            run(scene)
        alive = scene.world.alive
        yield scene
        if alive:
            assert die_at > 50
            return
