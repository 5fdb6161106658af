"""Changes that a database carries: its commit hardens them together with its own work, and the space's record rides.

    vote       a branch promises in memory to commit; what it adds and takes goes into a row of the database
    commit     the row is committed: shown at once, recorded with the next round. Its record has the carrier's note,
               which says that this number is applied
    open       a note of an earlier life is found: its queues hand nothing out until what its database has is delivered
    deliver    what is not applied is done in the order of the numbers, and hardened; then the queues are open again

A message that somebody takes was shown before, so its number is lower than that of the change that takes it: in their
order all changes find what they take. Where queues of several carriers hang together, nothing is applied before all of
them have delivered. Before a number is known to be void, its row must be impossible.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from xaqueue.batch import is_of_a_batch
from xaqueue.carried import CarriedChange, Carriers, CarrierState, CarrierStatus, checked_carrier, decode
from xaqueue.errors import InvalidArgument, QueueWaiting, RetryLater, SpaceError
from xaqueue.space.engine import commit
from xaqueue.space.engine.state import Space
from xaqueue.space.model.block import Kind, decode_head
from xaqueue.space.model.branch import Branch, State, Written
from xaqueue.space.model.carrier import Carrier, note_of, together
from xaqueue.space.model.change import Change
from xaqueue.space.model.change import Kind as Step
from xaqueue.space.model.index import Entry
from xaqueue.space.model.layout import numbered
from xaqueue.space.model.message_name import tags_of

CARRIED_BYTES = 16 * 1024
"""Of the blocks of a branch, at most: a database's log is no place for more."""
RIDING = 512
"""Changes that wait for their records, at most, when one more is carried: each has a row."""
DELIVERED = 100_000
"""Changes that are delivered at a time, at most: more than can wait for their records in all lives."""

log = logging.getLogger("xaqueue")


class CarryVerbs:
    """The part of a ``Session`` for who has a database carry changes. But ``vote`` these verbs belong to no branch."""

    space: Space

    def _check_open(self) -> None:
        raise NotImplementedError

    def carriers(self) -> Carriers:
        self._check_open()
        space = self.space
        with space.lock:
            space.check()
            return Carriers(*space.life, tuple(space.carriers[name].status for name in sorted(space.carriers)))

    def deliver(self, carrier: str, changes: Sequence[bytes], pruned: int, more: bool = False) -> bool:
        self._check_open()
        space = self.space
        checked_carrier(carrier)
        if not isinstance(pruned, int) or not isinstance(more, bool) or len(changes) > DELIVERED:
            raise InvalidArgument("deliver takes a carrier, its changes, the highest number that is gone, and more")
        found = [decode(one) for one in changes]
        space.wait_until_loaded()
        if not space.log.is_atomic:
            raise SpaceError(
                f"the space is open with {space.hardening}: open it with JOURNAL, to take what {carrier} has"
            )
        with _in_hand(space):
            return _deliver(space, carrier, found, pruned, more=more)

    def release_carrier(self, carrier: str) -> CarrierStatus | None:
        self._check_open()
        space = self.space
        checked_carrier(carrier)
        space.wait_until_loaded()
        with _in_hand(space):
            with space.lock:
                noted = space.carriers.setdefault(carrier, Carrier(carrier))
                if noted.noted or noted.state is CarrierState.RELEASED:
                    return None
                found, noted.pending = noted.status, True
            _note(space, noted, CarrierState.RELEASED)
            log.warning("carrier %s is not waited for any more: an operator has released it", carrier)
            return found


def waiting(space: Space, queue: str) -> QueueWaiting | None:
    """Why this queue hands nothing out, where it does not. Called with the lock held."""
    carrier = space.awaited.get(queue) or space.awaited.get("")
    if carrier is None:
        return None
    node, _, participant = carrier.name.partition(".")
    return QueueWaiting(
        f"queue {queue} waits for the database of participant {participant!r} of transaction manager {node}, which may "
        "hold its last changes: open that transaction manager with that database, and it asks by itself. Where that "
        f"is lost for good, `xaqueue release --carrier {carrier.name}` goes on without them"
        + (f". Its note is damaged: {carrier.damage}" if carrier.damage else "")
    )


