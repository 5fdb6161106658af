"""The protocol in xaqueue(5) is the one that the server speaks: every method, number and byte that the page has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

import xaqueue
from support.manual import page, rows
from support.raw_client import RawClient
from support.served import ServerThread
from xaqueue.errors import InvalidArgument
from xaqueue.message import PLAIN_OPTIONS
from xaqueue.rpc import wire
from xaqueue.rpc.methods import messages, service
from xaqueue.rpc.server import calls, session
from xaqueue.rpc.server.peer import Limits
from xaqueue.xa import Code, Flag, Outcome, Vote

MARKER = '.\\" tests/docs/test_man_protocol.py holds this section against the code.\n'


@pytest.fixture(scope="module")
def section() -> str:
    before, marker, after = page("xaqueue.5").partition(MARKER)
    assert marker, f"man/xaqueue.5 has no line {MARKER!r}"
    assert before.endswith(".Sh PROTOCOL\n")
    return after.partition("\n.Sh ")[0]


def test_every_method_is_there_with_its_parameters(section: str) -> None:
    documented = {}
    for name, parameters, _ in rows(section, "method"):
        given = [part.strip() for part in parameters.split(",") if part != "-"]
        optional = [part for part in given if part.endswith("?")]
        assert given[len(given) - len(optional) :] == optional, name
        documented[name] = (len(given) - len(optional), len(given))
    assert documented == {name: (method.least, method.most) for name, method in calls.METHODS.items()}


def test_every_method_is_explained(section: str) -> None:
    text = section.partition(".It Sy method")[2].partition(".Ss Errors")[0].partition("\n.El\n")[2]
    explained = {name for line in re.findall(r"^\.It Li (.*)$", text, re.MULTILINE) for name in line.split(" , ")}
    explained |= {"browse_next", "browse_end"} if ".Li browse_next" in text and ".Li browse_end" in text else set()
    assert explained == set(calls.METHODS)


def test_every_option_of_enqueue_is_there(section: str) -> None:
    text = section.partition(".It Li enqueue\n")[2].partition(".It Li")[0]
    assert set(re.findall(r"^\.Li (\w+)", text, re.MULTILINE)) - {"body"} == set(PLAIN_OPTIONS)


def test_flags_frames_and_errors(section: str) -> None:
    flags = {name: int(bits, 16) for name, bits in rows(section, "flag")}
    assert flags == {flag.name: int(flag) for flag in Flag if flag}
    frames = {name: int(array[1]) for name, array, _ in rows(section, "frame")}
    assert frames == {"request": wire.REQUEST, "response": wire.RESPONSE, "notification": wire.NOTIFICATION}
    assert [row[0] for row in rows(section, "error key")] == list(wire.error_to(InvalidArgument("x"), "start"))


def test_numbers_and_words(section: str) -> None:
    limits = Limits()
    flat = section.replace("\n", " ")
    for said in (
        f"The version is {wire.PROTOCOL}.",
        f"integer from 0 to 2**{wire.ID_LIMIT.bit_length() - 1}-1",
        f"at most {limits.request_bytes} bytes",
        f"It takes {limits.sessions} sessions",
        f"at most {wire.LONGEST_LIST} values",
        f"at most {wire.FRAME_VALUES}, and a parameter has at most {wire.DEEPEST} of them",
        f"at most {wire.LONGEST_MESSAGE} characters",
        f"at most, and by default, {wire.PAGE}.",
        f"has at most {wire.PAGE} messages",
        f"pass {wire.PAGE_BYTES} bytes",
        f"at most {messages.CURSORS} browses open",
        f"more than {session.MAX_PIPELINED_CALLS} requests or {session.MAX_PIPELINED_BYTES} bytes of them waiting",
        f"at most {service.LISTED} maps",
        *(f".Dq {word.value}" for word in (*Outcome, *Vote)),
    ):
        assert said in flat, said


def test_the_answer_to_hello_has_what_is_said(section: str, served: ServerThread) -> None:
    text = section.partition(".It Li hello\n")[2].partition("The answer has\n")[2].partition(".It Li")[0]
    with RawClient(served.path) as client:
        assert set(re.findall(r"^\.Li (\w+)", text, re.MULTILINE)) == set(client.call("hello", {"protocol": 99}))
        assert client.call("hello", {"protocol": 99})["protocol"] == wire.PROTOCOL


def test_the_bytes_of_the_example_do_what_they_say(section: str, served: ServerThread) -> None:
    example = section.partition(".Ss Example")[2]
    sent, answered = (
        bytes.fromhex("".join(line[1:] for line in example.splitlines() if line[:1] == mark)) for mark in "><"
    )
    with RawClient(served.path) as client:
        client.send(sent)
        assert b"".join(msgpack.packb(client.answer()) for _ in range(2)) == answered
        cursor, messages = client.call("browse", "orders")
    assert cursor is None
    assert [(message[0], message[2], message[4]) for message in messages] == [(bytes(range(16)), 1, b"hi")]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServerThread]:
    xaqueue.connect(tmp_path / "space", create=True, sync="NONE").close()
    made = ServerThread(tmp_path / "space", tmp_path / "socket", sync="NONE")
    yield made
    made.stop()


def test_the_codes_are_there_by_number(section: str) -> None:
    """A client of another language has no xa.h."""
    found = re.findall(r"^\.Dv (XA\w+)\n\.Pq (-?\d+) [,.]$", section, re.MULTILINE)
    assert {name: int(number) for name, number in found} == {code.name: code.value for code in Code}
