"""Wrong inputs, each with the sentence that says what is wrong with it, and what would be right.

At the command line and in a program. Those of a data engineer are in tests/spark/test_spark_mistakes.py, those at the
console in tests/unit/web/test_http.py: each a table of its own.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import xaqueue
from support.doubtful import fails, run
from support.served import ServerThread
from xaqueue.cli import location
from xaqueue.cli.main import app


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Spaces and what is none, below the current directory; shop is the one that is meant."""
    root = tmp_path_factory.mktemp("mistakes")
    with pytest.MonkeyPatch.context() as patched:
        for name in ("XAQUEUE_FLAGS", "NDRX_XA_OPEN_STR", "NDRX_XA_FLAGS"):
            patched.delenv(name, raising=False)
        patched.chdir(root)
        patched.syspath_prepend(root)
        patched.setattr(location, "CONNECT_S", 0.01)  # nobody is waited for
        patched.setenv("XAQUEUE_SPACE", "shop")
        for name in ("shop", "data/orders", "newer"):
            run("init", name, "--sync", "NONE")
        run("define", "orders", "--description", "what was bought")
        run("define", "--topic", "events")
        Path("newer/FORMAT").write_text("xaqueue 99 newer 00000000-0000-0000-0000-000000000000\n")
        Path("plain").mkdir()
        Path("plain/notes.txt").write_text("no space")
        Path("mistaken.py").write_text("number = 3\n\ndef handle(message, tx):\n    pass\n")
        run("put", "orders", "kept")
        yield root


