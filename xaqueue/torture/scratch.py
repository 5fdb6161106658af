"""Directories that a torture makes for itself, and removes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xaqueue.torture.forgetful import Tree


@contextmanager
def made(place: Path) -> Iterator[Path]:
    """A new directory, gone after the block."""
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place)


def tree_in(root: Path) -> Tree:
    """What a directory holds."""
    nodes: dict[str, bytes | None] = {}
    for path in sorted(root.rglob("*")):
        nodes[str(path.relative_to(root))] = None if path.is_dir() else path.read_bytes()
    return Tree(nodes)


@contextmanager
def laid_out(tree: Tree, place: Path) -> Iterator[Path]:
    """A new directory that holds this."""
    with made(place):
        for path, content in tree.nodes.items():
            if path in tree.twins:
                os.link(place / tree.twins[path], place / path)
            elif content is None:
                (place / path).mkdir()
            else:
                (place / path).write_bytes(content)
        yield place
