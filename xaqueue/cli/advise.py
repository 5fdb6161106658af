"""The verb that advises: what all say of one global transaction, and the one consistent answer. It never acts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from xaqueue.tm.gtrid import FORMAT_ID, Gtrid
from xaqueue.tm.log import JOURNAL
from xaqueue.tm.look import look
from xaqueue.tm.voting import Party
from xaqueue.xid import Xid

_PARTIES = {
    Party.HEUR_COMMITTED: Says.BY_HAND_COMMITTED,
    Party.HEUR_ROLLED_BACK: Says.BY_HAND_ROLLED_BACK,
    Party.HEUR_MIXED: Says.BY_HAND_MIXED,
}
_SETTLED = (Answer.COMMIT, Answer.ROLLBACK, Answer.NOTHING)


def run(path: Path, text: str, json: bool) -> None:
    """Asks the log and all participants of a configuration, and shows what they say and what follows from it."""
    config = load(path)
    name = _gtrid(config, text)
    log = _read_log(config, name)
    found = log.completed(ask_all(config, name))
    advice = advise(log.says, {testimony.participant: testimony.says for testimony in found})
    if json:
        output.as_json(_json(name, log, found, advice))
    else:
        _tell(config, name, log, found, advice)
    if advice.answer not in _SETTLED:
        raise typer.Exit(ExitCode.NOTHING)


def _gtrid(config: TmConfig, text: str) -> Gtrid:
    try:
        known = [one.gtrid for one in look(config.log_dir).open]
    except (DecisionLogError, OSError):
        known = []  # told below
    return values.gtrid_of(text, known)


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
        told = [self.by_hand.get(one.participant, self._known(one)) if one.says in silent else one for one in found]
        asked = {one.participant for one in found}
        missing = "the decision names it, and the configuration does not"
        return told + [
            self.by_hand.get(name, Testimony(name, Says.UNREACHABLE, missing))
            for name in self.named
            if name not in asked
        ]

    def _known(self, one: Testimony) -> Testimony:
        """What the decision tells of a party that has no branch in doubt any more."""
        if one.says is not Says.ABSENT or one.participant not in self.named:
            return one
        return replace(one, detail="the decision names it, so it was prepared: it has carried it out, and is over")


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


def _tell(config: TmConfig, gtrid: Gtrid, log: _LogSays, found: list[Testimony], advice: Advice) -> None:
    rows = [("decision log", log.says.value, log.detail)]
    rows += [(testimony.participant, testimony.says.value, testimony.detail) for testimony in found]
    output.table(("asked", "says", "detail"), rows)
    typer.echo()
    typer.echo(f"{advice.why}: {advice.answer.value}")
    if advice.answer not in (Answer.COMMIT, Answer.ROLLBACK):
        return
    typer.echo("the transaction manager does this itself when it runs and reaches them; by hand it would be:")
    for testimony in found:
        typer.echo(f"  {testimony.participant}: {_by_hand(config, gtrid, testimony, advice.answer)}")


def _by_hand(config: TmConfig, gtrid: Gtrid, testimony: Testimony, answer: Answer) -> str:
    """What is to be done at a party, each of which has its line."""
    participant, xid = config.participants.get(testimony.participant), testimony.xid
    if xid is not None and participant is None:
        return f"{answer.value} of {xid}"
    if testimony.says not in (Says.IN_DOUBT, Says.UNREACHABLE):
        return f"nothing, it is {testimony.says.value}"
    if participant is None or testimony.participant == config.last_resource:
        return "cannot be asked: ask again when it can"
    if xid is None:
        own = Xid(FORMAT_ID, bytes(gtrid), testimony.participant.encode())
        return f"if it has a branch in doubt, once it answers: {_command(participant, own, answer)}"
    return _command(participant, xid, answer)


def _command(participant: ParticipantConfig, xid: Xid, answer: Answer) -> str:
    if participant.kind == "postgres":
        return f"{answer.value.upper()} PREPARED '{values.postgres_gid(xid)}'"
    return f"xaqueue indoubt {answer.value} {xid} --space {participant.address} --reason '...'"


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
