"""Changes that a database carries: its commit hardens them together with its own work, the record of the space later.

    vote       a branch promises in memory to commit; what it adds and takes goes into a row of the database
    commit     the row is committed: published at once, recorded with the next round. Its record has the carrier's note,
               which says that this number is applied
    open       a note of an earlier life is found: its queues hand nothing out until what its database has is delivered
    deliver    what is not applied is done in the order of the numbers, and hardened; then the queues are open again

A message that somebody takes was published before, so its number is lower than that of the change that takes it: in
their order all changes find what they take. Where queues of several carriers hang together, nothing is applied before
all of them have delivered. Before a number is known to be void, its row must be impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from xaqueue.batch import is_of_a_batch
from xaqueue.carried import CarriedChange, CarrierState, CarrierStatus, Pruned, decode
from xaqueue.core.engine import commit, many
from xaqueue.core.engine.state import Busy, Space, log
from xaqueue.core.model.block import ADDS, Kind, decode_head
from xaqueue.core.model.branch import Branch, Call, Rider, State, Written
from xaqueue.core.model.change import Change, CoreStep, Op
from xaqueue.core.model.entry import Entry
from xaqueue.core.model.message_name import tags_of
from xaqueue.errors import InvalidArgument, ProtocolError, RetryLater, RolledBack, SpaceError
from xaqueue.features.carry.carrier import Carrier, together
from xaqueue.features.carry.carrier_note import CarrierStep, note_of
from xaqueue.features.carry.carriers import carriers_of, find_awaited, life_of
from xaqueue.features.dedup import dedup

CARRIED_BYTES = 16 * 1024
"""Of the blocks of a branch, at most: a database's log is no place for more."""
MOST_DEFERRED = 512
"""Changes that wait for their records, at most, when one more is carried: each has a row."""
DELIVERED = 100_000
"""Changes that are delivered at a time, at most: more than can wait for their records in all lives."""


def deliver(space: Space, carrier: str, secret: str, changes: Sequence[bytes], pruned: Pruned, *, more: bool) -> bool:
    """See ``verbs.deliver``."""
    if secret != life_of(space).secret:
        raise InvalidArgument("deliver is refused: the space was opened anew since its database was asked")
    found = [decode(one) for one in changes]
    space.wait_until_loaded()
    with _in_hand(space):
        return _deliver(space, carrier, found, pruned, more=more)


def release(space: Space, carrier: str) -> CarrierStatus | None:
    """See ``verbs.release_carrier``."""
    space.wait_until_loaded()
    with _in_hand(space):
        with space.lock:
            noted = carriers_of(space).by_name.get(carrier)
            if noted is None or noted.noted or noted.state is CarrierState.RELEASED:
                return None
            found, noted.pending = noted.status, True
        _note(space, noted, CarrierState.RELEASED)
        log.warning("[carrier-released] carrier %s is not waited for: an operator has released it", carrier)
        return found


@dataclass(frozen=True, slots=True)
class Carried(Rider):
    """Of a branch that a database carries; its number there. The record of its commit has the carrier's note."""

    carrier: Carrier
    number: int

    def ops(self, space: Space, branch: Branch) -> Sequence[Op]:
        carrier = self.carrier
        carrier.open.discard(self.number)
        carrier.applied = max(carrier.applied, self.number)
        carrier.count += 1
        return (note_of(carrier, space.epoch),)

    def performs(self, space: Space, branch: Branch, plan: Callable[[], Change], publish: Callable[[], None]) -> bool:
        space.log.perform_late(plan, publish, branch, is_limited=False)  # it cannot fail alone: see above
        return True

    def release_locked(self, space: Space, branch: Branch) -> None:
        self.carrier.open.discard(self.number)

    def committed(self, space: Space, *, late: bool) -> None:
        if not late:
            space.log.harden_late()

    def check_by_hand(self, branch: Branch) -> None:
        raise ProtocolError(
            f"branch {branch.xid} is carried by a database, whose commit decides: its transaction manager "
            "finishes it. Where that database is lost for good, close the space, and then release the carrier"
        )


# The vote


