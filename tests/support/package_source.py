"""The package as its source says it: its modules, what each imports, and the names that it defines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import xaqueue

ROOT = Path(xaqueue.__file__).parent


class Import(NamedTuple):
    """One imported module."""

    name: str
    line: int


def name_of(path: Path) -> str:
    parts = ["xaqueue", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(NAMES[module].read_text("utf-8"))


@cache
def imports_of(module: str) -> tuple[Import, ...]:
    return tuple(imports_in(tree_of(module)))


def imports_in(tree: ast.Module) -> Iterator[Import]:
    """Wherever in the module; ``from package import module`` names the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield Import(inner if inner in NAMES else node.module or "", node.lineno)
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            name = node.args[0]
            if isinstance(name, ast.JoinedStr | ast.Subscript):
                yield from (Import(module, node.lineno) for module in _from_a_table(tree, name))
                continue
            assert isinstance(name, ast.Constant), f"line {node.lineno}: nobody can tell what is imported"
            yield Import(str(name.value), node.lineno)


def _from_a_table(tree: ast.Module, name: ast.JoinedStr | ast.Subscript) -> list[str]:
    """``f"package.{module}"``: the modules of that package that texts of the same module name. ``TABLE[name]``: those
    that the table of the module does."""
    place: ast.AST = tree
    package = ast.Constant("")
    if isinstance(name, ast.Subscript):
        [place] = (
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == ast.unparse(name.value)
        )
    else:
        assert isinstance(name.values[0], ast.Constant), f"line {name.lineno}: nobody can tell what is imported"
        package = name.values[0]
    texts = {node.value for node in ast.walk(place) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    found = {f"{package.value!s}{text}" for text in texts}
    return sorted(found & NAMES.keys())


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@cache
def defined_in(module: str) -> frozenset[str]:
    """The names at the top of a module, and ``Class.member`` of its classes, with what their methods assign."""
    names: set[str] = set()
    for node in tree_of(module).body:
        names |= _bound_by(node)
        if isinstance(node, ast.ClassDef):
            members = {name for inner in node.body for name in _bound_by(inner)}
            members |= {
                found.attr
                for found in ast.walk(node)
                if isinstance(found, ast.Attribute)
                and isinstance(found.ctx, ast.Store)
                and isinstance(found.value, ast.Name)
                and found.value.id == "self"
            }
            names |= {f"{node.name}.{member}" for member in members}
    return frozenset(names)


def _bound_by(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {found.id for target in targets for found in ast.walk(target) if isinstance(found, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()
