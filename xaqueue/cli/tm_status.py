"""What a transaction manager that has a log has not finished, and what waits at its participants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from xaqueue.cli import advise, output, spaces
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.location import remote
from xaqueue.cli.tm_log import ParticipantConfig, TmConfig, load
from xaqueue.errors import JournalDamaged
from xaqueue.features.carry.carrier_note import statuses as carriers_in
from xaqueue.offline.inspect_branches import in_doubt_in
from xaqueue.offline.redo_view import look_into
from xaqueue.rpc.methods.service import RemoteOperator, status_of
from xaqueue.tm import driver, last_resource
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.log_directory import PARTICIPANTS, LogView, view_logs
from xaqueue.xid import Xid

HEADINGS = ("participant", "kind", "in doubt", "oldest", "decisions kept", "with queue change", "note")


@dataclass(slots=True)
class _Waiting:
    """What one participant has of this node. None is what it has not, or has not answered."""

    name: str
    kind: str
    in_doubt: int | None = None
    since: int = 0
    """Of the oldest branch in doubt, int microseconds UTC; 0 without one, or where that is lost."""
    decisions: int | None = None
    """Rows in its database that are kept until all who prepared have hardened what they decide."""
    carried: int | None = None
    """Those of them that carry a change of a queue."""
    note: str = ""
    error: str = ""
    """Why it could not be asked."""


def print_status(path: Path, json: bool) -> None:
    """Exit 1 where a participant cannot be asked."""
    config = load(path)
    logs = view_logs(config.log_dir)
    nodes = [log.node for log in logs]
    found = [_ask(nodes, participant) for participant in config.participants.values()]
    found += _unknown(config, logs)
    if json:
        slots = [{"log_dir": str(log.root), **_json(log)} for log in logs[1:]]
        output.as_json({**_json(logs[0]), "slots": slots, "participants": [asdict(one) for one in found]})
    else:
        _print(config, logs, found)
    if any(one.error for one in found):
        raise typer.Exit(ExitCode.NOTHING)


def _unknown(config: TmConfig, logs: Sequence[LogView]) -> list[_Waiting]:
    """Participants that a log waits for, or decides in, and that the configuration does not name."""
    if not config.participants:
        return []
    named = {name for log in logs for one in log.open for name in one.outstanding}
    named.update(*(log.table.lasts for log in logs))
    return [
        _Waiting(name, "unknown", error="not in participants.toml")
        for name in sorted(named - config.participants.keys())
    ]


def _print(config: TmConfig, logs: Sequence[LogView], found: list[_Waiting]) -> None:
    waits = "not running: start its application; branches in doubt wait until then"
    if any(log.in_use for log in logs):
        waits = "free: what its process has left is finished by another one"
    for log in logs:
        output.pairs(
            [
                ("log", log.root),
                ("node", f"{log.node}, epoch {log.epoch}"),
                ("state", "open in a process" if log.in_use else waits),
                ("unfinished", _unfinished(config, log)),
                ("heuristic", len(log.table.heuristics) or ""),
            ]
        )
        typer.echo()
    if not found:
        typer.echo(f"participants are not known: name them in {config.log_dir / PARTICIPANTS}, see xaqueue(5)")
        return
    output.table(HEADINGS, map(_row, found), right=("in doubt", "oldest", "decisions kept", "with queue change"))


def _unfinished(config: TmConfig, log: LogView) -> str:
    lasts = ", ".join(sorted(log.table.lasts))
    elsewhere = f"; decisions stand in the database of {lasts}, too" if lasts else ""
    if not log.open:
        return f"no decision of the log{elsewhere}"
    oldest = output.age(min(one.decided_us for one in log.open))
    counted = output.counted(len(log.open), "transaction")
    return f"{counted}, the oldest {oldest}; see `xaqueue indoubt list --tm {config.log_dir}`{elsewhere}"


def _json(log: LogView) -> dict[str, object]:
    return {
        "node": log.node,
        "epoch": log.epoch,
        "in_use": log.in_use,
        "unfinished": len(log.open),
        "since": min((one.decided_us for one in log.open), default=0),
        "heuristics": len(log.table.heuristics),
        "decides": sorted(log.table.lasts),
    }


def _row(one: _Waiting) -> tuple[object, ...]:
    note = f"{one.error}; {one.note}".rstrip("; ") if one.error else one.note
    return one.name, one.kind, one.in_doubt, output.age(one.since), one.decisions, one.carried, note


def _ask(nodes: Sequence[str], participant: ParticipantConfig) -> _Waiting:
    found = _Waiting(participant.name, participant.kind)
    ask = {"xaqueue": _ask_space, "postgres": _ask_postgres, "mysql": _ask_rows, "sqlite": _ask_rows}[participant.kind]
    try:
        ask(found, nodes, participant)
    except Exception as error:
        found.error = f"cannot be asked: {advise.why_not(error)}"
    return found


def _ask_space(found: _Waiting, nodes: Sequence[str], participant: ParticipantConfig) -> None:
    """A directory is read, also where a server has it: one that hangs says nothing."""
    place = advise.location(participant)
    if place.url:
        with remote(place.url, answer_s=advise.ANSWER_S) as manager:
            branches, carriers = RemoteOperator(manager).in_doubt(), status_of(manager.status()).carriers
        damage = ""
    else:
        looked = look_into(advise.directory(place))
        branches, carriers = in_doubt_in(looked.fs, looked.again), carriers_in(looked.fs, owned=looked.owned)
        damage = looked.journal.damage
    mine = [one for one in branches if one.decision is None and _is_of(one.xid, nodes)]
    _count(found, [one.since for one in mine])
    notes = [spaces.carrier(one) for one in carriers if one.carrier.partition(".")[0] in nodes]
    damaged = sum(1 for one in mine if one.damage)
    if damaged:
        notes.append(f"{damaged} of them damaged: xaqueue indoubt list --space {place}")
    found.note = "; ".join(notes)
    if damage:
        raise JournalDamaged(damage)


def _ask_postgres(found: _Waiting, nodes: Sequence[str], participant: ParticipantConfig) -> None:
    with advise.read_only(participant) as connection:
        _count(found, [since for xid, since in advise.prepared_in(connection) if _is_of(xid, nodes)])
    _ask_rows(found, nodes, participant)
    if found.in_doubt:
        found.note = "what is prepared keeps its locks, and holds back the vacuum"


def _ask_rows(found: _Waiting, nodes: Sequence[str], participant: ParticipantConfig) -> None:
    with advise.read_only(participant) as connection:
        columns = advise.columns(participant, connection)
        found.decisions = found.carried = 0
        if columns:
            counts = f"count(*), count({'carried' if 'carried' in columns else 'NULL'})"
            own = " OR ".join(f"gtrid LIKE 'XAQ1{node}_%'" for node in nodes)
            kept = f"FROM {last_resource.TABLE} WHERE {own}"
            ((found.decisions, found.carried),) = driver.run(connection, f"SELECT {counts} {kept}")


def _count(found: _Waiting, since: list[int]) -> None:
    """since: 0 of one whose time is lost."""
    found.in_doubt, found.since = len(since), min(filter(None, since), default=0)


def _is_of(xid: Xid, nodes: Sequence[str]) -> bool:
    gtrid = Gtrid.parse(xid.gtrid)
    return gtrid is not None and gtrid.node in nodes
