"""Branches in doubt, of which some transaction manager may be gone: what its log, or its database, says of each.

Nothing is changed, and nobody guesses: where none of those that were named has begun a transaction, that is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from xaqueue.cli import tm_database, tm_nodes
from xaqueue.cli.tm_log import ParticipantConfig, load, of_node
from xaqueue.tm.advice import LogStatus
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.log_directory import LogView, view_logs
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

UNKNOWN = "none of those that were named has begun it"
_DECIDED = {Outcome.COMMITTED: LogStatus.COMMIT.value, Outcome.ROLLED_BACK: LogStatus.ROLLBACK.value}
_OPEN = {
    "alive": LogStatus.LIVE.value,
    "silent": "no decision, and its node is silent: once that is ended it is rolled back",
    "ended": LogStatus.NONE.value,
}


def ask(xids: Iterable[Xid], managers: Sequence[str]) -> dict[Xid, str]:
    """What is said of each of these branches. managers: each a log's directory, a configuration, or a DSN.

    Raises what looking at one of them raises: a branch that nobody else knows may be its.
    """
    gtrids = {xid: Gtrid.parse(xid.gtrid) for xid in xids}
    own = {gtrid for gtrid in gtrids.values() if gtrid is not None}
    said: dict[Gtrid | None, str] = {}
    for text in managers:
        place = tm_database.named(text)
        said.update(_of_log(Path(text), own) if place is None else _of_database(place.database, own))
    return {xid: said.get(gtrid, UNKNOWN) for xid, gtrid in gtrids.items()}


def _of_log(path: Path, gtrids: Iterable[Gtrid]) -> Iterator[tuple[Gtrid, str]]:
    logs = view_logs(load(path).log_dir)
    for gtrid in gtrids:
        seen = of_node(logs, gtrid.node)
        if seen.node == gtrid.node:
            yield gtrid, f"{seen.status(gtrid).value}{_use(seen)}"


def _use(seen: LogView) -> str:
    if seen.in_use or seen.is_elsewhere:
        return ""
    return "; it is not running" if seen.is_elsewhere is False else f"; it is {seen.use}"


def _of_database(database: ParticipantConfig, gtrids: Iterable[Gtrid]) -> Iterator[tuple[Gtrid, str]]:
    with tm_nodes.opened(database, to_look=True) as (connection, tables):
        now_us = tables.clock_us(connection)
        states = {one.node: tm_nodes.state_of(one, now_us) for one in tables.all(connection)}
        for gtrid in gtrids:
            if gtrid.database != tables.database:
                continue
            found = tables.state_of(connection, bytes(gtrid))
            if found.decision is not None:
                yield gtrid, _DECIDED[found.decision]
            elif found.is_known(gtrid.epoch):
                yield gtrid, _OPEN[states.get(gtrid.node, "alive")]
            else:
                yield gtrid, "the database does not know of it: it is another one, or a copy"
