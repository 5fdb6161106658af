"""The file system that forgets, as the crash ring wants it: cut off at a call, copied, failing, and all that is left.

What a crash may leave is drawn by the package, for ``xaqueue torture``; here it is enumerated. A sync that fails
(``fail_after``) drops what it was to write: the pages count as clean, so that later syncs pass over them, and reads
show them as long as the power stays on. What is written there anew is synced as ever. Names are not dropped: a file
system that cannot write its own journal goes down as a whole.

It refuses what would show a part of a message to whoever looks at ``committed/``: to make a file there in place, which
is a name first and then its content, to change one, and to give the name of a message to what is no whole block.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

from support.torn import TornContent
from xaqueue.core.model import layout
from xaqueue.core.model.block import has_valid_checksum
from xaqueue.testing import forgetful
from xaqueue.testing.content import FileContent
from xaqueue.testing.crashing import Crashed as Crashed
from xaqueue.testing.crashing import CrashingFileSystem
from xaqueue.testing.forgetful import Node


class Tree(forgetful.Tree):
    def open(self, crash_after: int | None = None) -> ForgetfulFileSystem:
        """A file system in which all of this is durable."""
        return ForgetfulFileSystem(crash_after, self)

    def open_for_good(self) -> LastingFileSystem:
        """For what no crash comes to any more."""
        return LastingFileSystem(self)


def is_final(path: str) -> bool:
    """Whether a reader of ``committed/`` takes what stands there for a message."""
    return layout.parse_message_path(path) is not None


class ForgetfulFileSystem(CrashingFileSystem):
    content = TornContent

    def __init__(self, crash_after: int | None = None, tree: forgetful.Tree | None = None) -> None:
        self.fail_after: int | None = None
        """The first sync behind so many calls fails, once."""
        self.fail_number = errno.EIO
        self.failed = False
        self._held: set[int] = set()
        """Nodes whose content a copy has as well."""
        super().__init__(crash_after, tree)

    def create(self, path: str, chunks: Sequence[bytes], modified_ns: int = 0) -> None:
        assert not is_final(path), f"{path} is made in place: a kill leaves it empty under its final name"
        super().create(path, chunks, modified_ns)

    def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        data = b"".join(chunks)
        same = not is_final(path) or (self.exists(path) and self.read(path, len(data), offset) == data)
        assert same, f"{path} changes in place"
        super().write_at(path, offset, chunks)

    def rename(self, source: str, target: str) -> None:
        self._check_whole(source, target)
        super().rename(source, target)

    def link(self, source: str, target: str) -> None:
        self._check_whole(source, target)
        super().link(source, target)

    def _check_whole(self, source: str, target: str) -> None:
        if is_final(target) and not self.crashed and self.exists(source):
            assert has_valid_checksum(self.read(source)), f"{source} is no whole block, and becomes {target}"

    def copy(self) -> ForgetfulFileSystem:
        """What a crash now would leave: the power goes there, while it goes on here."""
        copy = ForgetfulFileSystem(self.calls)
        copy.calls, copy.crashed, copy.failed = self.calls, True, self.failed
        copy._nodes = {number: Node(node.file, node.modified_ns) for number, node in self._nodes.items()}
        copy._names = {directory: dict(names) for directory, names in self._names.items()}
        copy._durable = {directory: dict(names) for directory, names in self._durable.items()}
        copy._pending, copy._halves = list(self._pending), dict(self._halves)
        number = next(self._numbers)
        self._numbers, copy._numbers = itertools.count(number), itertools.count(number)
        copy._held, self._held = set(self._nodes), set(self._nodes)
        return copy

    def survive_kill(self, crash_after: int | None = None) -> None:
        """As ``tree_after_kill``, here: the next process sees it all, and what was not synced still is not."""
        self.crashed, self.crash_after = False, crash_after

    def tree_after_kill(self) -> Tree:
        return _ours(super().tree_after_kill())

    def tree_by_chance(self, dice: random.Random) -> Tree:
        return _ours(super().tree_by_chance(dice))

    def trees_after_crash(self, limit: int = 1 << 10, seed: int = 0) -> Iterator[Tree]:
        """Trees that a power loss can leave now, none twice; all of them up to the limit (``Survivors.trees``)."""
        return Survivors(self).trees(limit, seed)

    def some_trees_after_crash(self, count: int, dice: random.Random) -> Iterator[Tree]:
        """Two extremes that a power loss can leave now, and so many of the others (``Survivors.some``)."""
        return Survivors(self).some(count, dice)

    def _sync(self, path: str, files: Sequence[FileContent]) -> None:
        if self.fail_after is not None and self.calls > self.fail_after:
            self.fail_after, self.failed = None, True
            for file in files:
                _torn(file).lose()
            raise OSError(self.fail_number, "sync failed", path)
        super()._sync(path, files)

    def _own(self, number: int) -> FileContent:
        """Apart from that of copies."""
        if number in self._held:
            self._held.remove(number)
            self._nodes[number].file = _torn(super()._own(number)).copy()
        return super()._own(number)


class LastingFileSystem(forgetful.ForgetfulFileSystem):
    """Where all is durable at once, which costs a third less."""

    calls = 0

    def create(self, path: str, chunks: Sequence[bytes], modified_ns: int = 0) -> None:
        self._make(path, Node(FileContent.durable(b"".join(chunks)), modified_ns=modified_ns))

    def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        if not self.exists(path):
            self.create(path, ())
        file, data = self._file(path), b"".join(chunks)
        file.now = file.now[:offset].ljust(offset, b"\0") + data + file.now[offset + len(data) :]

    def sync_dir(self, path: str) -> None:
        self._directory(path)

    def _sync(self, path: str, files: Sequence[FileContent]) -> None:
        """It is."""

    def sync_all(self) -> None:
        """It is."""

    def _change(self, directory: int, name: str, node: int | None, requires: tuple[int, ...] = ()) -> int:
        if node is None:
            del self._names[directory][name]
        else:
            self._names[directory][name] = node
        return 0


class Survivors:
    """The moment of a crash: what is durable, and what is not."""

    def __init__(self, fs: forgetful.ForgetfulFileSystem) -> None:
        self.fs = fs
        self.everything = frozenset(change.number for change in fs._pending)

    def trees(self, limit: int, seed: int) -> Iterator[Tree]:
        """Trees that a power loss can leave now, none twice.

        Exhaustive where 2**(changes of names) and the number of trees are at most ``limit``. Beyond it: the
        extremes (of names: nothing, everything, each change alone with what it requires, all but each with what
        requires it; of contents: all whole, all torn one way, each one torn), then a sample, up to the limit. A file
        that may be torn in very many ways counts with those that ``FileContent`` names, and the sample has others.
        """
        seen: set[object] = set()
        if 2 ** len(self.everything) <= limit:
            every = itertools.chain.from_iterable(
                itertools.combinations(sorted(self.everything), count) for count in range(len(self.everything) + 1)
            )
            closed = (chosen for part in every if (chosen := frozenset(part)) == self.fs._closed(chosen))
            worlds = [self.fs._world(chosen) for chosen in closed]
            if sum(prod(self._torn(world).values()) for world in worlds) <= limit:
                yield from self._distinct(worlds, _every_choice, seen)
                yield from self._sample(0 if self._all_listed() else limit - len(seen), seed, seen)
                return
        extremes = [self.fs._world(chosen) for chosen in self._extremes()]
        yield from self._distinct(extremes, _extreme_choices, seen)
        yield from self._sample(limit - len(seen), seed, seen)

    def some(self, count: int, dice: random.Random) -> Iterator[Tree]:
        """No name that was not synced, and every one; and so many of the extremes by chance. Some may be alike."""
        worlds = [self.fs._world(chosen) for chosen in dict.fromkeys(self._extremes())]
        extremes = worlds[:2]
        yield from (_ours(self.fs._tree(world, {})) for world in extremes)
        cases = [(world, choice) for world in worlds for choice in _extreme_choices(self._torn(world))]
        left = [(world, choice) for world, choice in cases if any(choice.values()) or world not in extremes]
        for world, choice in dice.sample(left, min(count, len(left))):
            yield self._chosen(world, choice)

    def _sample(self, count: int, seed: int, seen: set[object]) -> Iterator[Tree]:
        dice = random.Random(seed)
        for _ in range(count):
            tree = self.fs.tree_by_chance(dice)
            if (key := tree.key()) not in seen:
                seen.add(key)
                yield _ours(tree)

    def _distinct(self, worlds: Sequence[dict[str, int]], choices: Choices, seen: set[object]) -> Iterator[Tree]:
        for world in worlds:
            for choice in choices(self._torn(world)):
                tree = self._chosen(world, choice)
                if (key := tree.key()) not in seen:
                    seen.add(key)
                    yield tree

    def _extremes(self) -> Iterator[frozenset[int]]:
        yield frozenset()
        yield self.everything
        requires = {change.number: change.requires for change in self.fs._pending}
        for number in self.everything:
            alone = {number}
            while more := {other for one in alone for other in requires[one] if other in self.everything} - alone:
                alone |= more
            yield frozenset(alone)
            yield self.fs._closed(self.everything - {number})

    def _all_listed(self) -> bool:
        return all(node.file is None or _torn(node.file).all_listed for node in self.fs._nodes.values())

    def _torn(self, world: Mapping[str, int]) -> dict[int, int]:
        """How many contents each file may have that has more than one."""
        files = self.fs._files(world)
        return {number: count for number, file in files.items() if (count := len(_torn(file).variants)) > 1}

    def _chosen(self, world: Mapping[str, int], choice: Mapping[int, int]) -> Tree:
        contents = {number: _torn(self.fs._nodes[number].file).variants[which] for number, which in choice.items()}
        return _ours(self.fs._tree(world, contents))


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


def _torn(file: FileContent | None) -> TornContent:
    assert isinstance(file, TornContent), "a directory has no content"
    return file


def _ours(tree: forgetful.Tree) -> Tree:
    return Tree(tree.nodes, tree.links, tree.times_ns)
