"""Nodes in the database that decides, as their operator sees them. Nothing is changed there.

Whoever looks is no node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import typer

from xaqueue.cli import output
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.tm_config import ParticipantConfig, tables_of
from xaqueue.tm.decisions import wall_clock
from xaqueue.tm.driver import Dialect, is_a
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.node_tables import NodeRow, NodeTables, Standing
from xaqueue.tm.records import Heuristic

NODE_HEADINGS = ("node", "state", "last sign", "ended", "decisions kept", "participants")
ALIVE_S = 60.0
"""Who gave no sign for longer is ended by the others, where there are any."""
STILL_S = 30
"""A session that stands still for longer may be what keeps a silent node from being ended."""
BY_HAND = (
    "what it leaves is for a person, who ends it: `xaqueue indoubt list --space QUEUE`, then `commit` or `rollback`"
)
HEURISTIC_HEADINGS = ("gtrid", "participant", "was told", "and", "noticed", "in its words")


def print_status(database: ParticipantConfig, json: bool) -> None:
    with tables_of(database, to_look=True) as (connection, tables):
        nodes, decided = tables.all(connection), tables.decided(connection)
        seen = Seen(tables.clock_us(connection), nodes, decided, tables.heuristics(connection))
        if "silent" in seen.states:
            seen = seen._replace(still=_still(connection, tables))
    if json:
        output.as_json(_json(tables, seen))
    else:
        _print(tables, seen)
    if tables.trouble:
        raise typer.Exit(ExitCode.NOTHING)


def node_of(one: Standing) -> str:
    gtrid = Gtrid.parse(one.key)
    return gtrid.node if gtrid is not None else ""


def parties(one: Standing) -> str:
    return ", ".join(f"{name} (space {identity})" for identity, name in one.names().items())


class Seen(NamedTuple):
    """now_us: the database's clock, by which all times are."""

    now_us: int
    nodes: list[NodeRow]
    decisions: list[Standing]
    heuristics: list[Heuristic]
    still: Sequence[tuple[int, int]] | None = ()
    """Sessions that may keep a silent node from being ended, and for how many seconds; None: they are not known."""

    @property
    def states(self) -> list[str]:
        """Of each node."""
        return [state_of(one, self.now_us) for one in self.nodes]

    @property
    def oldest_us(self) -> int:
        """Since when, at least, the oldest of the decisions waits: since its node is ended; 0 without one."""
        waited_for = {node_of(one) for one in self.decisions}
        return min((one.ended_us for one in self.nodes if one.ended_us and one.node in waited_for), default=0)


def _still(connection: Any, tables: NodeTables) -> list[tuple[int, int]] | None:
    try:
        return tables.still(connection, STILL_S)
    except Exception as error:
        if not is_a(error, "Error"):
            raise
        return None  # the role may not look


def _notes(tables: NodeTables, seen: Seen) -> list[str]:
    """What else is to be known where a node is silent."""
    if "silent" not in seen.states:
        return []
    if tables.dialect is Dialect.SQLITE:
        return [
            "where a silent process stands still in a write transaction, nobody else writes, nor ends it: it has to go "
            "on, or to be killed"
        ]
    if seen.still is None:
        return ["whether a session keeps a silent node from being ended is shown to who has the right PROCESS"]
    limit = ", and MariaDB ends it by itself after a minute" if tables.has_limit else ""
    return [
        f"session {session} stands still in a transaction that has written, for {idle_s} s: between its decision and "
        f"its commit nobody can end its node{limit}; `KILL {session}` ends it"
        for session, idle_s in seen.still
    ]


def state_of(one: NodeRow, now_us: int) -> str:
    return "ended" if one.ended_us else "alive" if now_us - one.signed_us < ALIVE_S * 1e6 else "silent"


def ago(since_us: int, now_us: int) -> str:
    return output.age(wall_clock() - (now_us - since_us)) if since_us else ""


def _print(tables: NodeTables, seen: Seen) -> None:
    now_us, oldest_us, states = seen.now_us, seen.oldest_us, seen.states
    waits = f", one of them for {ago(oldest_us, now_us)} at least" if oldest_us else ""
    output.pairs(
        [
            ("database", f"{tables.database}, {tables.dialect.value}"),
            ("trouble", tables.trouble),
            ("nodes", ", ".join(f"{states.count(state)} {state}" for state in ("alive", "silent", "ended"))),
            ("decisions", f"{output.counted(len(seen.decisions), 'waits', 'wait')}{waits}"),
            ("heuristic", len(seen.heuristics) or ""),
        ]
    )
    rows = [
        (one.node, state, ago(one.signed_us, now_us), ago(one.ended_us, now_us), one.decisions, one.participants)
        for one, state in zip(seen.nodes, states, strict=True)
    ]
    output.below(NODE_HEADINGS, rows, right=("last sign", "ended", "decisions kept"))
    output.below(("decision", "waits for"), [(one.key, parties(one)) for one in seen.decisions])
    output.below(HEURISTIC_HEADINGS, list(map(heuristic_row, seen.heuristics)))
    for note in _notes(tables, seen):
        typer.echo(f"\n{note}")
    if {"silent", "ended"} & set(states):
        typer.echo(f"\n`xaqueue tm recover DSN QUEUE...` finishes what ended nodes have left; {BY_HAND}")


def _json(tables: NodeTables, seen: Seen) -> dict[str, object]:
    return {
        "database": tables.database,
        "dialect": tables.dialect.value,
        "trouble": tables.trouble,
        "now_us": seen.now_us,
        "nodes": [
            {**one._asdict(), "is_silent": state == "silent"}
            for one, state in zip(seen.nodes, seen.states, strict=True)
        ],
        "decisions": [{"gtrid": one.key, "node": node_of(one), "participants": one.names()} for one in seen.decisions],
        "heuristics": list(map(heuristic_json, seen.heuristics)),
        "oldest_us": seen.oldest_us,
        "sessions": seen.still and [{"session": one, "idle_s": s, "end": f"KILL {one}"} for one, s in seen.still],
        "notes": _notes(tables, seen),
    }


def heuristic_row(one: Heuristic) -> tuple[str, ...]:
    at = output.moment(one.when_us)
    return one.gtrid.decode(), one.participant, one.decision.value, one.outcome.value, at, one.detail


def heuristic_json(one: Heuristic) -> dict[str, object]:
    return {
        "gtrid": one.gtrid.decode(),
        "participant": one.participant,
        "decision": one.decision.value,
        "party": one.outcome.value,
        "when": one.when_us,
        "detail": one.detail,
    }