# The vote


def vote(space: Space, branch: Branch, name: str) -> CarriedChange | None:
    """What the database is to carry; None where the branch has to be prepared. Its caller has it busy.

    From here on nothing but ``commit`` and ``rollback`` ends it. Raises ResourceFailed.
    """
    size, queues = 0, set()
    for written in branch.blocks:
        if written.kind is Kind.ENQUEUE:
            if written.content is None or written.path:
                return None
            size += len(written.content[0]) + len(written.content[1])
        queues.add(written.queue)
    if size > CARRIED_BYTES or not branch.blocks or is_of_a_batch(branch.xid):
        return None
    if not space.log.is_atomic or not space.serving:
        return None
    with space.lock:
        carrier = space.carriers.get(name)
        if carrier is None:
            carrier = Carrier(name)
        if carrier.pending or any(waiting(space, queue) for queue in queues) or _follows_prepared(space, branch):
            return None
        space.carriers[name] = carrier
    if not queues <= carrier.noted:
        try:
            _note(space, carrier, CarrierState.OPEN, queues)
        except RetryLater:
            return None
    with space.lock:
        space.check()
        space.last_carried = number = space.last_carried + 1
        carrier.open.add(number)
        carrier.next = number + 1
        branch.carrier, branch.carried, branch.prepared_at = carrier, number, space.now_us()
        branch.become(State.CARRIED)
        space.settle_locked(branch)
    added = [written.content for written in branch.blocks if written.content is not None]
    taken = [(written.queue, written.message_id) for written in branch.blocks if written.kind is Kind.DEQUEUE]
    return CarriedChange(name, space.life, number, branch.xid, added, taken)


def _follows_prepared(space: Space, branch: Branch) -> bool:
    """Whether it takes a message of a branch that was prepared, and whose commit is not hardened: after a crash that
    one is in doubt, and no carrier knows of it. Or whether too much is waiting. Called with the lock held.
    """
    riding = space.log.riding
    if len(riding) > RIDING:
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
    return any(step.planned.kind is Step.COMMIT and not taken.isdisjoint(step.planned.arrivals) for step in riding)


def _note(space: Space, carrier: Carrier, state: CarrierState, queues: Iterable[str] = ()) -> None:
    """Notes the carrier durably in this state, with these queues as well. Raises RetryLater, ResourceFailed."""
    noted: set[str] = set()

    def plan() -> Change:
        carrier.queues.update(queues)
        if state is CarrierState.OPEN:  # from here on every record that has the note says so
            carrier.state, carrier.epoch = state, space.epoch
            carrier.next = max(carrier.next, space.last_carried + 1)
        noted.update(carrier.queues)
        return Change(Step.CARRIER, carrier.name, [note_of(carrier, space.epoch, state)])

    def publish() -> None:
        carrier.state = state
        if state is CarrierState.OPEN:
            carrier.noted |= noted
        space.find_awaited()

    if not space.log.is_atomic:  # an operator's, where the space has another level now
        _, path, head, body, _ = note_of(carrier, space.epoch, state)
        space.put(Step.CARRIER, carrier.name, path, head, body, publish)
        return
    space.log.perform(plan, publish)


def close(space: Space) -> None:
    """At a clean close: where no number is open, nothing of this life can stand in a database only."""
    with space.lock:
        ended = [one for one in space.carriers.values() if one.noted and not one.open and not one.pending]
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
            while space.is_delivering:
                space.wait_settled()
            space.is_delivering = taken = True
        yield
    finally:
        if taken:
            with space.lock:
                space.is_delivering = False
                space.settled.notify_all()
            space.log.deliver_interrupt()


