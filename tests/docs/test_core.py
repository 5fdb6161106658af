"""The core names no feature. What of it still does stands in ``core_today.toml``: lists that only get shorter, and
numbers that only fall.

A feature is a folder of ``xaqueue/features/`` that attaches itself: nothing in ``xaqueue/core/`` imports one, has its
word in a name, or asks for it. An entry that is true no more goes in the change that made it so; none is ever added.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from support.package_source import NAMES, imports_of, is_in, tree_of

pytestmark = pytest.mark.xdist_group("source")  # which is read once

TODAY = tomllib.loads(Path(__file__).with_name("core_today.toml").read_text())
CORE = sorted(module for module in NAMES if is_in(module, "xaqueue.core"))
VOCABULARY = {
    *("errors", "xid", "xa", "times", "message", "connection", "message_calls", "transaction", "resource_manager"),
    *("access", "endpoint"),
}
"""The public face of the package, which every room may import."""

FEATURE_WORDS = ("dedup", "lease", "group", "topic", "batch", "stream", "snapshot", "replica", "scrub", "carr")
"""No part of a name begins with one: ``dedup_key``, ``BatchVerbs`` and ``_carried`` have one, ``release`` has none."""

QUESTIONS = {
    *("key", "keys", "until_us"),  # deduplication
    *("carrier", "carried", "CARRIED"),  # changes that a database carries
    "is_of_a_batch",
    *("retry", "failed", "counted", "leaving"),  # tries
    *("has_unsynced", "waits", "_waits", "late", "is_atomic", "NOTHING"),  # levels
}
"""The names by which ``commit.py`` asks about a feature or about how durable something is to be."""


def short(module: str) -> str:
    return module.removeprefix("xaqueue.core").lstrip(".")


def imports_found() -> dict[str, set[str]]:
    """By module of the core what it imports that is neither of the core nor of the vocabulary; without ``xaqueue.``."""
    found = {}
    for module in CORE:
        names = {one.name for one in imports_of(module) if is_in(one.name, "xaqueue")}
        outside = {name.removeprefix("xaqueue.") for name in names if not is_in(name, "xaqueue.core")}
        found[short(module)] = outside - VOCABULARY
    return found


def words_found() -> dict[str, set[str]]:
    """By module of the core its names with a feature's word: what it defines, what it calls, what it assigns."""
    return {short(module): {name for name in names_in(tree_of(module)) if has_word(name)} for module in CORE}


def names_in(tree: ast.AST) -> Iterator[str]:
    """All of them, but for ``match.group(1)``."""
    of_matches = set()
    for node in ast.walk(tree):  # a call comes before the name that it calls
        match node:
            case ast.Call(func=ast.Attribute(attr="group") as called):
                of_matches.add(called)
            case ast.Attribute() if node in of_matches:
                pass
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.alias(asname=str(name)):
                yield name
            case ast.alias(name=name):
                yield name.rpartition(".")[2]


def has_word(name: str) -> bool:
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("group_commit", "")
    return any(part.startswith(FEATURE_WORDS) for part in name.split("_"))


def class_of(module: str, name: str) -> ast.ClassDef:
    return next(node for node in tree_of(module).body if isinstance(node, ast.ClassDef) and node.name == name)


def fields(name: str) -> int:
    return sum(isinstance(node, ast.AnnAssign) for node in class_of("xaqueue.core.model.branch", name).body)


def own_attributes(tree: ast.AST) -> set[str]:
    """What its methods assign to ``self``."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return {node.attr for node in found if isinstance(node.value, ast.Name) and node.value.id == "self"}


def hung_on() -> set[str]:
    """Attributes that a class of the core declares as a Callable, and that anybody but the object itself assigns."""
    declared = {
        node.target.attr
        for module in CORE
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute)
        if "Callable" in ast.unparse(node.annotation)
    }
    assigned = re.compile(r"(?<!\bself)\.(\w+)(?=(?:, [\w.]+)* = )")
    return declared & {name for path in NAMES.values() for name in assigned.findall(path.read_text("utf-8"))}


def questions(tree: ast.AST) -> int:
    """How many comparisons, sides of an ``and`` or ``or``, and other tests have one of QUESTIONS; each counts once."""
    found: dict[tuple[int, int], ast.expr] = {}
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                tests = [test]
            case ast.BoolOp(values=tests) | ast.comprehension(ifs=tests):
                pass
            case ast.Compare():
                tests = [node]
            case _:
                continue
        asked = [test.operand if isinstance(test, ast.UnaryOp) else test for test in tests]
        found |= {(one.lineno, one.col_offset): one for one in asked if not isinstance(one, ast.BoolOp)}
    return sum(bool(QUESTIONS & set(re.findall(r"\w+", ast.unparse(one)))) for one in found.values())


@cache
def numbers_found() -> dict[str, int]:
    lines = sum(NAMES[module].read_text("utf-8").count("\n") for module in CORE)
    space, memory = class_of("xaqueue.core.engine.state", "Space"), class_of("xaqueue.core.engine.memory", "Memory")
    return {
        "hundreds of lines of the core, the last one begun": -(-lines // 100),
        "modules of the core": sum(NAMES[module].name != "__init__.py" for module in CORE),
        "fields of Branch": fields("Branch"),
        "fields of Written": fields("Written"),
        "attributes of Space and Memory": len(own_attributes(space) | own_attributes(memory)),
        "functions hung on the core from outside": len(hung_on()),
        "questions of commit.py about a feature or a level": questions(tree_of("xaqueue.core.engine.commit")),
    }


def compare(table: str, found: Mapping[str, set[str]], listed: Mapping[str, set[str]]) -> None:
    def what(more: Mapping[str, set[str]], less: Mapping[str, set[str]]) -> list[str]:
        return [f"{module}: {one}" for module in sorted(more) for one in sorted(more[module] - less.get(module, set()))]

    new, gone = what(found, listed), what(listed, found)
    assert new == [], "the core names no feature: let it attach itself from its folder in xaqueue/features/"
    assert gone == [], f"true no more, well done: take this out of [{table}] in core_today.toml"


def listed(table: str) -> dict[str, set[str]]:
    return {module: set(names.split()) for module, names in TODAY[table].items()}


def test_the_core_imports_itself_and_the_vocabulary() -> None:
    compare("imports", imports_found(), listed("imports"))


def test_no_name_in_the_core_has_a_word_of_a_feature() -> None:
    words, others = listed("words"), listed("other meanings")
    assert [module for module in words if words[module] & others.get(module, set())] == []
    both = {module: words.get(module, set()) | others.get(module, set()) for module in {*words, *others}}
    compare("words", words_found(), both)


@pytest.mark.parametrize("name", TODAY["numbers"])
def test_a_number_only_falls(name: str) -> None:
    now, most = numbers_found()[name], TODAY["numbers"][name]
    assert now <= most, f"{name}: {now}, at most {most}: put what came into a feature, or take as much out"
    assert now == most, f"{name}: {now} by now, well done: write that for {most} in core_today.toml"


def test_every_number_has_its_bound() -> None:
    assert set(numbers_found()) == set(TODAY["numbers"])


def test_what_is_wrong_is_found() -> None:
    source = "if a.keys and not b:\n    c = late or x.is_atomic\nd = [e for e in f if e.leaving]\ng = h.base is CARRIED"
    assert questions(ast.parse(source)) == 5
    assert [name for name in ("BatchVerbs", "_carried", "GroupCommit", "release") if has_word(name)] == [
        *("BatchVerbs", "_carried"),
    ]