def vote(space: Space, branch: Branch, name: str) -> CarriedChange | None:
    """What the database is to carry; None where the branch has to be prepared. Its caller has it busy.

    From here on nothing but ``commit`` and ``rollback`` ends it. Raises ResourceFailed.
    """
    try:
        for rider in branch.riders:
            rider.decide(space, branch, Call.PREPARE)
    except RolledBack:
        return None  # its prepare will say so
    many.expand(space, branch)  # the change names each
    size, queues = 0, set()
    for written in branch.blocks:
        if written.kind in ADDS:
            if written.content is None or written.path or written.shared is not None or written.kind is Kind.MESSAGES:
                return None
            size += len(written.content[0]) + len(written.content[1])
        queues.add(written.queue)
    if size > CARRIED_BYTES or not branch.blocks or is_of_a_batch(branch.xid):
        return None
    if not space.log.is_atomic or not space.serving:
        return None
    memory = carriers_of(space)
    with space.lock:
        carrier = memory.by_name.get(name)
        if carrier is None:
            carrier = Carrier(name)
        is_shut = space.gates and any(space.why_shut(queue) for queue in queues)
        if carrier.pending or is_shut or _follows_prepared(space, branch):
            return None
        memory.by_name[name] = carrier
    if not queues <= carrier.noted:
        try:
            _note(space, carrier, CarrierState.OPEN, queues)
        except RetryLater:
            return None
    with space.lock:
        space.check()
        memory.last = number = memory.last + 1
        carrier.open.add(number)
        carrier.next = number + 1
        branch.riders, branch.prepared_at = (*branch.riders, Carried(carrier, number)), space.now_us()
        branch.become(State.DELEGATED)
        space.settle_locked(branch)
    added = [written.content for written in branch.blocks if written.content is not None]
    taken = [(written.queue, written.message_id) for written in branch.blocks if written.kind is Kind.DEQUEUE]
    return CarriedChange(name, life_of(space), number, branch.xid, added, taken)


def _follows_prepared(space: Space, branch: Branch) -> bool:
    """Whether it takes a message of a branch that was prepared, and whose commit is not hardened: after a crash that
    one is in doubt, and no carrier knows of it. Or whether too much is waiting. Called with the lock held.
    """
    deferred = space.log.deferred
    if len(deferred) > MOST_DEFERRED:
        return True
    taken = {
        (written.queue, written.entry.seq)
        for written in branch.blocks
        if written.kind is Kind.DEQUEUE
        and written.entry is not None
        and written.entry.seq > space.queues[written.queue].published
    }
    if not taken:
        return False
    return any(step.planned.kind is CoreStep.COMMIT and _has_added(step.planned.arrivals, taken) for step in deferred)


def _has_added(arrivals: Iterable[tuple[str, int]], taken: Iterable[tuple[str, int]]) -> bool:
    """Whether one of what is taken may be among these: of those in a block they have the first and the last number."""
    spans: dict[str, tuple[int, int]] = {}
    for name, seq in arrivals:
        first, last = spans.get(name, (seq, seq))
        spans[name] = min(first, seq), max(last, seq)
    return any(first <= seq <= last for name, seq in taken for first, last in [spans.get(name, (1, 0))])


def _note(space: Space, carrier: Carrier, state: CarrierState, queues: Iterable[str] = ()) -> None:
    """Notes the carrier durably in this state, with these queues as well. Raises RetryLater, ResourceFailed."""
    noted: set[str] = set()

    def plan() -> Change:
        carrier.queues.update(queues)
        if state is CarrierState.OPEN:  # from here on every record that has the note says so
            carrier.state, carrier.epoch = state, space.epoch
            carrier.next = max(carrier.next, carriers_of(space).last + 1)
        noted.update(carrier.queues)
        return Change(CarrierStep.CARRIER, carrier.name, [note_of(carrier, space.epoch, state)])

    def publish() -> None:
        carrier.state = state
        if state is CarrierState.OPEN:
            carrier.noted |= noted
        find_awaited(space)

    if not space.log.is_atomic:  # an operator's, where the space has another level now
        _, path, head, body, _ = note_of(carrier, space.epoch, state)
        space.put(CarrierStep.CARRIER, carrier.name, path, head, body, publish)
        return
    space.log.perform(plan, publish)


def close(space: Space) -> None:
    """At a clean close: where no number is open, nothing of this life can stand in a database only."""
    with space.lock:
        ended = [one for one in carriers_of(space).by_name.values() if one.noted and not one.open and not one.pending]
    for carrier in ended:
        with suppress(RetryLater):  # then the next open asks
            _note(space, carrier, CarrierState.CLOSED)


# After a crash


@contextmanager
def _in_hand(space: Space) -> Iterator[None]:
    """One at a time delivers or releases."""
    taken = False
    try:
        with space.lock:
            space.check()
            while carriers_of(space).is_delivering:
                space.wait_settled()
            carriers_of(space).is_delivering = taken = True
        yield
    finally:
        if taken:
            with space.lock:
                carriers_of(space).is_delivering = False
                space.settled.notify_all()
            space.log.deliver_interrupt()