def _deliver(space: Space, name: str, changes: Sequence[CarriedChange], pruned: int, *, more: bool) -> bool:
    """Whether all that the database has of this space is applied and hardened."""
    with space.lock:
        carrier = space.carriers.get(name)
        _check(space, carrier, name, changes, pruned, more=more)
        if carrier is None or not carrier.pending:
            return not more
        carrier.highest = max([carrier.highest, pruned, *(change.number for change in changes)])
        for change in changes:
            if not carrier.has_applied(change.number):
                carrier.delivered[change.number] = change
        if more:
            return False
        space.last_carried = highest = max(carrier.highest, space.last_carried)
        carrier.next, carrier.open = highest + 1, set(carrier.delivered)
        carrier.is_delivered = True
        group = together(carrier, [one for one in space.carriers.values() if one.pending])
        if not all(one.is_delivered for one in group):
            return False
    for number, change in sorted((item for one in group for item in one.delivered.items()), key=lambda item: item[0]):
        one = space.carriers[change.carrier]
        _apply(space, one, change)
        one.delivered.pop(number)
    for one in group:
        _note(space, one, CarrierState.CLOSED)
        with space.lock:
            one.pending = one.is_delivered = False
            one.damage, one.highest = "", 0
            space.find_awaited()
    return True


def _check(
    space: Space,
    carrier: Carrier | None,
    name: str,
    changes: Sequence[CarriedChange],
    pruned: int,
    *,
    more: bool,
) -> None:
    """SpaceError where the space, or the database, is older than the other knows. Called with the lock held."""
    for change in changes:
        if change.life.space != space.life.space or change.carrier != name:
            raise InvalidArgument(f"change {change.number} was carried by {change.carrier} for {change.life.space}")
    if carrier is not None and (carrier.state is CarrierState.RELEASED or carrier.damage):
        return
    choices = (
        f"put the newer one back; or accept that messages are lost or there again: `xaqueue release --carrier {name}`"
    )
    latest = max([pruned, *(change.number for change in changes)])
    if pruned > space.last_carried or (carrier is None and changes):
        raise SpaceError(
            f"the space is an old copy: the database of carrier {name} knows of its change {latest}, and the space "
            f"of {space.last_carried} only. Find out where the newer one is: {choices}"
        )
    if carrier is None or more or carrier.noted:
        return
    highest = max(latest, carrier.highest)
    if carrier.applied > highest:
        raise SpaceError(
            f"the database of carrier {name} is an old copy: the space has applied its change {carrier.applied}, and "
            f"it knows of {highest} only. Find out where the newer one is: {choices}"
        )


def _apply(space: Space, carrier: Carrier, change: CarriedChange) -> None:
    """What is there already, or gone, is passed over: after damage, or an operator's release."""
    branch = Branch(change.xid, str(change.xid), base=State.CARRIED, carrier=carrier, carried=change.number)
    with space.lock:
        for head, body in change.added:
            parsed = decode_head(head)
            name, message_id = parsed.properties.queue, parsed.message_id
            queue = space.queue(name)
            if message_id in queue.index or message_id in queue.pending:
                log.error("message %s, which %s carried, is in queue %s already", message_id.hex(), carrier.name, name)
                continue
            queue.pending.add(message_id)
            entry = Entry(0, message_id, tags_of(parsed.properties))
            number = len(branch.blocks) + 1
            branch.blocks.append(
                Written(
                    *(number, Kind.ENQUEUE, name, message_id, parsed.checksum, entry, numbered(number)),
                    content=(head, body),
                )
            )
        for name, taken_id in change.taken:
            found = space.queue(name).index.find(taken_id)
            if found is None or found.locked:
                what = "is gone" if found is None else "is held by a branch"
                log.error("message %s of queue %s, which %s took, %s", taken_id.hex(), name, carrier.name, what)
                continue
            space.queue(name).index.lock(taken_id)
            number = len(branch.blocks) + 1
            branch.blocks.append(Written(number, Kind.DEQUEUE, name, found.message_id, 0, found, numbered(number)))
        branch.busy = True
    commit.commit(space, branch, late=True)
