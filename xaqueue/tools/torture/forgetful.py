"""A file system in memory that forgets: after a crash it holds what was synced, and any part of the rest.

It is the other side of ``xaqueue.storage.fs.FileSystem``. What a crash may leave of what was not synced:

- A name that was added may be missing; a name that was removed may be back. ``sync_dir`` settles the names of that one
  directory and of no other: a directory that was made needs the sync of its parent.
- A rename is two halves. The new name alone is possible (the file is in both places). The loss of the old name comes
  only with the new name in reach, directories that lead to it included, because a rename is atomic; and so does
  another file under the old name, which replaced what was lost. Stricter than that is the sync of the source alone:
  it settles the loss and promises nothing about the new name.
- The content of a new file may be whole, empty, short, or zeros. Every sector that is overwritten, of a file old or
  new, has any of the contents that it had since the last sync, whatever became of the others (``content``).
- A sync that fails (``fail_after``) drops what it was to write: the pages count as clean, so that later syncs pass over
  them, and reads show them as long as the power stays on. What is written there anew is synced as ever. Names are not
  dropped: a file system that cannot write its own journal goes down as a whole.
- A file that is in two places after a crash is one file with two names: what is written by one is read by the other,
  and its rename to its own other name does nothing.

Modification times are kept: nothing in the engine decides by them.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Callable, Iterator, Sequence

from xaqueue.storage.fs import Room
from xaqueue.tools.torture.content import FileContent
from xaqueue.tools.torture.trees import ROOT, FileTree, NameChange, Names, Node, Survivors, apply, left_of, reach


class Crashed(BaseException):
    """The power is gone. No ``except Exception`` absorbs it."""


class Tree(FileTree):
    """A file system at rest."""

    def open(self, crash_after: int | None = None) -> ForgetfulFileSystem:
        """A file system in which all of this is durable."""
        return ForgetfulFileSystem(crash_after, self)


class ForgetfulFileSystem:
    """The port in memory. ``crash_after``: how many calls that change or sync something are still done."""

    def __init__(self, crash_after: int | None = None, tree: Tree | None = None) -> None:
        self.crash_after = crash_after
        self.calls = 0
        self.crashed = False
        self.fail_after: int | None = None
        """The first sync behind so many calls fails, once."""
        self.fail_number = errno.EIO
        self.failed = False
        self.before_call: Callable[[], object] = lambda: None
        """Is told before each call that changes or syncs something: it may look, or take a copy."""
        self._nodes: dict[int, Node] = {ROOT: Node(None)}
        self._names: Names = {ROOT: {}}
        self._durable: Names = {ROOT: {}}
        self._pending: list[NameChange] = []
        self._numbers = itertools.count(1)
        self._held: set[int] = set()
        """Nodes whose content a copy has as well."""
        for path in sorted(tree.nodes if tree else ()):
            assert tree is not None
            self._settle(path, tree)

    # The port: what changes or syncs something

    def create(self, path: str, chunks: Sequence[bytes]) -> None:
        self._call()
        directory, name = self._place(path)
        if name in self._names[directory]:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self._add(directory, name, self._new(Node(FileContent.new(b"".join(chunks)))))

    def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        self._call()
        directory, name = self._place(path)
        number = self._names[directory].get(name)
        if number is None:
            number = self._new(Node(FileContent(b"")))
            self._add(directory, name, number)
        if self._nodes[number].file is None:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        self._own(number).overwrite(offset, b"".join(chunks))

    def set_modified_ns(self, path: str, when_ns: int) -> None:
        self._call()
        self._node(path).modified_ns = when_ns

    def rename(self, source: str, target: str) -> None:
        self._call()
        old_directory, old_name = self._place(source)
        directory, name = self._place(target)
        number = self._number(source)
        assert self._nodes[number].file is not None, "only files are renamed"
        if self._names[directory].get(name) == number:
            return
        waiting = {(change.directory, change.name): change.number for change in self._pending}
        leading = [waiting[place] for place in self._steps_to(target) if place in waiting]
        addition = self._add(directory, name, number)
        self._remove(old_directory, old_name, (*leading, addition))

    def unlink(self, path: str) -> None:
        self._call()
        if self._node(path).file is None:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        self._remove(*self._place(path))

    def make_dir(self, path: str) -> None:
        self._call()
        directory, name = self._place(path)
        if name in self._names[directory]:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self._add(directory, name, self._new(Node(None)))

    def remove_dir(self, path: str) -> None:
        self._call()
        if self.list(path):
            raise OSError(errno.ENOTEMPTY, "directory not empty", path)
        self._remove(*self._place(path))

    def sync_file(self, path: str) -> None:
        self._call()
        file = self._own(self._number(path))
        self._fail(path, file)
        file.sync()

    def sync_data(self, path: str) -> None:
        self.sync_file(path)

    def sync_dir(self, path: str) -> None:
        self._call()
        directory = self._directory(path)
        self._fail(path)
        for change in self._pending:
            if change.directory == directory:
                apply(self._durable, change)
        self._pending = [change for change in self._pending if change.directory != directory]

    def sync_all(self) -> None:
        self._call()
        waiting = [number for number, node in self._nodes.items() if node.file is not None and not node.file.is_synced]
        files = [self._own(number) for number in waiting]
        self._fail("", *files)
        for file in files:
            file.sync()
        for change in self._pending:
            apply(self._durable, change)
        self._pending.clear()

    # The port: what only looks

    def read(self, path: str, size: int | None = None) -> bytes:
        self._look()
        content = self._node(path).now
        if content is None:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return content[:size]

    def size(self, path: str) -> int:
        return len(self.read(path))

    def modified_ns(self, path: str) -> int:
        self._look()
        return self._node(path).modified_ns

    def list(self, path: str) -> list[str]:
        self._look()
        return sorted(self._names[self._directory(path)])

    def is_dir(self, path: str) -> bool:
        return self.exists(path) and self._node(path).file is None

    def exists(self, path: str) -> bool:
        self._look()
        try:
            self._number(path)
        except FileNotFoundError:
            return False
        return True

    def hold_dir(self, path: str) -> None:
        self._look()
        self._directory(path)

    def room(self) -> Room:
        return Room(1 << 40, 1 << 40, 1 << 20, 1 << 20)

    def close(self) -> None:
        """Nothing is held."""

    # The crash

    def copy(self) -> ForgetfulFileSystem:
        """What a crash now would leave: the power goes there, while it goes on here."""
        copy = ForgetfulFileSystem(self.calls)
        copy.calls, copy.crashed, copy.failed = self.calls, True, self.failed
        copy._nodes = {number: Node(node.file, node.modified_ns) for number, node in self._nodes.items()}
        copy._names = {directory: dict(names) for directory, names in self._names.items()}
        copy._durable = {directory: dict(names) for directory, names in self._durable.items()}
        copy._pending = list(self._pending)
        number = next(self._numbers)
        self._numbers, copy._numbers = itertools.count(number), itertools.count(number)
        copy._held, self._held = set(self._nodes), set(self._nodes)
        return copy

    def tree_after_kill(self) -> Tree:
        """The process is gone and the power is not: every call that was made has happened."""
        return _tree(left_of(reach(self._names, self._nodes), self._nodes))

    def survive_kill(self, crash_after: int | None = None) -> None:
        """As ``tree_after_kill``, here: the next process sees it all, and what was not synced still is not."""
        self.crashed, self.crash_after = False, crash_after

    def trees_after_crash(self, limit: int = 1 << 10, seed: int = 0) -> Iterator[Tree]:
        """Trees that a power loss can leave now, none twice; all of them up to the limit (``Survivors.trees``)."""
        return map(_tree, self._survivors().trees(limit, seed))

    def some_trees_after_crash(self, count: int, dice: random.Random) -> Iterator[Tree]:
        """Two extremes that a power loss can leave now, and so many of the others (``Survivors.some``)."""
        return map(_tree, self._survivors().some(count, dice))

    def tree_by_chance(self, dice: random.Random) -> Tree:
        """One of the trees that a power loss can leave now."""
        return _tree(self._survivors().by_chance(dice))

    def _survivors(self) -> Survivors:
        return Survivors(self._nodes, self._durable, self._pending)

    # Within

    def _call(self) -> None:
        self.before_call()
        self._look()
        if self.crash_after is not None and self.calls >= self.crash_after:
            self.crashed = True
            raise Crashed(f"before call {self.calls + 1}")
        self.calls += 1

    def _fail(self, path: str, *files: FileContent) -> None:
        if self.fail_after is not None and self.calls > self.fail_after:
            self.fail_after, self.failed = None, True
            for file in files:
                file.lose()
            raise OSError(self.fail_number, "sync failed", path)

    def _look(self) -> None:
        if self.crashed:
            raise Crashed("nobody is there any more")

    def _new(self, node: Node) -> int:
        number = next(self._numbers)
        self._nodes[number] = node
        if node.file is None:
            self._names[number] = {}
            self._durable[number] = {}
        return number

    def _own(self, number: int) -> FileContent:
        """The content of a file that is about to change, apart from that of copies."""
        node = self._nodes[number]
        assert node.file is not None
        if number in self._held:
            self._held.remove(number)
            node.file = node.file.copy()
        return node.file

    def _settle(self, path: str, tree: Tree) -> None:
        directory, name = self._place(path)
        content = tree.nodes[path]
        if path in tree.twins:
            number = self._number(tree.twins[path])
        else:
            number = self._new(Node(None if content is None else FileContent.durable(content)))
        self._names[directory][name] = self._durable[directory][name] = number

    def _add(self, directory: int, name: str, node: int) -> int:
        return self._change(directory, name, node, ())

    def _remove(self, directory: int, name: str, requires: tuple[int, ...] = ()) -> None:
        self._change(directory, name, None, requires)

    def _change(self, directory: int, name: str, node: int | None, requires: tuple[int, ...]) -> int:
        before = next((one for one in reversed(self._pending) if (one.directory, one.name) == (directory, name)), None)
        if before is not None:
            requires = (*requires, *before.requires)
        change = NameChange(next(self._numbers), directory, name, node, requires)
        apply(self._names, change)
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


def _tree(left: FileTree) -> Tree:
    return Tree(left.nodes, left.twins)
