"""What a space is, in a few lines: messages in the order of their commits, and branches that are not over.

Features add to it by their rules (``rules``): what hides a message, what refuses one, what a commit leaves behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from support.crash_level import Level
from xaqueue.core.storage.scheduling import Threads
from xaqueue.xid import Xid

ACTIVE, IN_DOUBT, CARRIED = "active", "in doubt", "carried"
CAME_BACK = "in doubt once more"
"""By a restore: only an operator decides it."""
DONE_BY_HAND, UNDONE_BY_HAND = "committed by hand", "rolled back by hand"


@dataclass(eq=False)
class Known:
    """A message in a queue. least, most: tries that it may have, since the power was cut."""

    number: int
    queue: str
    options: dict[str, Any] = field(default_factory=dict)
    tries: int = 0
    due_us: int = 0
    least: int = 0
    most: int = 0
    is_loose: bool = False
    """A try of it found no room to be written down."""
    is_owed: bool = False
    """A try of it may be counted by a later opening than the next."""
    seq: int = 0
    """As it was seen; 0: not yet."""

    def __repr__(self) -> str:
        return f"{self.queue}:{self.number}" + (f" (tries {self.least} to {self.most})" if self.most else "")


@dataclass
class Branch:
    """``moves``: of what it takes, that of which no delivery fails."""

    adds: list[Known] = field(default_factory=list)
    takes: list[Known] = field(default_factory=list)
    moves: list[Known] = field(default_factory=list)
    state: str = ACTIVE
    xid: Xid = field(default_factory=lambda: Xid(1, b"", b""))
    is_of_batch: bool = False
    """It is decided with others."""
    decided: list[Known] = field(default_factory=list)
    """What it added when it was committed by hand."""


class Rules:
    """What one feature adds: to queues.toml, to messages, to the model, and the verbs of it (``verbs``)."""

    toml: Sequence[tuple[str, str]] = ()
    """Lines of queues.toml, each with its table."""
    puts: Sequence[str] = ()
    """Queues of its own, which get messages and are taken from as all are."""
    body_bytes = 0
    """Of a message, at least."""
    is_prompt = False
    """Its rules are asked when a message is put: nobody keeps it in his hands for a while first."""
    share: ClassVar = 0.6
    """Of the worlds, that have these rules where nobody asks for them."""
    excludes: ClassVar[Sequence[type[Rules]]] = ()
    """Rules that no world has beside these."""
    needs: ClassVar[Sequence[type[Rules]]] = ()
    """Rules that each world has that has these."""
    keeps_times = False
    """No power loss takes the time of a file, or its rules are too vague."""
    writes_blocks = False
    """What comes in one call may become a block of many messages, where the product can (``doors.BLOCKS``)."""
    is_paired = False
    """Its owners are of a pair, where the space has a journal."""
    weights: ClassVar[Mapping[str, int]] = {}
    """The names of its verbs, methods that take the world, and how often each is drawn."""

    def holds_at(self, level: Level) -> bool:
        return True

    def options(self, world: Any) -> dict[str, Any]:
        """Of a message that is put into ``work``."""
        return {}

    def stays(self, model: Model, one: Known) -> bool:
        """Whether it is given to anybody from this queue."""
        return True

    def is_shown(self, model: Model, one: Known) -> bool:
        """Whether who browses sees it."""
        return True

    def is_free(self, model: Model, one: Known, here: list[Known], own: list[Known]) -> bool:
        """Whether it is now. here: all that stay and nobody holds; own: what who asks has taken."""
        return True

    def refuses(self, model: Model, branch: Branch, verb: str, queue: str) -> type[Exception] | None:
        """What a put into this queue, or a take from it, raises."""
        return None

    def leaves_out(self, model: Model, branch: Branch, one: Known) -> int | None:
        """The number of the message that is there already instead of this one."""
        return None

    def votes(self, model: Model, branch: Branch) -> bool:
        """Before it is prepared, or committed at once; False: it is rolled back instead."""
        return True

    def floor_us(self, model: Model) -> int:
        """The clock of the wall is set back to no time before."""
        return 0

    def attempted(self, world: Any, allowed: Sequence[Model]) -> None:
        """Something is about to be done that may come to one of these."""

    def waiting(self, world: Any) -> Threads | None:
        """How work waits in the space that is about to be opened, where that is another way than that of threads."""
        return None

    def begun(self, world: Any, space: Any) -> None:
        """Of the space that is being opened the branches are known."""

    def opened(self, world: Any) -> None:
        """The space was opened, and nothing asked of it yet."""

    def committed(self, model: Model, branch: Branch) -> None: ...

    def failed(self, model: Model, one: Known) -> None:
        """A delivery did."""

    def crashed(self, model: Model, way: str) -> None: ...

    def shows(self, world: Any) -> bool:
        """Whether the space is as these rules have it, in what only they know."""
        return True


R = TypeVar("R", bound=Rules)


@dataclass
class Model:
    rules: tuple[Rules, ...]
    now_us: int
    known: list[Known] = field(default_factory=list)
    highest: dict[str, int] = field(default_factory=dict)
    """The highest number that was ever seen in each queue."""
    branches: dict[int, Branch] = field(default_factory=dict)

    def of(self, kind: type[R]) -> R:
        """What these rules know."""
        return next(one for one in self.rules if isinstance(one, kind))

    def has(self, kind: type[Rules]) -> bool:
        return any(isinstance(one, kind) for one in self.rules)

    def copy(self) -> Model:
        return deepcopy(self)

    def among(self, *states: str) -> list[int]:
        """Those that may be ended alone."""
        found = self.branches.items()
        return [number for number, branch in found if branch.state in states and not branch.is_of_batch]

    def held(self) -> list[Known]:
        taken = [one for branch in self.branches.values() for one in branch.takes]
        return [*taken, *(one for each in self.rules for one in getattr(each, "held", dict[bytes, Known]()).values())]

    def queue(self, name: str) -> list[Known]:
        return [one for one in self.known if one.queue == name]

    def stays(self, one: Known) -> bool:
        return all(each.stays(self, one) for each in self.rules)

    def shown(self, queue: str) -> list[Known]:
        return [one for one in self.queue(queue) if all(each.is_shown(self, one) for each in self.rules)]

    def all_shown(self) -> list[Known]:
        return [one for name in self.queues() for one in self.shown(name)]

    def next(self, queue: str, own: list[Known]) -> Known | None:
        held = self.held()
        here = [one for one in self.queue(queue) if one not in held and self.stays(one)]
        free = [
            one
            for one in here
            if one.due_us <= self.now_us and all(each.is_free(self, one, here, own) for each in self.rules)
        ]
        return min(free, key=lambda one: -one.options.get("priority", 4) if queue == "work" else 0, default=None)

    def refusal(self, branch: Branch, verb: str, queue: str) -> type[Exception] | None:
        found = (each.refuses(self, branch, verb, queue) for each in self.rules)
        return next((one for one in found if one is not None), None)

    def left_out(self, branch: Branch, one: Known) -> int | None:
        found = (each.leaves_out(self, branch, one) for each in self.rules)
        return next((number for number in found if number is not None), None)

    # The verbs of a branch

    def prepare(self, number: int) -> None:
        """What has no work, or is refused, is over."""
        branch = self.branches[number]
        if not self.would_vote(number):
            self.rollback(number)
        elif branch.adds or branch.takes:
            branch.state = IN_DOUBT
        else:
            del self.branches[number]

    def would_vote(self, number: int) -> bool:
        """All rules are asked: each may take something out of it."""
        found = [each.votes(self, self.branches[number]) for each in self.rules]
        return all(found)

    def commit(self, number: int) -> None:
        """Of one that is active in one phase."""
        if self.branches[number].state == ACTIVE:
            self.prepare(number)
        if number in self.branches:
            self._carry_out(number)
            del self.branches[number]

    def _carry_out(self, number: int) -> None:
        branch = self.branches[number]
        self.known = [one for one in self.known if one not in branch.takes] + branch.adds
        for each in self.rules:
            each.committed(self, branch)

    def rollback(self, number: int) -> None:
        branch = self.branches.pop(number)
        for one in branch.takes:
            if one not in branch.moves:
                self.fail(one)

    def decide(self, number: int, commits: bool) -> None:
        """By hand."""
        xid, adds = self.branches[number].xid, self.branches[number].adds
        if commits:
            self._carry_out(number)
        else:
            self.rollback(number)
        self.branches[number] = Branch(
            xid=xid, state=DONE_BY_HAND if commits else UNDONE_BY_HAND, decided=adds * commits
        )

    def forget(self, number: int) -> None:
        del self.branches[number]

    def fail(self, one: Known) -> None:
        one.tries += 1
        for each in self.rules:
            each.failed(self, one)

    def expect(self) -> None:
        """Tries as they are known."""
        for one in self.known:
            one.least = one.most = one.tries

    def after(self, way: str) -> Model:
        """What has not prepared is rolled back. With the power tries may go, and what was handed back may count one."""
        left = self.copy()
        for number in [number for number, branch in left.branches.items() if branch.state in (ACTIVE, CARRIED)]:
            left.rollback(number)
        for each in left.rules:
            each.crashed(left, way)
        left.expect()
        for one in left.known:
            if way == "cut" or one.is_loose:
                one.least, one.most, one.is_loose = 0, one.tries + 1, False
            elif one.is_owed:
                one.most += 1
        return left

    def queues(self) -> list[str]:
        return sorted({table.split(".", 1)[1] for each in self.rules for table, _ in each.toml if "queues." in table})

    @property
    def is_paired(self) -> bool:
        return any(each.is_paired for each in self.rules)

    @property
    def is_prompt(self) -> bool:
        return any(each.is_prompt for each in self.rules)
