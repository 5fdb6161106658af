"""What a transaction manager leaves that is killed at a named step: its log, and its participants' branches."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from xaqueue.features.opening import create
from xaqueue.tm.gtrid import FORMAT_ID
from xaqueue.xid import Xid

CHILD = """
import os, sqlite3, sys, xaqueue
root, step, participant, last, dsn, work = sys.argv[1:]

def watch(found, gtrid, name):
    if (str(found), name) == (step, participant):
        print(gtrid.decode(), flush=True)
        os._exit(0)  # as if it were killed

participants = {
    "queue": lambda: xaqueue.connect(f"{root}/queue"),
    "ledger": lambda: xaqueue.connect(f"{root}/ledger"),
}
if dsn:
    import psycopg
    participants["ledger"] = lambda: psycopg.connect(dsn)
if last:
    participants[last] = lambda: sqlite3.connect(f"{root}/files.db")
how = {"last_resource": last} if last else {"two_phase": True}
manager = xaqueue.TransactionManager(f"{root}/log", participants, **how, on_step=watch)
with manager, manager.transaction("queue", "ledger") as tx:
    exec(work)
    if dsn:
        tx["ledger"].execute("INSERT INTO ledger VALUES (1)")
    else:
        tx["ledger"].enqueue("rows", b"row")
    if last:
        tx[last].execute("INSERT INTO files VALUES (1)")
os._exit(1)
"""
WORK = 'tx["queue"].enqueue("orders", b"order")'
CONFIG = """
[participants.queue]
kind = "xaqueue"
space = "../queue"
"""
LEDGER = """
[participants.ledger]
kind = "xaqueue"
space = "../ledger"
"""
POSTGRES = """
[participants.ledger]
kind = "postgres"
dsn = "%s"
"""
LAST = """
[participants.files]
kind = "sqlite"
path = "../files.db"
"""


@dataclass(frozen=True)
class Left:
    """The directories of a killed transaction manager, and the name of its transaction."""

    root: Path
    gtrid: str

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def queue(self) -> Path:
        return self.root / "queue"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger"

    @property
    def node(self) -> str:
        return self.gtrid[4:20]

    def xid(self, participant: str) -> Xid:
        return Xid(FORMAT_ID, self.gtrid.encode(), participant.encode())

    def configure(self, text: str) -> Path:
        path = self.log / "participants.toml"
        path.write_text(text)
        return path


def leave(root: Path, step: str, participant: str = "", *, last: str = "", dsn: str = "", work: str = WORK) -> Left:
    """A transaction over two spaces, killed when it came to this step.

    last: a sqlite database takes part under this name. dsn: of a PostgreSQL with a table, which is the ledger then.
    work: of the transaction, in the space "queue".
    Its configuration lies in the log's directory.
    """
    for name in ("queue", "ledger"):
        create(root / name, sync="FDATASYNC;DSYNC", any_queue=True)
    if last:
        import sqlite3

        with sqlite3.connect(root / "files.db") as connection:
            connection.execute("CREATE TABLE files (number INTEGER)")
        connection.close()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(root), step, participant, last, dsn, work],
        check=True,
        capture_output=True,
        text=True,
    )
    left = Left(root, done.stdout.strip())
    ledger = POSTGRES % dsn if dsn else LEDGER
    left.configure((f'last_resource = "{last}"\n' if last else "") + CONFIG + ledger + (LAST if last else ""))
    return left
