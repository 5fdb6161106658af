"""xaqueue-operating(7) LOG EVENTS lists the codes of all events that the package logs, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from support.manual import page
from support.package_source import NAMES, tree_of

pytestmark = pytest.mark.xdist_group("source")  # which is read once

CALLS = frozenset({"debug", "info", "warning", "error", "critical", "exception", "log"})
LOGGERS = frozenset({"log", "_log", "logger", "_logger", "LOG", "logging"})


def formats(module: str) -> Iterator[tuple[str, str]]:
    """Where something is logged, and its format: a literal, or a name that the function gives one."""
    tree = tree_of(module)
    names = {
        node.targets[0].id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id in LOGGERS):
            continue
        text = node.args[1 if node.func.attr == "log" else 0]
        found = names.get(text.id) if isinstance(text, ast.Name) else getattr(text, "value", None)
        yield f"{module}:{node.lineno}", found if isinstance(found, str) else ""


def listed() -> list[str]:
    _, _, section = page("xaqueue-operating.7").partition(".Sh LOG EVENTS\n")
    return re.findall(r"^\.It Li (\S+)\n(?=[^.\n].*\n[^.\n])", section.partition("\n.Sh ")[0], re.MULTILINE)


def test_codes_and_their_list_agree() -> None:
    logged = [one for module in NAMES for one in formats(module)]
    assert len(logged) > 50
    found = {place: re.match(r"\[([a-z-]+)\] ", text) for place, text in logged}
    assert [place for place, code in found.items() if code is None] == []
    assert sorted(listed()) == sorted({code[1] for code in found.values() if code})


def test_every_logger_is_seen_here() -> None:
    """A logger under another name would log what the list does not know."""
    for module, path in NAMES.items():
        for name in re.findall(r"^(\w+) = logging\.getLogger\(", path.read_text("utf-8"), re.MULTILINE):
            assert name in LOGGERS, f"{module}: {name}"
