"""A space whose owner died with one branch in doubt, and the command line that is run on it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import xaqueue
from xaqueue.cli.main import app
from xaqueue.space.owner.open import create
from xaqueue.xid import Xid

XID = Xid(7, b"gtrid", b"bqual")
RUN = [sys.executable, "-c", "from xaqueue.cli.main import main; main()"]
CHILD = """
import os, sys, xaqueue
connection = xaqueue.connect(sys.argv[1])
connection.enqueue("orders", b"held")
connection.commit()
connection.tpc_begin(xaqueue.Xid.parse(sys.argv[2]))
connection.enqueue("replies", b"added")
connection.dequeue("orders")
connection.tpc_prepare()
os._exit(0)  # as if it were killed
"""


def leave_in_doubt(root: Path, xid: Xid = XID, sync: str = "NONE") -> Path:
    """The branch adds a message to replies and holds the one of orders."""
    create(root, sync=sync, any_queue=True)
    subprocess.run([sys.executable, "-c", CHILD, str(root), str(xid)], check=True)
    return root


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def fails(*words: object, code: int) -> str:
    """What the command says on its one line of stderr."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, (result.output, result.exception)
    assert result.stderr.startswith("xaqueue: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def listed(*words: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("indoubt", "list", "--json", *words))
    return found


def bodies(space: Path | str, queue: str) -> list[bytes]:
    with xaqueue.connect(space) as connection:
        return [message.body for message in connection.browse(queue)]
