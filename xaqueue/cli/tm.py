"""A transaction manager as its operator sees it: its log, and what waits at each of its participants.

Looking changes nothing, and works while the transaction manager runs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from xaqueue.cli import advise, output, spaces
from xaqueue.cli.location import JsonOption, remote, served_at
from xaqueue.cli.tm_log import ParticipantConfig, load
from xaqueue.rpc.methods.service import RemoteOperator, status_of
from xaqueue.space.offline import inspect
from xaqueue.space.offline.inspect_branches import in_doubt
from xaqueue.tm import last_resource
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.log_directory import PARTICIPANTS, LogView, view_log
from xaqueue.xid import Xid

HEADINGS = ("participant", "kind", "in doubt", "oldest", "rows", "carried", "says")
app = typer.Typer(
    no_args_is_help=True,
    help="Look at a transaction manager.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(slots=True)
class _Waiting:
    """What one participant has of this node. since: of the oldest branch in doubt, int microseconds UTC, 0 without."""

    name: str
    kind: str
    in_doubt: int = 0
    since: int = 0
    rows: int = 0
    """Decisions in its database that are kept until all who prepared have hardened them."""
    carried: int = 0
    """Those of them that carry a change of a queue."""
    says: str = ""


@app.callback()
def _group() -> None:
    pass


@app.command()
def status(
    tm: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A transaction manager's log, or its configuration.", show_default=False),
    ],
    json: JsonOption = False,
) -> None:
    """Show what a transaction manager has not finished, who carries changes, and what waits at its participants.

    These are asked where the log's directory has a participants.toml, or DIR is such a file. Branches in doubt and rows
    of transactions at work are counted, too.
    """
    config = load(tm)
    log = view_log(config.log_dir)
    found = [_ask(log.node, participant) for participant in config.participants.values()]
    if json:
        output.as_json(_json(log, found))
        return
    lasts = ", ".join(sorted(log.table.lasts))
    output.pairs(
        [
            ("log", config.log_dir),
            ("node", f"{log.node}, epoch {log.epoch}"),
            ("state", "open in a process" if log.in_use else "not in use: nothing is recovered before it is opened"),
            ("open", _open(log)),
            ("heuristic", len(log.table.heuristics) or ""),
            ("decides", f"in the database of {lasts}" if lasts else ""),
        ]
    )
    typer.echo()
    if not found:
        typer.echo(f"participants are not known: name them in {config.log_dir / PARTICIPANTS}, see xaqueue(5)")
        return
    output.table(HEADINGS, map(_row, found), right=("in doubt", "oldest", "rows", "carried"))


def _open(log: LogView) -> str:
    if not log.open:
        return "no decision"
    oldest = output.age(min(one.decided_us for one in log.open))
    return f"{output.counted(len(log.open), 'transaction')}, the oldest of {oldest} ago: xaqueue indoubt list --tm"


def _json(log: LogView, found: list[_Waiting]) -> dict[str, object]:
    return {
        "node": log.node,
        "epoch": log.epoch,
        "in_use": log.in_use,
        "open": len(log.open),
        "since": min((one.decided_us for one in log.open), default=0),
        "heuristics": len(log.table.heuristics),
        "decides": sorted(log.table.lasts),
        "participants": [asdict(one) for one in found],
    }


def _row(one: _Waiting) -> tuple[object, ...]:
    oldest = output.age(one.since) if one.since else ""
    return one.name, one.kind, one.in_doubt, oldest, one.rows, one.carried, one.says


def _ask(node: str, participant: ParticipantConfig) -> _Waiting:
    found = _Waiting(participant.name, participant.kind)
    ask = {"xaqueue": _ask_space, "postgres": _ask_postgres, "sqlite": _ask_rows}[participant.kind]
    try:
        ask(found, node, participant)
    except Exception as error:
        found.says = f"cannot be asked: {advise.why_not(error)}"
    return found


def _ask_space(found: _Waiting, node: str, participant: ParticipantConfig) -> None:
    location = advise.location(participant)
    url = served_at(location)
    if url:
        with remote(url) as manager:
            branches, carriers = RemoteOperator(manager).in_doubt(), status_of(manager.status()).carriers
    else:
        branches, carriers = in_doubt(location.directory), inspect.status(location.directory).carriers
    _count(found, [one.since for one in branches if one.decision is None and _is_of(one.xid, node)])
    found.says = "; ".join(spaces.carrier(one) for one in carriers if one.carrier.startswith(f"{node}."))


def _ask_postgres(found: _Waiting, node: str, participant: ParticipantConfig) -> None:
    with advise.read_only(participant) as connection:
        prepared = connection.execute(
            "SELECT gid, (extract(epoch FROM prepared) * 1000000)::bigint FROM pg_prepared_xacts "
            "WHERE database = current_database()"
        ).fetchall()
    since = dict(prepared)
    _count(found, [since[gid] for gid in since for xid in advise.branches([gid]) if _is_of(xid, node)])
    _ask_rows(found, node, participant)
    if found.in_doubt:
        found.says = "what is prepared keeps its locks, and holds back the vacuum"


def _ask_rows(found: _Waiting, node: str, participant: ParticipantConfig) -> None:
    with advise.read_only(participant) as connection:
        if advise.has_table(participant, connection):
            kept = f"FROM {last_resource.TABLE} WHERE gtrid LIKE 'XAQ1{node}_%'"
            found.rows, found.carried = connection.execute(f"SELECT count(*), count(carried) {kept}").fetchone()


def _count(found: _Waiting, since: list[int]) -> None:
    found.in_doubt, found.since = len(since), min(since, default=0)


def _is_of(xid: Xid, node: str) -> bool:
    gtrid = Gtrid.parse(xid.gtrid)
    return gtrid is not None and gtrid.node == node
