"""The verb that advises: what all say of one global transaction, and the one consistent answer. It never acts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from xaqueue.cli import output, values
from xaqueue.cli.exits import ExitCode
from xaqueue.cli.testimony import Testimony, ask_all
from xaqueue.cli.tm_config import ParticipantConfig, TmConfig, load
from xaqueue.errors import DecisionLogError
from xaqueue.storage.fs import DirectoryFileSystem
from xaqueue.tm.advice import Advice, Answer, Log, Says, advise, log_says
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.log import JOURNAL
from xaqueue.tm.look import look
from xaqueue.tm.voting import Party

_PARTIES = {
    Party.HEUR_COMMITTED: Says.BY_HAND_COMMITTED,
    Party.HEUR_ROLLED_BACK: Says.BY_HAND_ROLLED_BACK,
    Party.HEUR_MIXED: Says.BY_HAND_MIXED,
}
_SETTLED = (Answer.COMMIT, Answer.ROLLBACK, Answer.NOTHING)


def run(path: Path, text: str, json: bool) -> None:
    """Asks the log and all participants of a configuration, and shows what they say and what follows from it."""
    config, name = load(path), values.gtrid(text)
    log = _read_log(config, name)
    found = log.completed(ask_all(config, name))
    advice = advise(log.says, {testimony.participant: testimony.says for testimony in found})
    if json:
        output.as_json(_json(name, log, found, advice))
    else:
        _tell(config, log, found, advice)
    if advice.answer not in _SETTLED:
        raise typer.Exit(ExitCode.NOTHING)


@dataclass(frozen=True, slots=True)
class _LogSays:
    """What the decision log says of a transaction, and whom it names."""

    says: Log
    detail: str
    named: tuple[str, ...] = ()
    by_hand: Mapping[str, Testimony] = field(default_factory=dict)
    """What it has noted of participants that acted by themselves."""

    def completed(self, found: list[Testimony]) -> list[Testimony]:
        """With what the log knows of those that say nothing, and with those that only the log names."""
        silent = (Says.ABSENT, Says.UNREACHABLE)
        told = [self.by_hand.get(one.participant, one) if one.says in silent else one for one in found]
        asked = {one.participant for one in found}
        missing = "the decision names it, and the configuration does not"
        return told + [
            self.by_hand.get(name, Testimony(name, Says.UNREACHABLE, missing))
            for name in self.named
            if name not in asked
        ]


def _read_log(config: TmConfig, gtrid: Gtrid) -> _LogSays:
    name = bytes(gtrid)
    try:
        seen = look(config.log_dir)
        decision = seen.decision(name)
        if decision is not None:
            _harden(config.log_dir)
    except (DecisionLogError, OSError) as error:
        return _LogSays(Log.UNREAD, str(error))
    says = log_says(gtrid, node=seen.node, epoch=seen.epoch, in_use=seen.in_use, decision=decision)
    rows = [one for one in seen.open if one.gtrid == name]
    named = dict.fromkeys(each for one in rows for each in (*one.participants, one.last_resource) if each is not None)
    noted = {
        heuristic.participant: Testimony(
            heuristic.participant, _PARTIES[heuristic.party], f"{heuristic.detail} (noted in the decision log)"
        )
        for one in rows
        for heuristic in one.heuristics
        if heuristic.party in _PARTIES
    }
    owner = "in use" if seen.in_use else "not in use"
    return _LogSays(says, f"node {seen.node}, boot {seen.epoch}, {owner}", tuple(named), noted)


def _harden(log_dir: Path) -> None:
    """A record that was read may not be on disk yet, and then it is no decision."""
    fs = DirectoryFileSystem(log_dir)
    try:
        for name in fs.list(JOURNAL):
            if name.endswith(".log"):
                with suppress(FileNotFoundError):  # recycled meanwhile: what it had was hardened again elsewhere
                    fs.sync_data(f"{JOURNAL}/{name}")
    finally:
        fs.close()


def _tell(config: TmConfig, log: _LogSays, found: list[Testimony], advice: Advice) -> None:
    rows = [("decision log", log.says.value, log.detail)]
    rows += [(testimony.participant, testimony.says.value, testimony.detail) for testimony in found]
    output.table(("asked", "says", "detail"), rows)
    typer.echo()
    typer.echo(f"{advice.why}: {advice.answer.value}")
    if advice.answer not in (Answer.COMMIT, Answer.ROLLBACK):
        return
    typer.echo("the transaction manager does this itself when it runs and reaches them; by hand it would be:")
    for testimony in found:
        if testimony.xid is not None:
            typer.echo(f"  {testimony.participant}: {_by_hand(config, testimony, advice.answer)}")


def _by_hand(config: TmConfig, testimony: Testimony, answer: Answer) -> str:
    assert testimony.xid is not None
    participant = config.participants.get(testimony.participant)
    if participant is None:
        return f"{answer.value} of {testimony.xid}"
    return _command(participant, testimony, answer)


def _command(participant: ParticipantConfig, testimony: Testimony, answer: Answer) -> str:
    assert testimony.xid is not None
    if participant.kind == "postgres":
        return f"{answer.value.upper()} PREPARED '{values.postgres_gid(testimony.xid)}'"
    return f"xaqueue indoubt {answer.value} {testimony.xid} --space {participant.address} --reason '...'"


def _json(gtrid: Gtrid, log: _LogSays, found: list[Testimony], advice: Advice) -> dict[str, Any]:
    return {
        "gtrid": str(gtrid),
        "answer": advice.answer.value,
        "why": advice.why,
        "in_doubt": list(advice.in_doubt),
        "log": {"says": log.says.name.lower(), "detail": log.detail},
        "participants": [
            {"name": testimony.participant, "says": testimony.says.value, "detail": testimony.detail}
            for testimony in found
        ],
    }
