"""A file system in memory that forgets: after a crash it holds what was synced, and any part of the rest.

It is the other side of ``xaqueue.core.storage.fs.FileSystem``. What a crash may leave of what was not synced:

- A name that was added may be missing; a name that was removed may be back. ``sync_dir`` settles the names of that one
  directory and of no other: a directory that was made needs the sync of its parent.
- A rename is two halves. The new name alone is possible (the file is in both places). The loss of the old name comes
  only with the new name in reach, directories that lead to it included, because a rename is atomic; and so does
  another file under the old name, which replaced what was lost. Stricter than that is the sync of the source alone:
  it settles the loss and promises nothing about the new name.
- The content of a new file may be whole, empty, short, or zeros. Every sector that is overwritten, of a file old or
  new, has any of the contents that it had since the last sync, whatever became of the others (``content``).
- The rename of a directory is there as a whole or not at all: it has one name, and who syncs the directory of the old
  one or of the new settles both.
- A file that is in two places after a crash is one file with two names: what is written by one is read by the other,
  and its rename to its own other name does nothing.

Modification times are kept, as they were when the power went.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xaqueue.core.storage.fs import Room, write_then_sync, writer_of
from xaqueue.testing.content import FileContent, fingerprint

ROOT = 0

Names = dict[int, dict[str, int]]
"""The names in each directory, and the number of the node that each stands for."""


@dataclass(frozen=True)
class Tree:
    """A file system at rest: the content of each file, None for a directory, by path."""

    nodes: Mapping[str, bytes | None]
    links: Mapping[str, str] = field(default_factory=dict)
    """Of a file with several names: by each but the first, the first."""
    times_ns: Mapping[str, int] = field(default_factory=dict)
    """When each was changed that has such a time."""

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


class ForgetfulFileSystem:
    """The port in memory. ``tree``: what is in it, durably."""

    content = FileContent
    """The kind of its files."""

    def __init__(self, tree: Tree | None = None) -> None:
        self._nodes: dict[int, Node] = {ROOT: Node(None)}
        self._names: Names = {ROOT: {}}
        self._durable: Names = {ROOT: {}}
        self._pending: list[NameChange] = []
        self._halves: dict[int, int] = {}
        """Of each directory that was renamed, by the number of one half that of the other."""
        self._numbers = itertools.count(1)
        for path in sorted(tree.nodes if tree else ()):
            assert tree is not None
            self._settle(path, tree)

    # The port: what changes or syncs something

    def create(self, path: str, chunks: Sequence[bytes], modified_ns: int = 0) -> None:
        self._make(path, Node(self.content.new(b"".join(chunks))))
        if modified_ns:
            self._node(path).modified_ns = modified_ns

    def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        directory, name = self._place(path)
        if name not in self._names[directory]:
            self._change(directory, name, self._new(Node(self.content(b""))))
        self._file(path).overwrite(offset, b"".join(chunks))

    write_synced = write_then_sync
    writer = writer_of

    def set_modified_ns(self, path: str, when_ns: int) -> None:
        self._node(path).modified_ns = when_ns

    def rename(self, source: str, target: str) -> None:
        old_directory, old_name = self._place(source)
        directory, name = self._place(target)
        number = self._number(source)
        if self._names[directory].get(name) == number:
            return
        waiting = {(change.directory, change.name): change.number for change in self._pending}
        leading = [waiting[place] for place in self._steps_to(target) if place in waiting]
        addition = self._change(directory, name, number)
        removal = self._change(old_directory, old_name, None, (*leading, addition))
        if self._nodes[number].file is None:  # a directory has one name: both halves survive, or none
            at = next(at for at, change in enumerate(self._pending) if change.number == addition)
            whole = (*self._pending[at].requires, removal)
            self._pending[at] = replace(self._pending[at], requires=whole)
            self._halves |= {addition: removal, removal: addition}

    def link(self, source: str, target: str) -> None:
        directory, name = self._place(target)
        if name in self._names[directory]:
            raise FileExistsError(errno.EEXIST, "exists", target)
        self._file(source)
        self._change(directory, name, self._number(source))

    def unlink(self, path: str) -> None:
        self._file(path)
        self._change(*self._place(path), None)

    def make_dir(self, path: str) -> None:
        self._make(path, Node(None))

    def remove_dir(self, path: str) -> None:
        if self.list(path):
            raise OSError(errno.ENOTEMPTY, "directory not empty", path)
        self._change(*self._place(path), None)

    def sync_file(self, path: str) -> None:
        self._sync(path, [self._file(path)])

    sync_data = sync_file

    def sync_dir(self, path: str) -> None:
        directory = self._directory(path)
        self._sync(path, [])
        settled = {change.number for change in self._pending if change.directory == directory}
        if self._halves:
            settled = self._whole(settled)
        _apply(self._durable, (change for change in self._pending if change.number in settled))
        self._pending = [change for change in self._pending if change.number not in settled]

    def sync_all(self) -> None:
        waiting = [number for number, node in self._nodes.items() if node.file is not None and not node.file.is_synced]
        self._sync("", [self._own(number) for number in waiting])
        _apply(self._durable, self._pending)
        self._pending.clear()
        self._halves.clear()

    # The port: what only looks

    def read(self, path: str, size: int | None = None, offset: int = 0) -> bytes:
        content = self._node(path).now
        if content is None:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return content[offset:][:size]

    def size(self, path: str) -> int:
        return len(self.read(path))

    def modified_ns(self, path: str) -> int:
        return self._node(path).modified_ns

    def list(self, path: str) -> list[str]:
        return sorted(self._names[self._directory(path)])

    def is_dir(self, path: str) -> bool:
        return self.exists(path) and self._node(path).file is None

    def exists(self, path: str) -> bool:
        try:
            self._number(path)
        except FileNotFoundError:
            return False
        return True

    def hold_dir(self, path: str) -> None:
        self._directory(path)

    def room(self) -> Room:
        return Room(1 << 40, 1 << 40, 1 << 20, 1 << 20)

    def close(self) -> None:
        """Nothing is held."""

    # The crash

    def tree_after_kill(self) -> Tree:
        """The process is gone and the power is not: every call that was made has happened."""
        return self._tree(self._reach(self._names), {})

    def tree_by_chance(self, dice: random.Random) -> Tree:
        """One of the trees that a power loss can leave now."""
        share = dice.random()
        world = self._world(self._closed(frozenset(c.number for c in self._pending if dice.random() < share)))
        return self._tree(world, {number: file.by_chance(dice) for number, file in self._files(world).items()})

    def barest_trees(self) -> Iterator[Tree]:
        """No name that was not synced; every content as it is, and then as it was synced."""
        world = self._world(frozenset())
        yield self._tree(world, {})
        yield self._tree(world, {number: file.barest for number, file in self._files(world).items()})

    def _whole(self, settled: set[int]) -> set[int]:
        """And the other half of each directory that was renamed, with what that cannot be without."""
        waiting = {change.number: change for change in self._pending}
        required = [n for half in settled & self._halves.keys() for n in (self._halves[half], *waiting[half].requires)]
        while required:
            change = waiting.get(required.pop())
            if change is not None and change.number not in settled:
                settled.add(change.number)
                required += change.requires
                at = change.directory, change.name
                required += (n for n, one in waiting.items() if n < change.number and at == (one.directory, one.name))
        return settled

    def _closed(self, chosen: frozenset[int]) -> frozenset[int]:
        """Without the changes that require one that did not survive."""
        lost, before = {change.number for change in self._pending} - chosen, -1
        while len(lost) != before:  # twice for a directory that was renamed; else what a change requires is before it
            before = len(lost)
            for change in self._pending:
                if change.number not in lost and not lost.isdisjoint(change.requires):
                    lost.add(change.number)
        return frozenset(change.number for change in self._pending) - lost

    def _world(self, chosen: frozenset[int]) -> dict[str, int]:
        """The paths, and the node of each, where these changes of names survive."""
        names = {directory: dict(inner) for directory, inner in self._durable.items()}
        _apply(names, (change for change in self._pending if change.number in chosen))
        return self._reach(names)

    def _reach(self, names: Names) -> dict[str, int]:
        """Every path from the root in its order, and the number of its node."""
        found: dict[str, int] = {}
        waiting = [("", ROOT)]
        while waiting:
            prefix, directory = waiting.pop()
            for name, number in names[directory].items():
                found[prefix + name] = number
                if self._nodes[number].file is None:
                    waiting.append((f"{prefix}{name}/", number))
        return dict(sorted(found.items()))

    def _files(self, world: Mapping[str, int]) -> dict[int, FileContent]:
        return {number: file for number in world.values() if (file := self._nodes[number].file) is not None}

    def _tree(self, world: Mapping[str, int], contents: Mapping[int, bytes]) -> Tree:
        """These paths, each with the content of its node: as it is now, where nothing else is said."""
        now = {path: contents.get(number, self._nodes[number].now) for path, number in world.items()}
        links: dict[str, str] = {}
        if len(set(world.values())) < len(world):
            first: dict[int, str] = {}
            links = {path: other for path, number in world.items() if (other := first.setdefault(number, path)) != path}
        times_ns = {path: when_ns for path, number in world.items() if (when_ns := self._nodes[number].modified_ns)}
        return Tree(now, links, times_ns)

    # Within

    def _sync(self, path: str, files: Sequence[FileContent]) -> None:
        for file in files:
            file.sync()

    def _make(self, path: str, node: Node) -> None:
        directory, name = self._place(path)
        if name in self._names[directory]:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self._change(directory, name, self._new(node))

    def _new(self, node: Node) -> int:
        number = next(self._numbers)
        self._nodes[number] = node
        if node.file is None:
            self._names[number] = {}
            self._durable[number] = {}
        return number

    def _own(self, number: int) -> FileContent:
        """The content of a file that is about to change."""
        file = self._nodes[number].file
        assert file is not None
        return file

    def _file(self, path: str) -> FileContent:
        if self._node(path).file is None:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return self._own(self._number(path))

    def _settle(self, path: str, tree: Tree) -> None:
        directory, name = self._place(path)
        content = tree.nodes[path]
        if path in tree.links:
            number = self._number(tree.links[path])
        else:
            file = None if content is None else self.content.durable(content)
            number = self._new(Node(file, tree.times_ns.get(path, 0)))
        self._names[directory][name] = self._durable[directory][name] = number

    def _change(self, directory: int, name: str, node: int | None, requires: tuple[int, ...] = ()) -> int:
        """The name is added, or removed where there is no node."""
        before = next((one for one in reversed(self._pending) if (one.directory, one.name) == (directory, name)), None)
        if before is not None:
            requires = (*requires, *before.requires)
        change = NameChange(next(self._numbers), directory, name, node, requires)
        _apply(self._names, [change])
        self._pending.append(change)
        return change.number

    def _steps_to(self, path: str) -> Iterator[tuple[int, str]]:
        """The names that lead to the directory of a path."""
        while path := path.rpartition("/")[0]:
            yield self._place(path)

    def _place(self, path: str) -> tuple[int, str]:
        directory, _, name = path.rpartition("/")
        return self._directory(directory), name

    def _directory(self, path: str) -> int:
        number = self._number(path)
        if self._nodes[number].file is not None:
            raise NotADirectoryError(errno.ENOTDIR, "no directory", path)
        return number

    def _node(self, path: str) -> Node:
        return self._nodes[self._number(path)]

    def _number(self, path: str) -> int:
        number = ROOT
        for part in path.split("/") if path else ():
            try:
                number = self._names[number][part]
            except KeyError:
                raise FileNotFoundError(errno.ENOENT, "not there", path) from None
        return number


def _apply(names: Names, changes: Iterable[NameChange]) -> None:
    for change in changes:
        if change.node is None:
            names[change.directory].pop(change.name, None)
        else:
            names[change.directory][change.name] = change.node
