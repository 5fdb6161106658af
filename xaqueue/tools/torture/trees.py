"""What a crash may leave of a file system: every choice among the changes that were not synced.

The rules are those of ``forgetful``; here they are enumerated, or drawn from where they are too many.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from xaqueue.tools.torture.content import FileContent, fingerprint

ROOT = 0

Names = dict[int, dict[str, int]]
"""The names in each directory, and the number of the node that each stands for."""


@dataclass(frozen=True)
class FileTree:
    """What is left of a file system: the content of each file, None for a directory, by path."""

    nodes: Mapping[str, bytes | None]
    twins: Mapping[str, str] = field(default_factory=dict)
    """Of a file with several names: by each but the first, the first."""

    def key(self) -> frozenset[tuple[str, bytes | None]]:
        """What is compared of it; long contents by their fingerprint."""
        return frozenset((path, data if data is None else fingerprint(data)) for path, data in self.nodes.items())


@dataclass(slots=True)
class Node:
    file: FileContent | None
    """None for a directory."""
    modified_ns: int = 0

    @property
    def now(self) -> bytes | None:
        """Its content, None for a directory."""
        return None if self.file is None else self.file.now


@dataclass(frozen=True, slots=True)
class NameChange:
    """One name that is added, or removed, and not synced. ``requires``: changes without which it does not survive."""

    number: int
    directory: int
    name: str
    node: int | None
    requires: tuple[int, ...] = ()


@dataclass(frozen=True)
class Survivors:
    """The moment of a crash: what is durable, and what is not."""

    nodes: Mapping[int, Node]
    durable: Names
    pending: Sequence[NameChange]

    def trees(self, limit: int, seed: int) -> Iterator[FileTree]:
        """Trees that a power loss can leave now, none twice.

        Exhaustive where 2**(changes of names) and the number of trees are at most ``limit``. Beyond it: the
        extremes (of names: nothing, everything, each change alone with what it requires, all but each with what
        requires it; of contents: all whole, all torn one way, each one torn), then a sample, up to the limit. A file
        that may be torn in very many ways counts with those that ``FileContent`` names, and the sample has others.
        """
        everything = frozenset(change.number for change in self.pending)
        seen: set[object] = set()
        if 2 ** len(everything) <= limit:
            every = itertools.chain.from_iterable(
                itertools.combinations(sorted(everything), count) for count in range(len(everything) + 1)
            )
            worlds = [self._world(chosen) for part in every if (chosen := frozenset(part)) == self._closed(chosen)]
            if sum(prod(self._torn(world).values()) for world in worlds) <= limit:
                yield from self._distinct(worlds, _every_choice, seen)
                yield from self._sample(0 if self._all_listed() else limit - len(seen), seed, seen)
                return
        extremes = [self._world(chosen) for chosen in self._extremes(everything)]
        yield from self._distinct(extremes, _extreme_choices, seen)
        yield from self._sample(limit - len(seen), seed, seen)

    def some(self, count: int, dice: random.Random) -> Iterator[FileTree]:
        """No name that was not synced, and every one; and so many of the extremes by chance. Some may be alike."""
        everything = frozenset(change.number for change in self.pending)
        worlds = [self._world(chosen) for chosen in dict.fromkeys(self._extremes(everything))]
        extremes = worlds[:2]
        yield from (self._tree(world, {}) for world in extremes)
        cases = [(world, choice) for world in worlds for choice in _extreme_choices(self._torn(world))]
        left = [(world, choice) for world, choice in cases if any(choice.values()) or world not in extremes]
        for world, choice in dice.sample(left, min(count, len(left))):
            yield self._chosen(world, choice)

    def by_chance(self, dice: random.Random) -> FileTree:
        """One of the trees that a power loss can leave now."""
        share = dice.random()
        world = self._world(self._closed(frozenset(c.number for c in self.pending if dice.random() < share)))
        files = {number: file for number in world.values() if (file := self.nodes[number].file) is not None}
        return self._tree(world, {number: file.by_chance(dice) for number, file in files.items()})

    def _sample(self, count: int, seed: int, seen: set[object]) -> Iterator[FileTree]:
        dice = random.Random(seed)
        for _ in range(count):
            tree = self.by_chance(dice)
            if (key := tree.key()) not in seen:
                seen.add(key)
                yield tree

    def _distinct(self, worlds: Sequence[dict[str, int]], choices: Choices, seen: set[object]) -> Iterator[FileTree]:
        for world in worlds:
            for choice in choices(self._torn(world)):
                tree = self._chosen(world, choice)
                if (key := tree.key()) not in seen:
                    seen.add(key)
                    yield tree

    def _extremes(self, everything: frozenset[int]) -> Iterator[frozenset[int]]:
        yield frozenset()
        yield everything
        requires = {change.number: change.requires for change in self.pending}
        for number in everything:
            alone = {number}
            while more := {other for one in alone for other in requires[one] if other in everything} - alone:
                alone |= more
            yield frozenset(alone)
            yield self._closed(everything - {number})

    def _closed(self, chosen: frozenset[int]) -> frozenset[int]:
        """Without the changes that require one that did not survive."""
        lost = {change.number for change in self.pending} - chosen
        for change in self.pending:  # what a change requires was made before it
            if change.number not in lost and not lost.isdisjoint(change.requires):
                lost.add(change.number)
        return frozenset(change.number for change in self.pending) - lost

    def _world(self, chosen: frozenset[int]) -> dict[str, int]:
        names = {directory: dict(inner) for directory, inner in self.durable.items()}
        for change in self.pending:
            if change.number in chosen:
                apply(names, change)
        return reach(names, self.nodes)

    def _all_listed(self) -> bool:
        return all(node.file is None or node.file.all_listed for node in self.nodes.values())

    def _torn(self, world: Mapping[str, int]) -> dict[int, int]:
        """How many contents each file may have that has more than one."""
        files = {number: file for number in world.values() if (file := self.nodes[number].file) is not None}
        return {number: count for number, file in files.items() if (count := len(file.variants)) > 1}

    def _chosen(self, world: Mapping[str, int], choice: Mapping[int, int]) -> FileTree:
        return self._tree(world, {number: self._file(number).variants[which] for number, which in choice.items()})

    def _tree(self, world: Mapping[str, int], contents: Mapping[int, bytes]) -> FileTree:
        """Contents: of the files that are not as they are now."""
        return left_of(world, self.nodes, contents)

    def _file(self, number: int) -> FileContent:
        file = self.nodes[number].file
        assert file is not None, "a directory has no content"
        return file


Choices = Callable[[Mapping[int, int]], Iterator[dict[int, int]]]
"""For files with so many possible contents each: which of them each has."""


def _every_choice(torn: Mapping[int, int]) -> Iterator[dict[int, int]]:
    for choice in itertools.product(*map(range, torn.values())):
        yield dict(zip(torn, choice, strict=True))


def _extreme_choices(torn: Mapping[int, int]) -> Iterator[dict[int, int]]:
    for which in range(max(torn.values(), default=1)):
        yield {number: min(which, count - 1) for number, count in torn.items()}
    for number, count in torn.items():
        for which in range(1, count):
            yield {**dict.fromkeys(torn, 0), number: which}


def apply(names: Names, change: NameChange) -> None:
    if change.node is None:
        names[change.directory].pop(change.name, None)
    else:
        names[change.directory][change.name] = change.node


def reach(names: Names, nodes: Mapping[int, Node]) -> dict[str, int]:
    """Every path from the root in its order, and the number of its node."""
    found: dict[str, int] = {}
    waiting = [("", ROOT)]
    while waiting:
        prefix, directory = waiting.pop()
        for name, number in names[directory].items():
            found[prefix + name] = number
            if nodes[number].file is None:
                waiting.append((f"{prefix}{name}/", number))
    return dict(sorted(found.items()))


def left_of(
    world: Mapping[str, int], nodes: Mapping[int, Node], contents: Mapping[int, bytes] | None = None
) -> FileTree:
    """These paths, each with the content of its node: as it is now, where nothing else is said."""
    now: dict[str, bytes | None] = {path: nodes[number].now for path, number in world.items()}
    twins: dict[str, str] = {}
    if contents:
        now |= {path: contents[number] for path, number in world.items() if number in contents}
    if len(set(world.values())) < len(world):
        first: dict[int, str] = {}
        twins = {path: other for path, number in world.items() if (other := first.setdefault(number, path)) != path}
    return FileTree(now, twins)
