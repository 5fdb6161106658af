"""The tree drawn in ``errors`` is the tree of its classes, and each class carries the XA code that the drawing says."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

import pytest

import xaqueue
from xaqueue import errors
from xaqueue.errors import DiskFull, Error, HeuristicOutcome, RolledBack
from xaqueue.xa import Code

LINE = re.compile(r"(?P<stem>[ |`]*(?:[|`]- )?)(?P<name>[A-Z]\w+)(?: +(?P<code>XAE?R?_\w+\*?))?(?: .*)?")


class Drawn(NamedTuple):
    name: str
    parent: str | None
    code: str | None


def drawn() -> list[Drawn]:
    """The lines of the drawing, each with the class that it hangs from."""
    found: list[Drawn] = []
    above: list[tuple[int, str]] = []
    for line in inspect.cleandoc(errors.__doc__ or "").splitlines():
        if not line.startswith("    ") or not (match := LINE.fullmatch(line[4:])):
            continue
        depth = len(match["stem"]) // 3
        while above and above[-1][0] >= depth:
            above.pop()
        found.append(Drawn(match["name"], above[-1][1] if above else None, match["code"]))
        above.append((depth, match["name"]))
    return found


def classes() -> dict[str, type[Error]]:
    return {name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Error)}


def made(cls: type[Error]) -> Error:
    return cls("why", Code.XA_HEURCOM) if cls is HeuristicOutcome else cls("why")


def test_the_drawing_has_every_class_once() -> None:
    names = [line.name for line in drawn()]
    assert sorted(names) == sorted(classes())


@pytest.mark.parametrize("line", drawn(), ids=lambda line: line.name)
def test_each_class_hangs_where_it_is_drawn(line: Drawn) -> None:
    parent = classes()[line.name].__bases__[0].__name__
    assert parent == (line.parent or "Exception")


@pytest.mark.parametrize("line", [line for line in drawn() if line.code], ids=lambda line: line.name)
def test_each_code_is_the_drawn_one(line: Drawn) -> None:
    assert line.code is not None
    code = made(classes()[line.name]).code
    assert code.name.startswith(line.code.rstrip("*"))
    assert line.code.endswith("*") or code.name == line.code


@pytest.mark.parametrize("name", sorted(classes()))
def test_every_error_has_a_code_a_docstring_and_its_message(name: str) -> None:
    error = made(classes()[name])
    assert isinstance(error.code, Code)
    assert error.code not in (Code.XA_OK, Code.XA_RDONLY)
    assert str(error) == "why"
    assert type(error).__doc__


def test_codes_given_at_the_raise() -> None:
    assert RolledBack("why").code is Code.XA_RBROLLBACK
    assert RolledBack("why", Code.XA_RBTIMEOUT).code is Code.XA_RBTIMEOUT
    assert DiskFull("why").code is Code.XA_RBOTHER
    assert HeuristicOutcome("why", Code.XA_HEURMIX).code is Code.XA_HEURMIX


def test_pep_249s_classes_are_the_modules() -> None:
    """PEP 249 wants these names in the module that has ``connect``."""
    for name in (
        "Error",
        "InterfaceError",
        "DatabaseError",
        "DataError",
        "OperationalError",
        "IntegrityError",
        "ProgrammingError",
        "NotSupportedError",
    ):
        assert getattr(xaqueue, name) is getattr(errors, name)
    assert (xaqueue.apilevel, xaqueue.threadsafety) == ("2.0", 1)


def test_xa_codes_are_those_of_xa_h() -> None:
    """X/Open C193, chapter 4.3."""
    assert {code.name: int(code) for code in Code} == {
        "XA_OK": 0,
        "XA_RDONLY": 3,
        "XA_RETRY": 4,
        "XA_HEURMIX": 5,
        "XA_HEURRB": 6,
        "XA_HEURCOM": 7,
        "XA_HEURHAZ": 8,
        "XA_NOMIGRATE": 9,
        "XA_RBROLLBACK": 100,
        "XA_RBCOMMFAIL": 101,
        "XA_RBDEADLOCK": 102,
        "XA_RBINTEGRITY": 103,
        "XA_RBOTHER": 104,
        "XA_RBPROTO": 105,
        "XA_RBTIMEOUT": 106,
        "XA_RBTRANSIENT": 107,
        "XAER_ASYNC": -2,
        "XAER_RMERR": -3,
        "XAER_NOTA": -4,
        "XAER_INVAL": -5,
        "XAER_PROTO": -6,
        "XAER_RMFAIL": -7,
        "XAER_DUPID": -8,
        "XAER_OUTSIDE": -9,
    }
