"""What a transaction manager that has a log has not finished, and what waits at its participants."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

import typer

from xaqueue.cli import advise, output
from xaqueue.cli.branches import gtrid_json
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.tm_config import PREPARES_NOTHING, TmConfig
from xaqueue.cli.tm_nodes import HEURISTIC_HEADINGS, heuristic_json, heuristic_row
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.log_directory import PARTICIPANTS, LogView, read_forgotten, view_logs
from xaqueue.tm.records import InDoubtTransaction

HEADINGS = ("gtrid", "state", "age", "participants", "outstanding")


def print_status(config: TmConfig, json: bool) -> None:
    """Exit 1 where a participant cannot be asked."""
    logs = view_logs(config.log_dir)
    found = [_participant(config, name, looked, logs) for name, looked in advise.answers(config, advise.look).items()]
    found += _unknown(config, logs)
    if json:
        slots = [{"log_dir": str(log.root), **_json(log)} for log in logs[1:]]
        output.as_json({**_json(logs[0]), "slots": slots, "participants": found})
    else:
        _print(config, logs, found)
    if any(one["error"] for one in found):
        raise typer.Exit(ExitCode.NOTHING)


def _participant(config: TmConfig, name: str, looked: advise.Looked | str, logs: Sequence[LogView]) -> dict[str, Any]:
    """What one has of these nodes. None is what it has not, or has not answered. since: of the oldest branch in doubt;
    0 without one, or where that is lost. decisions: rows in its database that are kept until all have hardened them."""
    one = config.participants[name]
    found: dict[str, Any] = {"name": name, "kind": one.kind, "in_doubt": None, "since": 0, "decisions": None}
    if isinstance(looked, str):
        return {**found, "note": "", "error": f"cannot be asked: {looked}"}
    begun = tuple(f"XAQ1{log.node}" for log in logs)
    mine = [
        each for each in looked.held if each.decision is None and each.xid.gtrid.decode("latin-1").startswith(begun)
    ]
    note, damaged = "", sum(1 for each in mine if each.damage)
    if one.kind != "xaqueue":
        found["decisions"] = sum(gtrid.startswith(begun) and gtrid not in begun for gtrid in looked.rows)
        note = "what is prepared keeps its locks, and holds back the vacuum" if mine else ""
    elif damaged:
        note = f"{damaged} of them damaged: xaqueue indoubt list --space {one.address}"
    found["in_doubt"] = None if one.kind in PREPARES_NOTHING else len(mine)
    found["since"] = min(filter(None, (each.since for each in mine)), default=0)
    return {**found, "note": note, "error": looked.damage}


def _unknown(config: TmConfig, logs: Sequence[LogView]) -> list[dict[str, Any]]:
    """Participants that a log waits for, or decides in, and that the configuration does not name."""
    named = {name for log in logs for one in log.open for name in one.outstanding}
    named.update(*(log.table.lasts for log in logs))
    none = {"kind": "unknown", "in_doubt": None, "since": 0, "decisions": None, "note": ""}
    return [
        {"name": name, **none, "error": "not in participants.toml"}
        for name in sorted(named - config.participants.keys())
        if config.participants
    ]


def _print(config: TmConfig, logs: Sequence[LogView], found: list[dict[str, Any]]) -> None:
    waits = "not running: start its application; branches in doubt wait until then"
    if any(log.in_use for log in logs):
        waits = "free: what its process has left is finished by another one"
    for log in logs:
        output.pairs(
            [
                ("log", log.root),
                ("node", f"{log.node}, epoch {log.epoch}"),
                ("state", "open in a process" if log.in_use else waits),
                ("unfinished", _unfinished(log)),
                ("heuristic", len(log.table.heuristics) or ""),
            ]
        )
        output.below(HEADINGS, [_row(one) for one in log.open], right=("age",))
        output.below(HEURISTIC_HEADINGS, list(map(heuristic_row, log.table.heuristics.values())))
        typer.echo()
    if not found:
        typer.echo(f"participants are not known: name them in {config.log_dir / PARTICIPANTS}, see xaqueue(5)")
        return
    rows = [
        (*(one[key] for key in ("name", "kind", "in_doubt")), output.age(one["since"]), one["decisions"], _note(one))
        for one in found
    ]
    headings = ("participant", "kind", "in doubt", "oldest", "decisions kept", "note")
    output.table(headings, rows, right=headings[2:5])


def _note(one: dict[str, Any]) -> str:
    return "; ".join(text for text in (one["error"], one["note"]) if text)


def _unfinished(log: LogView) -> str:
    lasts = ", ".join(sorted(log.table.lasts))
    elsewhere = f"; decisions stand in the database of {lasts}, too" if lasts else ""
    if not log.open:
        return f"no decision of the log{elsewhere}"
    oldest = output.age(min(one.decided_us for one in log.open))
    return f"{output.counted(len(log.open), 'transaction')}, the oldest {oldest}{elsewhere}"


def _json(log: LogView) -> dict[str, object]:
    with closing(DirectoryFileSystem(log.root)) as fs:
        forgotten = read_forgotten(fs)
    return {
        "node": log.node,
        "epoch": log.epoch,
        "in_use": log.in_use,
        "unfinished": len(log.open),
        "since": min((one.decided_us for one in log.open), default=0),
        "transactions": list(map(_transaction_json, log.open)),
        "heuristics": len(log.table.heuristics),
        "forgotten": list(map(asdict, forgotten)),
        "decides": sorted(log.table.lasts),
    }


def _row(one: InDoubtTransaction) -> tuple[object, ...]:
    parties, outstanding = " ".join(_parties(one)), " ".join(one.outstanding)
    return one.gtrid.decode("ascii"), one.state.value, output.age(one.decided_us), parties, outstanding


def _parties(one: InDoubtTransaction) -> list[str]:
    return [*one.participants, *([one.last_resource] if one.last_resource is not None else [])]


def _transaction_json(one: InDoubtTransaction) -> dict[str, Any]:
    gtrid = Gtrid.parse(one.gtrid)
    return {
        **(gtrid_json(gtrid) if gtrid is not None else {"gtrid": one.gtrid.decode("latin-1")}),
        "state": one.state.value,
        "decided": one.decided_us,
        "participants": one.participants,
        "outstanding": one.outstanding,
        "last_resource": one.last_resource,
        "heuristics": list(map(heuristic_json, one.heuristics)),
    }
