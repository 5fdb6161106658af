"""A space whose owner died with one branch in doubt, and the command line that is run on it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import xaqueue
from support.bare_space import bare_space
from xaqueue.cli.main import app
from xaqueue.features.opening import create
from xaqueue.xid import Xid

XID = Xid(7, b"gtrid", b"bqual")
RUN = [sys.executable, "-c", "from xaqueue.cli.main import main; main()"]


def leave_in_doubt(root: Path, xid: Xid = XID, sync: str = "NONE") -> Path:
    """The branch adds a message to replies and holds the one of orders."""
    create(root, sync=sync, any_queue=True)
    with bare_space(root, sync) as bare:
        bare.put("orders", b"held")
        bare.prepare(xid, add=[("replies", b"added")], take=["orders"])
    return root


def run(*words: object, stdin: bytes | str | None = None, code: int = 0) -> str:
    """stdout of a command line that ends with ``code``."""
    result = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def fails(*words: object, code: int, stdin: bytes | str | None = None) -> str:
    """The one line on stderr of a command line that ends with ``code``."""
    result = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    assert result.stderr.startswith("xaqueue: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def named_space(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A space with the queues orders (fifo) and urgent (priority), named by the environment."""
    for name in ("XAQUEUE_SPACE", "XAQUEUE_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    run("init", root, "--sync", "NONE")
    run("define", "orders", "--space", root)
    run("define", "urgent", "--order", "priority", "--description", "at once", "--space", root)
    monkeypatch.setenv("XAQUEUE_SPACE", str(root))
    return root


def listed(*words: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("indoubt", "list", "--json", *words))
    return found


def bodies(space: Path | str, queue: str) -> list[bytes]:
    with xaqueue.connect(space) as connection:
        return [message.body for message in connection.browse(queue)]
