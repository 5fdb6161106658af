"""The process that test_faults starves, of descriptors, of file size or of working syncs, says in JSON what it met.

Arguments: verb, space. Each verb puts itself under its limit, so that the test runner is never under it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable

import xaqueue
from xaqueue import endpoint  # noqa: F401 loaded while there are descriptors
from xaqueue.features.session import attach
from xaqueue.xid import Xid


def say(**facts: object) -> None:
    os.write(1, (json.dumps(facts) + "\n").encode())


def attempt(verb: str, call: Callable[[], object]) -> bool:
    """Performs a call and says how it ended."""
    try:
        call()
    except Exception as error:
        say(verb=verb, error=type(error).__name__, message=str(error))
        return False
    say(verb=verb, error=None, message="")
    return True


def hold(space: str) -> None:
    """Owns the space until it is killed."""
    connection = xaqueue.connect(space)
    connection.enqueue("orders", b"not committed")
    say(verb="hold", error=None, message="")
    sys.stdin.read()


def commit_until_it_fails(space: str, sync: str) -> None:
    """Two-phase transactions until one of them fails, and what every verb answers then."""
    connection = xaqueue.connect(space, sync=sync)
    for number in range(1000):
        try:
            connection.tpc_begin(Xid(1, b"%d" % number, b"fault"))
            connection.enqueue("orders", b"%d" % number)
            connection.tpc_prepare()
            connection.tpc_commit()
        except xaqueue.ResourceFailed:
            break
        say(verb="acked", number=number)
    other = xaqueue.Connection(connection._manager, lambda: os.urandom(16))
    attempt("enqueue", lambda: other.enqueue("orders", b"more"))
    attempt("recover", other.tpc_recover)
    attempt("commit", lambda: other.tpc_commit(Xid(1, b"0", b"fault")))


def starve_of_descriptors(space: str) -> None:
    """Every verb without a descriptor to spare, then again with some."""
    connections = [xaqueue.connect(space, sync="FDATASYNC;DSYNC") for _ in range(7)]
    taker, adder, doubtful, undone, browser, held, given_back = connections
    for body in (b"first", b"second", b"spare"):
        taker.enqueue("orders", body)
        taker.commit()
    for connection, name in ((doubtful, b"doubtful"), (undone, b"undone")):
        connection.tpc_begin(Xid(1, name, b"fault"))
        connection.enqueue("orders", name)
        connection.tpc_prepare()
    assert held.dequeue("orders") is not None
    assert given_back.dequeue("orders") is not None
    hungry: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        while True:
            hungry.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    attempt("starved enqueue", lambda: adder.enqueue("orders", b"third"))
    attempt("starved dequeue", lambda: taker.dequeue("orders"))
    attempt("starved browse", lambda: list(browser.browse("orders")))
    attempt("starved rollback of a dequeue", given_back.rollback)
    attempt("starved commit of a dequeue", held.commit)
    attempt("starved commit", doubtful.tpc_commit)
    attempt("starved rollback", undone.tpc_rollback)
    attempt("starved rollback of nothing", taker.rollback)
    for descriptor in hungry:
        os.close(descriptor)
    adder.rollback()
    attempt("fed enqueue", lambda: adder.enqueue("orders", b"third"))
    attempt("fed commit", adder.commit)
    for connection in connections:
        connection.close()
    with xaqueue.connect(space) as connection:
        say(verb="left", bodies=[message.body.decode() for message in connection.browse("orders")])


def open_with_few_descriptors(space: str) -> None:
    """Opens a space with 0, 1, 2 ... descriptors to spare, and says whether that left any behind."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    xaqueue.connect(space).close()  # imports what it needs: a module takes a descriptor, too
    before = descriptors()
    for spare in range(20):
        starved("open", spare, lambda: attach(space, watch=False).close())
    say(verb="left behind", error=None, message="", number=descriptors() - before)
    for spare in range(24):
        starved("connect", spare, lambda: xaqueue.connect(space).close())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def starved(verb: str, spare: int, call: Callable[[], object]) -> None:
    """Attempts a call with so many descriptors to spare."""
    hungry: list[int] = []
    try:
        while True:
            hungry.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        for _ in range(spare):
            os.close(hungry.pop())
    attempt(verb, call)
    for descriptor in hungry:
        os.close(descriptor)


def starve_of_file_size(space: str) -> None:
    """A message over the file-size limit of the process, which falls short in the middle of its write."""
    connection = xaqueue.connect(space, sync="FDATASYNC;DSYNC")
    connection.enqueue("orders", b"first")
    connection.commit()
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    attempt("large", lambda: connection.enqueue("orders", b"x" * 50_000))
    say(verb="left", bodies=os.listdir(os.path.join(space, "active")))  # noqa: PTH118, PTH208
    connection.rollback()
    attempt("small", lambda: connection.enqueue("orders", b"second"))
    attempt("commit", connection.commit)
    say(verb="left", bodies=[message.body.decode() for message in connection.browse("orders")])
    connection.close()


VERBS: dict[str, Callable[..., None]] = {
    "hold": hold,
    "commit": commit_until_it_fails,
    "descriptors": starve_of_descriptors,
    "open": open_with_few_descriptors,
    "file-size": starve_of_file_size,
}

if __name__ == "__main__":
    VERBS[sys.argv[1]](*sys.argv[2:])