def _deliver(space: Space, name: str, changes: Sequence[CarriedChange], pruned: Pruned, *, more: bool) -> bool:
    """Whether all that the database has of this space is applied and hardened."""
    with space.lock:
        carrier = carriers_of(space).by_name.get(name) or Carrier(name)
        for change in changes:
            if change.life.space != life_of(space).space or change.carrier != name:
                raise InvalidArgument(f"change {change.number} was carried by {change.carrier} for {change.life.space}")
            if carrier.has_applied(change.number):
                carrier.repeated.add(change.number)
            else:
                carrier.delivered[change.number] = change
        if more:
            carriers_of(space).by_name.setdefault(name, carrier)
            return False
        if not carrier.noted and carrier.state is not CarrierState.RELEASED and not carrier.damage:
            _check_copies(space, carrier, pruned)
        if not carrier.pending:
            carrier.delivered.clear()
            carrier.repeated.clear()
            return True
        if carrier.delivered and not space.log.is_atomic:
            raise SpaceError(
                f"the space is open with {space.hardening}: open it with JOURNAL, so that it takes what {name} has"
            )
        carriers_of(space).last = max([carriers_of(space).last, pruned.highest, *carrier.delivered])
        carrier.next, carrier.open = carriers_of(space).last + 1, set(carrier.delivered)
        carrier.pruned, carrier.is_delivered = pruned.total, True
        group = together(carrier, [one for one in carriers_of(space).by_name.values() if one.is_awaited])
        if not all(one.is_delivered for one in group):
            return False
    for number, change in sorted((item for one in group for item in one.delivered.items()), key=lambda item: item[0]):
        one = carriers_of(space).by_name[change.carrier]
        _apply(space, one, change)
        one.repeated.add(number)
        del one.delivered[number]
    for one in group:
        with space.lock:
            if one.state is CarrierState.RELEASED or one.damage:
                one.count = one.pruned + len(one.repeated)
        _note(space, one, CarrierState.CLOSED)
        with space.lock:
            one.pending = one.is_delivered = False
            one.damage = ""
            one.repeated.clear()
            find_awaited(space)
    space.wakes.consumed.wake()  # nothing was moved out of these queues meanwhile
    return True


def _check_copies(space: Space, carrier: Carrier, pruned: Pruned) -> None:
    """SpaceError where the space, or the database, is older than the other knows. Called with the lock held."""
    is_older = pruned.total > carrier.count or (pruned.highest and not carrier.has_applied(pruned.highest))
    is_lost = bool(carrier.delivered) and not carrier.pending
    known = pruned.total + len(carrier.repeated)
    why = ""
    if is_older or is_lost:
        why = f"the space is an old copy: it has done {carrier.count} changes that the database of carrier "
        why += f"{carrier.name} carried, of {known + len(carrier.delivered)}"
    elif carrier.count > known:
        why = f"the database of carrier {carrier.name} is an old copy: the space has done {carrier.count} changes, "
        why += f"and it knows of {known}"
    if why:
        carrier.delivered.clear()
        carrier.repeated.clear()
        otherwise = f"`xaqueue release --carrier {carrier.name}`" if carrier.queues else "remove its rows by hand"
        raise SpaceError(
            f"{why}. Find out where the newer one is, and put it back; or accept that messages are lost, or there "
            f"again: {otherwise}"
        )


def _apply(space: Space, carrier: Carrier, change: CarriedChange) -> None:
    """What is there already, or gone, is passed over: after damage, or an operator's release.

    Raises RetryLater where a branch is in the way that is not over.
    """
    branch = Branch(change.xid, str(change.xid), base=State.DELEGATED, riders=(Carried(carrier, change.number),))
    with space.lock:
        if carrier.damage and space.outcomes.was_committed(change.xid):
            carrier.open.discard(change.number)
            return
        for head, _ in change.added:
            parsed = decode_head(head)
            queue, message_id = space.queue(parsed.properties.queue), parsed.message_id
            entry = queue.index.find(message_id)
            if message_id in queue.pending or (entry is not None and entry.locked):
                raise RetryLater(
                    f"message {message_id.hex()} of queue {queue.name}, which {carrier.name} has carried, waits for a "
                    "branch that adds or takes one of this id: finish that"
                )
        branch.busy = True
    with Busy(space, branch):
        with space.lock:
            for head, body in change.added:
                _add(space, branch, head, body)
            for name, taken_id in change.taken:
                _take(space, branch, name, taken_id)
        commit.commit(space, branch, late=True)


def _add(space: Space, branch: Branch, head: bytes, body: bytes) -> None:
    """Called with the lock held."""
    parsed = decode_head(head)
    name, message_id = parsed.properties.queue, parsed.message_id
    queue = space.queue(name)
    if message_id in queue.index:
        log.error("[carried-conflict] message %s, which is carried, is in queue %s already", message_id.hex(), name)
        return
    queue.pending.add(message_id)
    if queue.room is not None:
        queue.room.hold(message_id, len(head) + len(body))
    entry, number = Entry(0, message_id, tags_of(parsed.properties)), len(branch.blocks) + 1
    written = Written(number, Kind.ENQUEUE, name, message_id, parsed.checksum, entry)
    written.content = head, body
    dedup.recover_key(space, branch, written, dedup.key_of(parsed))
    branch.blocks.append(written)


def _take(space: Space, branch: Branch, name: str, message_id: bytes) -> None:
    """Called with the lock held."""
    index = space.queue(name).index
    entry = index.find(message_id)
    if entry is None or not index.claim(entry):
        what = "is gone" if entry is None else "is held by a branch"
        log.error("[carried-conflict] message %s of queue %s, which is taken, %s", message_id.hex(), name, what)
        return
    number = len(branch.blocks) + 1
    branch.blocks.append(Written(number, Kind.DEQUEUE, name, entry.message_id, 0, entry))