COMMANDS: dict[str, tuple[int, str]] = {
    # words
    "frob": (2, "No such command 'frob' (see `xaqueue --help`)"),
    "send orders x": (2, "No such command 'send'. Did you mean 'put'? (see `xaqueue --help`)"),
    "indoubt lst": (2, "No such command 'lst'. Did you mean 'list'? (see `xaqueue indoubt --help`)"),
    "queues --nope": (2, "No such option: --nope"),
    "put": (2, "Missing argument 'QUEUE' (see `xaqueue put --help`)"),
    "forward orders": (2, "Missing option '--to' (see `xaqueue forward --help`)"),
    "status data/orders": (
        2,
        "words too many (data/orders): a space is named by --space (see `xaqueue status --help`)",
    ),
    # spaces
    "queues --space nowhere": (3, "nowhere is no queue space: make it one with `xaqueue init nowhere`"),
    "queues --space data": (3, "data is no queue space, and has some in it: take data/orders"),
    "queues --space mistaken.py": (3, "mistaken.py is no directory, and a queue space is one: give its directory"),
    "queues --space mistaken.py/x": (3, "is no directory, and a queue space is one"),
    "queues --space newer": (3, "newer has format 99; this xaqueue reads formats up to 2: use a newer one"),
    "queues --space localhost:7878": (2, "is no directory: the URL of a server there is xaq://localhost:7878"),
    "queues --space xaq:/host": (2, "this is no URL of a server: write xaq+unix:///path/to/socket, xaq://host:port"),
    "queues --space http://host:80": (2, "a server's URL begins with xaq+unix://, xaq://, xaqs://"),
    "queues --space xaq://host": (2, "'host' is no host and port: write host:port"),
    "queues --space xaq://host:70000": (2, "port 70000 is refused: a number up to 65535 is wanted"),
    "queues --space xaq://localhost:1": (
        3,
        "no server answers at xaq://localhost:1 (Connection refused): start it with `xaqueue serve`, or check the host",
    ),
    "queues --space xaq+unix:///none/socket": (3, "start it with `xaqueue serve`, or check the path"),
    "queues --space xaqs://host:1?token=x": (2, "token= in a URL is refused, since URLs are printed: use token_file="),
    "queues --space datadir=/x,what=1": (2, 'is refused at \'what=1\': datadir="DIR"[,qspace="NAME"]'),
    "queues --space datadir=shop,qspace=other": (3, "shop is queue space 'shop', not 'other'"),
    "check --space xaq://host:1": (2, "this command works on the directory: run it on the server's machine"),
    "init plain": (3, "plain holds other files (notes.txt ...): choose an empty directory for a space"),
    "init mistaken.py": (3, "mistaken.py is a file, and no directory"),
    "init /proc/nowhere": (3, "/proc/nowhere cannot be made a queue space"),
    "init new --sync SOON": (2, "sync flags 'SOON' are refused: JOURNAL, [FSYNC|FDATASYNC][;DSYNC] or NONE"),
    "init new --default random": (2, "'random' is not one of 'fifo', 'lifo', 'priority'"),
    # queues
    **{
        f"{words} odrers{rest}": (2, "queue 'odrers' is not defined: did you mean 'orders'? Define it with `xaqueue ")
        for words, rest in (("get", ""), ("put", " x"), ("browse", ""), ("tail", ""), ("move orders", ""))
    },
    "put events x": (2, "or give queues.toml a [default] table; a topic is published to with --topic"),
    "put orders x --topic": (2, "'orders' is a queue, and no topic: enqueue into it (`xaqueue put` without --topic)"),
    "put elsewhere x --topic": (
        2,
        "topic 'elsewhere' is not defined. Define it with `xaqueue define --topic elsewhere`",
    ),
    "define a/b": (2, "queue name 'a/b' is refused: 1 to 127 of A-Z a-z 0-9 . _ - and the first a letter or digit"),
    "define orders max_tires=3": (2, "queues have no 'max_tires': did you mean 'max_tries'? They take order, "),
    "define orders max_tries": (2, "'max_tries': KEY=VALUE is wanted, or max_tries= to take it away"),
    "define orders max_tries=many": (2, "max_tries = 'many': a number of tries from 1 to 1,000,000 is wanted"),
    "define orders archive=csv": (2, "archive = 'csv': none or parquet is wanted"),
    "define orders failure_queue=none": (2, "is not defined: define it first, `xaqueue define none`"),
    "define orders failure_queue=orders": (2, "failure_queue is the queue itself: name another"),
    "define orders topic=none": (2, "topic = 'none' is not defined: define it first, `xaqueue define --topic none`"),
    "define orders --order random": (
        2,
        "Invalid value for '--order': 'random' is not one of 'fifo', 'lifo', 'priority'",
    ),
    "undefine odrers": (2, "'odrers' is not defined in queues.toml: did you mean 'orders'?"),
    "undefine orders": (4, "queue orders stays defined: it has 1 message"),
    "purge orders": (1, "nothing was removed: with --yes it is done without a question, and --dry-run says how many"),
    "move orders orders": (2, "queue orders is where the messages are: name another"),
    "move orders events --where header=x": (2, "write tries>=3, age>2h, reason=expired, from=QUEUE or header.NAME="),
    # messages
    "put orders x --priority 10": (2, "priority 10 is refused: int 0 to 9 is wanted"),
    "put orders x --priority high": (2, "Invalid value for '--priority': a whole number is wanted"),
    "put orders x --header novalue": (2, "header 'novalue' is refused: key=value is wanted"),
    "put orders x --not-before tomorrow": (2, "time 'tomorrow' is refused: ISO 8601, local where it has no offset"),
    "put orders x --delay 5": (2, "'5' is no span of time: give a number its unit, like 90s, 5m, 2h or 1d"),
    "put orders x --expires-at 2020-01-01": (2, "it expires now, so nobody would ever be given it"),
    "put orders x --lines": (2, "BODY and --file or --lines are two sources: give one"),
    "put orders --file none.txt": (2, "Invalid value for '--file': file 'none.txt' does not exist"),
    "put orders x --group ''": (2, "for all such would be one: leave it away"),
    "get orders --wait soon": (2, "Invalid value for '--wait': a number is wanted"),
    "get orders --count 0": (2, "Invalid value for '--count': it is to be greater than or equal to 1"),
    "get orders --lines --json": (2, "--lines and --json are two forms: give one"),
    "get orders --message-id 12": (2, "32 hex digits are wanted, as `xaqueue browse QUEUE` shows them"),
    "get orders --correlation-id 9": (1, "queue orders has no such message now; it has 1 message"),
    "rm orders 4125ba43": (2, "32 hex digits are wanted, as `xaqueue browse QUEUE` shows them"),
    "show orders 4125ba43": (1, "no message 4125ba43: `xaqueue browse orders` shows those there are"),
    "tail orders --no-follow --from first": (2, "a sequence number, earliest or latest is wanted"),
    "import none.jsonl": (4, "none.jsonl: No such file or directory"),
    # servers, workers, branches, copies
    "serve --tcp 7878": (2, "'7878' is no host and port: write host:port"),
    "serve --tcp localhost:7878": (2, "name tokens or certificates in the [access] table of queues.toml, or give"),
    "serve --tls localhost:7878": (2, "--tls needs --cert, the server's certificate, and --key where that is another"),
    "work orders mistaken": (2, "'mistaken' is no function: write MODULE:FUNCTION, such as shop.orders:handle"),
    "work orders none:handle": (2, "No module named 'none'): run in the module's directory or set PYTHONPATH"),
    "work orders mistaken:number": (2, "handler 3 is refused: a function of (message, tx) is wanted"),
    "forward orders --to orders": (2, "queue orders is where the messages are: name another, or another space"),
    "forward orders --to ./other": (3, "other is no queue space: make it one with `xaqueue init other`"),
    "indoubt show XYZ": (2, "'XYZ' is no xid, and no branch in doubt begins so: give it as `indoubt list` prints it"),
    "indoubt commit XYZ": (2, "write why with --reason TEXT: it is recorded with who and when"),
    "token nobody file": (2, "queues.toml has no role 'nobody'. Write a table [access.roles.nobody] with its rights"),
    "drain": (2, "shop is not being served"),
    "sessions": (3, "nobody serves shop: `xaqueue serve --space shop` does, and tells who is connected"),
    "snapshot take --to shop": (2, "shop is there already: name a directory that is not"),
    "snapshot rm 9": (2, "there is no snapshot 9, and none was removed: `xaqueue snapshot list` names those there are"),
    "restore --yes --space data/orders": (3, "data/orders has no snapshots: `xaqueue snapshot take` makes one"),
    "replica copy --from shop": (2, "'shop': a URL is wanted, where `xaqueue serve` serves the space"),
    "promote shop --yes": (3, "shop is no replica, it is a space already: only what `xaqueue replica` has copied is"),
    "clean --older-than 1": (2, "'1' is no span of time: give a number its unit, like 90s, 5m, 2h or 1d"),
    "release": (2, "release takes a QUEUE, or --carrier NAME"),
    "iotest nowhere": (2, "nowhere is no directory"),
    "torture nowhere": (2, "nowhere is no directory: make one, on the disk that a space is to be on"),
    "verify --space none*": (3, "none* names no queue space: `xaqueue init DIR` makes one"),
    "man 2": (2, "'2' is not one of '1', '5', '7'"),
}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_says_what_is_wrong_and_what_is_right(line: str, scene: Path) -> None:
    code, said = COMMANDS[line]
    assert said in fails(*shlex.split(line), code=code)
    assert xaqueue_has_kept()


