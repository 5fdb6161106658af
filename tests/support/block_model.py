"""What becomes of a block of messages, by brute force: every order of steps, every crash, and all that it may leave.

One block of three messages, of which a bitmap says what is gone, and a message with a file of its own. Two branches
take some of them at once, in one phase or in two, alone in a round or both in one; one may find no room after its bits
were set. Beside them the follower and checkpoints go on (at JOURNAL), a reader that is not the owner reads, a snapshot
is taken, the block is hollowed, its bitmap rots. A crash comes behind any call, and so does the next one while the
space is opened. Nothing of the product is in here: it is the rules, and ``broken`` names those that are not kept:

    own bits            a step writes its own bits, and not all that is gone
    bits kept           who finds no room leaves his bits set
    bits back late      ... until his own thread takes them back: another round may be planned before
    bits early          a listed step sets its bits before its .commit is on disk: who shares its round writes them
    bits of the plan    ... and writes, behind its .commit, what was gone when it was planned
    gone first          the bitmap goes before its block
    block read first    a reader reads the block, and then what is gone of it
    no branch block     who takes several has no branch block
    gone linked         a snapshot links the bitmap, which is written in place, instead of copying it
    hollowed early      what a round is about to take has no body any more
    each record replayed    the replay writes one record after the other, and not what all come to
    order of the first  ... and that in the order in which each file is named first: the bitmap before its block
    trusts pages        who opens takes for granted what it reads, and does not sync it

A file is all that it may be after a loss of power: what is synced, and then what was written since, the last of which
is what everybody reads until then. Names and contents are not told apart: what is made is synced before it has its name
where there is no journal, and made anew by the replay where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, permutations, product
from typing import Any, NamedTuple

ALL, SINGLE = 0b0111, 0b1000
"""The messages of the block, and the one that has a file of its own."""
BAD = -1
"""Content that nobody can read."""
ACTIVE, PREPARED, LISTED, COMMIT = "active", "prepared", "listed", "commit"
"""Where the file of a branch stands; listed: with a branch block."""
NOTHING, DOUBT, DONE = "nothing", "in doubt", "done"
COMMITS = ("one phase", "commit")
VERBS = {ACTIVE: ("one phase", "prepare"), PREPARED: ("commit", "rollback"), COMMIT: ("commit",)}
"""By the phase of a branch."""
FILES = ("block", "gone", "single", "x", "y")

File = tuple[Any, ...]
Write = tuple[str, Any]


class Fault(AssertionError):
    """A promise is broken."""


class Read(NamedTuple):
    """What a reader of the directories has seen first, and what was gone by then."""

    first: Any
    gone: int


class Taken(NamedTuple):
    """A snapshot, and what the branches may be in it."""

    values: tuple[Any, ...]
    may: tuple[frozenset[str], ...]


class State(NamedTuple):
    block: File = (ALL,)
    """The bodies that it has, or None."""
    gone: File = (None,)
    single: File = (True,)
    x: File = (None,)
    y: File = (None,)
    journal: tuple[tuple[Write, ...], ...] = ()
    """The records that no checkpoint covers: what each writes."""
    synced: int = 0
    followed: int = 0
    written: int = 0
    """Of the record that is being followed."""
    below: int | None = None
    """A checkpoint has synced all that was followed by then."""
    shown: int = 0
    """What is gone, in memory."""
    planned: int = 0
    """The same with what the round of now takes."""
    early: int = 0
    """What was gone when a listed step was planned."""
    late: int = 0
    """Bits that are still to be taken back."""
    phases: tuple[str, ...] = (ACTIVE, ACTIVE)
    may: tuple[frozenset[str], ...] = (frozenset({NOTHING}),) * 2
    """What was promised of each branch, or is being done."""
    todo: tuple[tuple[Any, ...], ...] = ()
    """The calls of the round, or of the opening, that are left."""
    ended: bool = False
    """The block went in this round: its bitmap is to follow."""
    flagged: int = 0
    """What came back, or may, as a possible duplicate, since a bitmap was damaged."""
    crashes: int = 1
    failures: int = 0
    damages: int = 0
    hollows: int = 0
    reads: int = 0
    snapshots: int = 0
    reading: Read | None = None
    snapshot: Taken | None = None

    def now(self, name: str) -> Any:
        return getattr(self, name)[-1]

    def write(self, name: str, value: Any) -> State:
        file = getattr(self, name)
        changed: dict[str, Any] = {name: (*file, value)}
        return self if file[-1] == value else self._replace(**changed)

    def sync(self, *names: str) -> State:
        changed: dict[str, Any] = {name: getattr(self, name)[-1:] for name in names}
        return self._replace(**changed)

    def set(self, field: str, branch: int, value: Any) -> State:
        found = list(getattr(self, field))
        found[branch] = value
        changed: dict[str, Any] = {field: tuple(found)}
        return self._replace(**changed)

    @property
    def is_opening(self) -> bool:
        return bool(self.todo) and self.todo[-1][0] == "recovered"

    @property
    def gone_of_block(self) -> int:
        """As the directories have it."""
        block, gone = self.now("block"), self.now("gone")
        if block is None:
            return ALL
        return (ALL & ~int(block)) | (0 if gone in (None, BAD) else int(gone))


@dataclass(frozen=True)
class Rules:
    """A level, what each branch takes, and what else goes on, at most so often."""

    has_journal: bool
    takes: tuple[int, int]
    survives_power: bool = True
    tears: bool = False
    """Of bits that are written in place, and not synced, a loss of power may leave any."""
    broken: str = ""
    start: State = field(default_factory=State)

    def several(self, branch: int) -> bool:
        return self.takes[branch].bit_count() > 1 and self.broken != "no branch block"

    # What may happen next

    def nexts(self, state: State) -> Iterator[State]:
        if state.todo:
            yield self.call(state._replace(todo=state.todo[1:]), *state.todo[0])
        else:
            yield from self.rounds(state)
        if state.late:
            yield state._replace(planned=state.planned & ~state.late, late=0)
        if self.has_journal and not state.is_opening:
            yield from self.following(state)
        yield from self.beside(state)
        if state.crashes:
            yield from self.crashed(state)

    def rounds(self, state: State) -> Iterator[State]:
        """Of one step or of both, in either order; with a journal those that find no room are the last."""
        verbs = [[(branch, verb) for verb in VERBS.get(phase, ())] for branch, phase in enumerate(state.phases)]
        for count in (1, 2):
            for chosen in permutations(verbs, count):
                for steps in product(*chosen):
                    for failing in self.failing(state, steps):
                        yield self.begin(state, steps, failing)
        if state.hollows and state.now("block") not in (None, ALL & ~state.shown) and state.shown & ALL:
            yield state._replace(hollows=state.hollows - 1, todo=(("hollow",),))

    def failing(self, state: State, steps: Sequence[tuple[int, str]]) -> Iterator[tuple[int, ...]]:
        yield ()
        able = [branch for branch, verb in steps if verb in COMMITS]
        if state.failures:
            yield from ((branch,) for branch in able if not self.has_journal or branch == steps[-1][0])
            if self.has_journal and len(able) == 2:
                yield tuple(able)

    def begin(self, state: State, steps: Sequence[tuple[int, str]], failing: tuple[int, ...]) -> State:
        for branch, verb in steps:
            after = {"prepare": DOUBT, "rollback": NOTHING}.get(verb, DONE)
            state = state.set("may", branch, state.may[branch] | {after})
        state = state._replace(failures=state.failures - bool(failing))
        done = tuple((branch, verb) for branch, verb in steps if branch not in failing)
        calls: list[tuple[Any, ...]] = []
        if self.has_journal:
            calls += [("plan", branch, verb, branch in failing) for branch, verb in steps]
            calls += [*(("no room", branch) for branch in failing), ("harden journal",), ("publish", done)]
        else:
            listed = [branch for branch, verb in steps if verb in COMMITS and self.several(branch)]
            calls += [("sync", "xy"[branch]) for branch in listed if state.phases[branch] == ACTIVE]
            calls += [("carry out", branch, verb, branch in failing) for branch, verb in steps]
            calls += [("sync", name) for name in FILES]
            calls += [("carry out behind", branch, branch in failing) for branch in listed]
            calls += [("sync", name) for name in FILES if listed]
            calls += [("publish", done), *(("tidy", branch) for branch, _ in done), ("tidy gone",)]
        return state._replace(todo=tuple(calls))

    # The calls of a round

    def call(self, state: State, name: str, *rest: Any) -> State:
        found: State = getattr(self, name.replace(" ", "_"))(state, *rest)
        return found

    def sync(self, state: State, name: str) -> State:
        return state.sync(name)

    def plan(self, state: State, branch: int, verb: str, fails: bool) -> State:
        """The record of a step, at JOURNAL. One that finds no room is none."""
        file, mask = "xy"[branch], self.takes[branch]
        if verb in COMMITS:
            state = state._replace(planned=state.planned | mask)
            record = (*self.takes_of(state.planned, mask), (file, None))
        else:
            record = ((file, PREPARED if verb == "prepare" else None),)
        return state if fails else state._replace(journal=(*state.journal, record))

    def harden_journal(self, state: State) -> State:
        return state._replace(synced=len(state.journal))

    def carry_out(self, state: State, branch: int, verb: str, fails: bool) -> State:
        """The first half of a step where there is no journal: up to the point of one that is listed."""
        file, mask = "xy"[branch], self.takes[branch]
        if verb not in COMMITS:
            where = LISTED if self.several(branch) else PREPARED
            return state.write(file, where if verb == "prepare" else None)
        if self.several(branch):
            if self.broken == "bits early":
                state = state._replace(planned=state.planned | mask)
            if self.broken == "bits of the plan":
                state = state._replace(early=state.planned | mask)
            return state.write(file, COMMIT)
        state = state._replace(planned=state.planned | mask)
        return self.no_room(state, branch) if fails else self.carried(state, self.takes_of(state.planned, mask))

    def carry_out_behind(self, state: State, branch: int, fails: bool) -> State:
        """Only now its bits are part of what is gone: it is decided. Without room it is carried out another time."""
        mask = self.takes[branch]
        if fails:
            return state.set("phases", branch, COMMIT).set("may", branch, frozenset({DONE}))
        state = state._replace(planned=state.planned | mask)
        whole = state.early if self.broken == "bits of the plan" else state.planned
        return self.carried(state, self.takes_of(whole, mask))

    def carried(self, state: State, writes: Sequence[Write]) -> State:
        """One after the other; the bitmap goes once its block is gone from the disk."""
        is_kept = ("gone", None) in writes and self.broken != "gone first"
        left = [("write", *one) for one in writes if not is_kept or one != ("gone", None)]
        return state._replace(todo=(*left, *state.todo), ended=state.ended or is_kept)

    def write(self, state: State, name: str, value: Any) -> State:
        return state.write(name, value)

    def takes_of(self, whole: int, mask: int) -> tuple[Write, ...]:
        """What is written where this is gone by now, and this goes with the step."""
        gone = (mask if self.broken == "own bits" else whole) & ALL
        writes: tuple[Write, ...] = ()
        if mask & ALL:
            writes = (("gone", gone),)
            if gone == ALL:
                writes = ("block", None), ("gone", None)
                writes = writes[::-1] if self.broken == "gone first" else writes
        return (*writes, ("single", None)) if mask & SINGLE else writes

    def no_room(self, state: State, branch: int) -> State:
        """Nothing was done."""
        mask, may = self.takes[branch], {ACTIVE: NOTHING, PREPARED: DOUBT}[state.phases[branch]]
        state = state.set("may", branch, frozenset({may}))
        if self.broken == "bits kept":
            return state
        if self.broken == "bits back late":
            return state._replace(late=state.late | mask)
        return state._replace(planned=state.planned & ~mask)

    def publish(self, state: State, steps: Sequence[tuple[int, str]]) -> State:
        for branch, verb in steps:
            after = {"prepare": DOUBT, "rollback": NOTHING}.get(verb, DONE)
            phase = PREPARED if verb == "prepare" else "over"
            state = state.set("may", branch, frozenset({after})).set("phases", branch, phase)
            if verb in COMMITS:
                state = state._replace(shown=state.shown | self.takes[branch])
        return state

    def tidy(self, state: State, branch: int) -> State:
        return state.write("xy"[branch], None) if state.phases[branch] == "over" else state

    def tidy_gone(self, state: State) -> State:
        return state.write("gone", None)._replace(ended=False) if state.ended else state

    def hollow(self, state: State) -> State:
        """A step of its own: what is left without a body was gone for sure before."""
        kept = ALL & ~state.shown
        if self.has_journal:
            return state._replace(journal=(*state.journal, (("block", kept),)), todo=(("harden journal",),))
        return state.write("block", kept)._replace(todo=(("sync", "block"),))

    # Beside the rounds

    def following(self, state: State) -> Iterator[State]:
        if state.followed < state.synced:
            record = state.journal[state.followed]
            if state.written < len(record):
                yield state.write(*record[state.written])._replace(written=state.written + 1)
            else:
                yield state._replace(followed=state.followed + 1, written=0)
        if state.below is not None:
            synced, followed = state.synced - state.below, state.followed - state.below
            yield state._replace(journal=state.journal[state.below :], synced=synced, followed=followed, below=None)
        elif state.followed and not state.written:
            yield state.sync(*FILES)._replace(below=state.followed)

    def beside(self, state: State) -> Iterator[State]:
        if state.damages and state.now("gone") not in (None, 0, BAD):
            lost = (state.now("gone") | state.planned) & ALL
            yield state._replace(gone=(BAD,), damages=0, flagged=state.flagged | lost)
        is_early = self.broken == "hollowed early" and state.hollows and state.now("block") is not None
        if is_early and state.planned & ~state.shown & ALL:
            yield state.write("block", ALL & ~state.planned).sync("block")._replace(hollows=0)
        if state.snapshots and not state.written and not state.is_opening:
            yield self.taken(state)
        if state.reading is not None:
            yield self.read(state)
        elif state.reads:
            name = "block" if self.broken == "block read first" else "gone"
            yield state._replace(reading=Read(state.now(name), state.gone_of_block), reads=0)

    def read(self, state: State) -> State:
        """The second half: nothing that was gone before the first is shown, and all that is there still."""
        assert state.reading is not None
        first, was_gone = state.reading
        block, gone = (first, state.now("gone")) if self.broken == "block read first" else (state.now("block"), first)
        seen = 0 if block is None else block & ~(0 if gone in (None, BAD) else gone)
        if not state.flagged:
            expect(not seen & was_gone, "a reader is shown what was gone before")
            expect(ALL & ~state.gone_of_block & ~seen == 0, "a reader is not shown what is there")
        return state._replace(reading=None)

    def taken(self, state: State) -> State:
        """With the directories as they stand, and the lock held: what follows in the journal is not in it."""
        values = tuple(state.now(name) for name in FILES)
        taken = Taken(values, tuple(one | {NOTHING, DOUBT} if self.has_journal else one for one in state.may))
        self.restored(state, taken)
        return state._replace(snapshot=taken if self.broken == "gone linked" else None, snapshots=0)

    def restored(self, state: State, taken: Taken) -> None:
        """What is seen in a space that is this snapshot."""
        left = State(may=taken.may, flagged=state.flagged, crashes=0)
        files: dict[str, Any] = {name: (value,) for name, value in zip(FILES, taken.values, strict=True)}
        left = left._replace(**files, todo=self.recovery())
        while left.todo:
            left = self.call(left._replace(todo=left.todo[1:]), *left.todo[0])

    # Crashes

    def crashed(self, state: State) -> Iterator[State]:
        after = state._replace(crashes=state.crashes - 1, shown=0, planned=0, early=0, late=0, ended=False, below=None)
        after = after._replace(written=0, reading=None, phases=("lost", "lost"), todo=self.recovery())
        yield after._replace(synced=len(after.journal), followed=0)
        if self.survives_power:
            for values in product(*(self.left_of(name, getattr(state, name)) for name in FILES)):
                for end in range(state.synced, len(state.journal) + 1):
                    files: dict[str, Any] = {name: (value,) for name, value in zip(FILES, values, strict=True)}
                    yield after._replace(**files, journal=state.journal[:end], synced=end, followed=0)

    def left_of(self, name: str, file: File) -> set[Any]:
        found = set(file)
        if self.has_journal and len(file) > 1 and file[-1] is not None and name in ("block", "gone"):
            found.add(BAD)  # it was renamed before it was synced
        if self.tears and name == "gone" and len(file) > 1:
            old, new = (0 if one is None else one for one in (file[0], file[-1]))
            changed = [bit for bit in (1, 2, 4) if (old ^ new) & bit] if BAD not in (old, new) else []
            found |= {old ^ sum(some) for count in range(len(changed)) for some in combinations(changed, count + 1)}
        return found

    def recovery(self) -> tuple[tuple[Any, ...], ...]:
        replay: tuple[tuple[Any, ...], ...] = (("recover journal",),) if self.has_journal else ()
        return (*replay, ("recover gone",), ("recover", 0), ("recover", 1), ("recover end",), ("recovered",))

    def recover_journal(self, state: State) -> State:
        """What all of it comes to: nobody sees a bitmap again that is no more; and at last it is synced."""
        left = state.journal[state.followed :]
        if not left:
            return state.sync(*FILES)._replace(journal=(), synced=0, followed=0)
        some = left[:1] if self.broken == "each record replayed" else left
        writes = self.together(some)
        if state.written < len(writes):
            state = state.write(*writes[state.written])._replace(written=state.written + 1)
        else:
            state = state._replace(followed=state.followed + len(some), written=0)
        return state._replace(todo=(("recover journal",), *state.todo))

    def together(self, records: Sequence[Sequence[Write]]) -> tuple[Write, ...]:
        """The last of what they write to each file, in the order in which these come."""
        last: dict[str, Any] = {}
        for name, value in chain.from_iterable(records):
            if self.broken != "order of the first":
                last.pop(name, None)
            last[name] = value
        return tuple(last.items())

    def recover_gone(self, state: State) -> State:
        """What is damaged is set aside; what a page says that was not synced is synced before anybody relies on it."""
        expect(state.now("block") != BAD, "the block is damaged")
        if state.now("gone") == BAD:
            expect(bool(state.flagged), "the bitmap is damaged")
            state = state.write("gone", None)
        return state if self.broken == "trusts pages" else state.sync("gone", "block", "single")

    def recover(self, state: State, branch: int) -> State:
        """Of what is found in a file that is neither prepared nor decided nothing is done, or all of it."""
        file, mask = "xy"[branch], self.takes[branch]
        if self.broken != "trusts pages":
            state = state.sync(file)
        match state.now(file):
            case "commit":
                whole = mask | (self.seen_gone(state) & ALL)
                done = (*(("sync", name) for name in ("gone", "block", "single")), ("recover ended", branch))
                return self.carried(state._replace(todo=(*done, *state.todo)), self.takes_of(whole, mask))
            case "listed":
                return state
            case "prepared":
                if mask & ~self.seen_gone(state):
                    return state
        return state.write(file, None).sync(file)

    def recover_ended(self, state: State, branch: int) -> State:
        return state.write("xy"[branch], None)

    def recover_end(self, state: State) -> State:
        """A block of which all is gone goes, and a bitmap without a block."""
        if state.now("gone") == ALL and state.now("block") is not None:
            return state.write("block", None)._replace(todo=(("sync", "block"), ("recover end",), *state.todo))
        return state.write("gone", None) if state.now("block") is None else state

    def recovered(self, state: State) -> State:
        """What is seen of it is what was promised."""
        gone, phases = self.seen_gone(state), []
        expect(not (ALL & ~gone) & ~(state.now("block") or 0), "a message is there without its body")
        for branch, (mask, may) in enumerate(zip(self.takes, state.may, strict=True)):
            in_doubt = state.now("xy"[branch]) is not None
            lost = mask & state.flagged
            found = DOUBT if in_doubt else DONE if mask & gone == mask else NOTHING
            expect(not in_doubt or not mask & gone & ~lost, "in doubt is what takes a message that is gone")
            expect(found is not NOTHING or not mask & gone & ~lost or bool(lost), "a branch is done in part")
            expect(found in may or (bool(lost) and DONE in may), f"{found}, and not {sorted(may)}")
            if lost and found is NOTHING and DONE in may:  # what is left of it may do it once more
                state = state.set("may", branch, frozenset({NOTHING, DONE}))
            else:
                state = state.set("may", branch, frozenset({found}))
            phases.append(PREPARED if in_doubt else "over")
        expect(not gone & ~(self.takes[0] | self.takes[1] | self.start.shown), "a message that nobody took is gone")
        return state._replace(shown=gone, planned=gone, phases=tuple(phases))

    def seen_gone(self, state: State) -> int:
        return state.gone_of_block | (0 if state.now("single") else SINGLE)


def expect(holds: bool, why: str) -> None:
    if not holds:
        raise Fault(why)


def explore(rules: Rules) -> int:
    """All that may come of it: how many states. Raises Fault, with the states that led there."""
    files = ((None,), (None,)) if rules.has_journal else ((ACTIVE,), (ACTIVE,))
    first = rules.start._replace(x=files[0], y=files[1])
    before: dict[State, State | None] = {first: None}
    left = [first]
    while left:
        state = left.pop()
        try:
            for after in rules.nexts(state):
                if after.snapshot is not None:  # its bitmap is the one that is written in place
                    values = (*after.snapshot.values[:1], after.now("gone"), *after.snapshot.values[2:])
                    rules.restored(after, after.snapshot._replace(values=values))
                if after not in before:
                    before[after] = state
                    left.append(after)
        except Fault as fault:
            at: State | None = state
            while at is not None:
                fault.add_note(str({name: value for name, value in at._asdict().items() if value}))
                at = before[at]
            raise
    return len(before)
