"""What the manual says in numbers and tables is what the code has."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from support import ROOT
from support.manual import MAN, page, rows
from xaqueue import errors
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import GROUPS
from xaqueue.core.engine.memory import FINISHED_LIMIT, FINISHED_SECONDS
from xaqueue.core.model import layout, message_name
from xaqueue.core.model.block import (
    BODY_LIMIT_BYTES,
    FORMAT_VERSION,
    MAGIC,
    PREFIX_BYTES,
    PROPERTIES_LIMIT_BYTES,
    Kind,
)
from xaqueue.core.model.branch import TRANSITIONS, Call, State
from xaqueue.core.model.definitions import parse
from xaqueue.core.storage import directory_fs
from xaqueue.core.storage.hardening import DEFAULT
from xaqueue.message import DEFAULT_PRIORITY, QUEUE_NAME, Properties
from xaqueue.xa import Code

PAGES = tuple(path.name for path in sorted(MAN.glob("xaqueue*.[157]")))
NAMED = re.compile(r"\bSx (.+?)(?= No in Xr| [.,:;)]| Ns|$)(?: No in Xr (\S+) (\d))?")


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_clean_mdoc(name: str) -> None:
    if not shutil.which("mandoc"):
        pytest.skip("needs mandoc to lint the manual")
    linted = subprocess.run(["mandoc", "-Tlint", str(MAN / name)], capture_output=True, text=True, check=False)
    assert [line for line in linted.stdout.splitlines() if "STYLE" not in line] == []


def test_what_a_page_names_of_another_is_there() -> None:
    """A section by its title, in this page or in the one that is named with it."""
    titles = {name: set(re.findall(r"^\.S[hs] (.*)$", page(name), re.MULTILINE)) for name in PAGES}
    named = [
        (name, title, f"{there or name[:-2]}.{section or name[-1]}")
        for name in PAGES
        for line in page(name).replace("\nin\n.Xr ", " No in Xr ").splitlines()
        for title, there, section in NAMED.findall(line if line.startswith(".") else "")
    ]
    assert len(named) > 60
    assert [one for one in named if one[1] not in titles[one[2]]] == []
    assert max(page(name).count("\n") for name in PAGES if name.endswith(".7")) < 1500


def test_every_row_of_the_prefix_is_where_the_codec_puts_it() -> None:
    table = [(int(offset), int(size)) for offset, size, _ in rows(page("xaqueue.5"), "offset")]
    assert table == [(0, 4), (4, 1), (5, 1), (6, 2), (8, 4), (12, 8), (20, 8), (28, 16), (44, 4), (48, 4)]
    assert sum(table[-1]) == PREFIX_BYTES
    text = page("xaqueue.5")
    assert f"prefix of {PREFIX_BYTES} bytes" in text
    assert f"format version: {FORMAT_VERSION}" in text
    assert f"magic Dq {MAGIC.decode()}" in text
    assert f"at most {PROPERTIES_LIMIT_BYTES}" in text


def test_kinds_and_properties_are_all_there() -> None:
    kinds = {name: int(number) for number, name, _ in rows(page("xaqueue.5"), "kind")}
    assert kinds == {kind.name.lower(): kind.value for kind in Kind}
    keys = [row[0] for row in rows(page("xaqueue.5"), "key")]
    assert keys == [name for name in Properties.__dataclass_fields__ if name != "unknown"]
    assert f"default {DEFAULT_PRIORITY}" in page("xaqueue.5")


def test_every_exception_has_its_code_and_class() -> None:
    table = rows(page("xaqueue.5"), "exception")
    for name, pep, code, _ in table:
        error = getattr(errors, name)
        assert issubclass(error, getattr(errors, pep)), name
        if not code.endswith("*") and name != "DiskFull":
            assert error.code is Code[code], name
    above = {"Error", "InterfaceError", "DatabaseError", "ProgrammingError", "DataError", "OperationalError"}
    above |= {"IntegrityError", "NotSupportedError"}
    classes = {
        name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.Error)
    }
    assert {row[0] for row in table} == classes - above


def test_pinned_answers_are_those_of_the_table() -> None:
    states = {
        "active, same session": [State.ACTIVE],
        "rollback-only": [State.ROLLBACK_ONLY],
        "active or suspended": [State.ACTIVE, State.SUSPENDED],
        "carried": [State.DELEGATED],
        "heuristically finished": [State.HEURISTIC_COMMIT, State.HEURISTIC_ROLLBACK],
        "doomed or rollback-only": [State.DOOMED, State.ROLLBACK_ONLY],
        "not heuristic": [State.ACTIVE, State.IDLE, State.PREPARED, State.ROLLBACK_ONLY],
    }
    for call, where, answer in rows(page("xaqueue.5"), "call"):
        for state in states[where]:
            code, _ = TRANSITIONS.get((Call(call), state), (Code.XAER_PROTO, state))
            assert code is Code[answer], (call, where)


def test_numbers_and_grammars() -> None:
    five, seven = page("xaqueue.5"), page("xaqueue.7")
    assert f"max_body_bytes = {BODY_LIMIT_BYTES}" in five
    assert f"at most {layout.RANGE_SIZE} messages" in five
    assert f"{layout.RANGE_SIZE} numbers at a time" in seven
    assert f"last {FINISHED_LIMIT} finished xids" in five
    assert FINISHED_SECONDS == 3600
    assert QUEUE_NAME.pattern in five.replace("\n", " ")
    assert f"Dq {DEFAULT} ." in five
    assert len(layout.format_watermark(layout.Watermark(1, 2))) == 43
    assert f"{directory_fs.OPEN_FILES} descriptors" in seven.replace("\n", " ")


def test_the_tags_of_a_name_are_those_of_the_page() -> None:
    section = re.search(r"\.Ss Tags\n(.*?)\n\.Ss ", page("xaqueue.5"), re.DOTALL)
    assert section
    assert re.findall(r"^\.It ([a-z]) Ta", section[1], re.MULTILINE) == sorted(message_name.TAGS)
    (name,) = re.findall(r"^\.Dl (\S+)$", section[1], re.MULTILINE)
    parsed = message_name.parse(name)
    assert parsed
    assert message_name.read_tags(parsed[2]) == message_name.Tags(message_name.correlation_hash(b"c"), priority=7)
    assert f"where it is not {DEFAULT_PRIORITY}" in section[1]


def test_the_example_of_queues_toml_is_taken() -> None:
    example = re.search(r"\.Sh QUEUES\.TOML\n\.Bd.*?\n(.*?)\.Ed", page("xaqueue.5"), re.DOTALL)
    assert example
    assert list(parse(example[1]).queues) == ["orders", "readings", "orders.failed", "orders.expired", "audit"]


def test_the_verbs_are_in_the_order_of_their_groups() -> None:
    section = page("xaqueue.1").partition(".Sh COMMANDS")[2].partition(".Sh ENVIRONMENT")[0]
    found: dict[str, dict[str, None]] = {}
    for group, verb in re.findall(r"^\.Ss (.*)|^\.It Cm ([a-z-]+)", section, re.MULTILINE):
        if group:
            found[group] = {}
        else:
            found[next(reversed(found))][verb] = None
    assert [(group, list(verbs)) for group, verbs in found.items()] == [
        (group, " ".join(modules.values()).split()) for group, modules in GROUPS.items()
    ]


def test_exit_statuses() -> None:
    section = page("xaqueue.1").partition(".Sh EXIT STATUS")[2].partition(".Sh")[0]
    documented = {int(number) for number in re.findall(r"^\.It (\d+)", section, re.MULTILINE)}
    assert documented == {int(code) for code in ExitCode}


def test_each_promise_of_another_system_names_what_holds_it() -> None:
    """A test that has its id, or the section that says it."""
    text = page("xaqueue-operating.7")
    promises = text.partition(".Sh PROMISES OF OTHERS\n")[2].partition("\n.Sh ")[0].split("\n.It ")[1:]
    assert len(promises) > 10
    for promise in promises:
        ids = promise.partition("\n")[0].split(", ")
        assert all(re.fullmatch(r"[A-Z]{3}-[0-9]{2}", one) for one in ids), promise
        tests = re.findall(r"^\.Pa (tests/\S+)$", promise, re.MULTILINE)
        for name in tests:
            held = (ROOT / name).read_text()
            assert [one for one in ids if one not in held] == [], name
        sections = re.findall(r"^\.Sx ([A-Z ]+) \.$", promise, re.MULTILINE)
        assert tests or sections, promise
        assert all(f".Sh {one}\n" in text for one in sections), promise