def xaqueue_has_kept() -> bool:
    """No mistake has cost a message."""
    return CliRunner().invoke(app, ["queues", "--json"]).stdout.count('"depth": 1') == 1


x: Any = xaqueue
"""No checker is to find what is wrong here."""
PROGRAMS: dict[str, tuple[Callable[[Any], Any], str]] = {
    # places
    "no place": (lambda c: x.connect(None), r"connect\(None\) is refused: a directory or a URL is wanted"),
    "no space": (lambda c: x.connect("none"), "none is no queue space: make it one with `xaqueue init none`"),
    "other files": (
        lambda c: x.connect("plain", create=True),
        r"holds other files .*: choose an empty directory",
    ),
    "no flags": (lambda c: x.connect("shop", sync="SOON"), r"flags 'SOON' are refused: JOURNAL, \[FSYNC"),
    "no patience": (lambda c: x.connect("shop", server_s=-1), "seconds from 0 are wanted, or None for ever"),
    "no option": (
        lambda c: x.connect("xaq://host:1?time=3"),
        "'time' as an option; it takes token_file, timeout_s",
    ),
    "another's": (
        lambda c: x.connect("xaq://host:1", sync="NONE"),
        "are for a directory: whoever serves a space",
    ),
    "no URL": (lambda c: asyncio.run(x.connect_async("shop")), "serve it with `xaqueue serve`"),
    "closed": (lambda c: closed().enqueue("orders", b"x"), "the connection is closed: open another one"),
    # messages
    "no queue": (
        lambda c: c.enqueue("odrers", b"x"),
        r"did you mean 'orders'\? Define it with `xaqueue define odrers`",
    ),
    "text": (lambda c: c.enqueue("orders", "x"), r"body is a str: bytes are wanted, so encode it: body\.encode\(\)"),
    "JSON": (lambda c: c.enqueue("orders", {}), r"body is a dict: .*, so encode it: json\.dumps\(body\)\.encode\(\)"),
    "a priority": (lambda c: c.enqueue("orders", b"x", priority=11), "priority 11 is refused: int 0 to 9 is wanted"),
    "headers": (lambda c: c.enqueue("orders", b"x", headers={"a": 1}), "a mapping of str to str is wanted"),
    "a time": (lambda c: c.enqueue("orders", b"x", not_before=datetime(2026, 1, 1)), "no time zone: give it one, as"),
    "a span": (lambda c: c.enqueue("orders", b"x", ttl=-1), "ttl -1 is refused: seconds from 0 are wanted, or None"),
    "an option": (lambda c: c.enqueue("orders", b"x", prio=1), "'prio' is not an option of enqueue: correlation_id, "),
    "an id": (
        lambda c: c.dequeue("orders", message_id="abc"),
        "'abc' is refused: 16 bytes or 32 hex digits are wanted",
    ),
    "a wait": (lambda c: c.dequeue("orders", wait_s=-1), "wait_s -1 is refused: seconds from 0 are wanted, or None"),
    "one for many": (lambda c: c.enqueue_many("orders", b"xyz"), "a list, or another iterable, of bytes is wanted"),
    "a topic": (lambda c: c.publish("orders", b"x"), "'orders' is a queue, and no topic: enqueue into it"),
    # transactions
    "nothing begun": (lambda c: c.tpc_commit(), "tpc_commit outside a transaction: begin one with tpc_begin"),
    "begun already": (
        lambda c: [c.enqueue("orders", b"x"), c.tpc_begin(c.xid(1, "g", "b"))],
        "commit it or roll it back first",
    ),
    "no xid": (lambda c: c.tpc_begin("g"), r"'g' is no xid: make one with connection\.xid\(format_id, gtrid, bqual\)"),
    "no participants": (lambda c: x.TransactionManager("log"), "give a directory and the participants, or the"),
    "opened": (lambda c: x.TransactionManager("log", {"queue": c}), "give a function that opens one, as lambda:"),
    "no handler": (lambda c: x.Worker("shop", "orders", 3), r"3 is refused: a function of \(message, tx\)"),
    "a short one": (lambda c: x.Worker("shop", "orders", lambda m: None), r"is not called with \(message, tx\)"),
}


def closed() -> xaqueue.Connection:
    connection = xaqueue.connect("shop")
    connection.close()
    return connection


@pytest.fixture(scope="module")
def server(scene: Path) -> Iterator[str]:
    """Of a space with the same queues."""
    run("init", "served", "--sync", "NONE")
    Path("served/queues.toml").write_text(Path("shop/queues.toml").read_text())
    made = ServerThread(scene / "served", scene / "socket", sync="NONE")
    yield made.url
    made.stop()


@pytest.mark.parametrize("is_served", [False, True])
@pytest.mark.parametrize("mistake", PROGRAMS)
def test_a_program_is_told_what_is_wrong_and_what_is_right(mistake: str, is_served: bool, server: str) -> None:
    """In the same words, whoever has the space open."""
    make, said = PROGRAMS[mistake]
    with xaqueue.connect(server if is_served else "shop") as connection:
        with pytest.raises(xaqueue.Error, match=said):
            make(connection)
        connection.rollback()
    assert xaqueue_has_kept()
