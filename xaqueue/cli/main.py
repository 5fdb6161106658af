"""The command ``xaqueue``: its verbs by group, the options that stand before a verb, and the way errors leave it.

A verb is imported and built when it is asked for: with all of them a command would take a third of a second more. What
it works with is imported in its function: `--help` would take twice as long.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable
from copy import copy
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from pkgutil import get_data
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from xaqueue.cli import log_output
from xaqueue.cli.exit_codes import EXIT_HELP, ExitCode, translated
from xaqueue.cli.location import SPACE_VARIABLE

EVERY_DAY = ("init", "define", "put", "get", "browse", "queues", "status", "serve", "work", "indoubt")
"""They come first, and not again in their group."""
GROUPS: dict[str, dict[str, str]] = {
    "Messages": {"messages": "put get browse tail", "copies": "show export import", "moves": "move requeue rm purge"},
    "Queues": {"spaces": "init define release", "glance": "queues", "moves": "undefine"},
    "Serve and connect": {"serve": "serve drain", "glance": "sessions", "tokens": "token"},
    "Transactions in doubt": {"indoubt": "indoubt", "tm": "tm"},
    "Look and measure": {
        "spaces": "status",
        "health": "health metrics",
        "top": "top",
        "tools": "iotest torture demo",
        "manual": "man",
    },
    "Back up and mend": {
        "snapshots": "snapshot restore",
        "checks": "check verify salvage-journal",
        "repairs": "reconstruct clean",
    },
    "Replicas": {"replicas": "replica promote"},
    "Work": {"work": "work forward"},
    "Spark and lake": {"ingest": "ingest", "tables": "archive clean-table"},
}
"""By module its verbs, in the order in which they are shown."""
FIRST_STEPS = """Usage: xaqueue COMMAND ...

A durable message queue that takes part in distributed transactions. The first steps:

  xaqueue init queue             make the directory ./queue a queue space
  xaqueue define orders          define a queue in it
  xaqueue put orders first       put a message into the queue
  xaqueue get orders             and take it out again
  xaqueue status                 what the space is and holds

Another space than ./queue is named by --space or XAQUEUE_SPACE: a directory, or the URL that `xaqueue serve` gave it.

  xaqueue --help                 all commands, those of every day first
  xaqueue COMMAND --help         one of them, with its options
  xaqueue man                    the manual"""
PLACES = {
    verb: (group, module)
    for group, modules in GROUPS.items()
    for module, verbs in modules.items()
    for verb in verbs.split()
}
NAMES = {"import": "import_", "salvage-journal": "salvage_journal", "clean-table": "clean_table"}
NAMES |= dict.fromkeys(("indoubt", "tm", "snapshot"), "app")
"""In their modules, where it is another one."""

DESTRUCTIVE = frozenset({"release", "salvage-journal", "restore", "clean", "clean-table", "promote"})
"""Never suggested to somebody who mistyped another verb."""

OTHER_NAMES = {
    "init": "create new",
    "define": "declare subscribe config",
    "put": "send enqueue push produce add",
    "put --topic": "publish pub",
    "get": "receive recv dequeue pop take read",
    "get' or 'work": "consume",
    "browse": "peek cat messages",
    "queues": "list ls count depth topics",
    "queues --counters": "stats statistics",
    "status": "info describe stat",
    "serve": "start run server listen",
    "work": "worker handle",
    "show --history": "history",
    "indoubt": "recover commit rollback resolve transactions",
    "indoubt list --ask": "orphans",
    "tail": "follow logs watch",
    "requeue": "retry redrive replay dlq",
    "rm": "delete del remove",
    "undefine": "drop",
    "purge": "clear truncate empty",
    "export": "dump save",
    "import": "load",
    "drain": "stop shutdown",
    "sessions": "clients connections ps who",
    "token": "login auth password user",
    "health": "ping",
    "top": "monitor dashboard",
    "iotest": "bench benchmark fio",
    "man": "manual docs",
    "snapshot": "backup",
    "check": "fsck doctor",
    "replica": "standby follower",
    "forward": "bridge relay mirror",
    "--help": "help",
    "--version": "version",
}
"""What other programs call it."""


class Verbs(TyperGroup):
    """Translates whatever is raised while a command line is read or carried out."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        with translated():
            return super().make_context(*args, **options)

    def list_commands(self, ctx: Any) -> list[str]:
        return [*EVERY_DAY, *(verb for verb in PLACES if verb not in EVERY_DAY)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in PLACES and cmd_name not in self.commands:
            self.commands[cmd_name] = _built(cmd_name)
        return self.commands.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(Verbs, self._listed()).format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        ctx.command = self._listed()
        return super().shell_complete(ctx, incomplete)

    def _listed(self) -> Verbs:
        """Where only a list is wanted."""
        listed = copy(self)
        listed.commands = {verb: _first_sentence(verb) for verb in PLACES}
        return listed

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(FIRST_STEPS, err=True)
            raise typer.Exit(ExitCode.USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in PLACES and not ctx.resilient_parsing:
            words = {other: name for name, others in OTHER_NAMES.items() for other in others.split()}
            words |= {verb: "" if verb in DESTRUCTIVE else verb for verb in PLACES}
            meant = [words[near] for near in get_close_matches(args[0].lower(), words, 1)]
            ctx.fail(f"No such command {args[0]!r}" + (f". Did you mean '{meant[0]}'?" if any(meant) else ""))
        found = super().resolve_command(ctx, args)
        if ctx.obj is not None:  # loaded, so Ctrl-C is an exception from here on, and what the verb does ends in order
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return found

    def invoke(self, ctx: Any) -> Any:
        with translated():
            return super().invoke(ctx)


def _first_sentence(verb: str) -> TyperCommand:
    """As a list of all verbs shows it, by its source: nothing is imported."""
    group, module = PLACES[verb]
    name = NAMES.get(verb, verb)
    begin = rf'^(?:def {name}\(.*?^    """|{name} = typer\.Typer\(.*?help=")([^"]+?)(?:"|\n\n)'
    found = re.search(begin, (get_data("xaqueue.cli", f"{module}.py") or b"").decode(), re.MULTILINE | re.DOTALL)
    panel = "Every day" if verb in EVERY_DAY else group
    return TyperCommand(verb, help=found[1] if found else "", rich_help_panel=panel)


def _built(verb: str) -> Any:
    found = getattr(import_module(f"xaqueue.cli.{PLACES[verb][1]}"), NAMES.get(verb, verb))
    alone = typer.Typer(rich_markup_mode="markdown")
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=verb)
    else:
        alone.command(verb)(found)
    return get_group(alone).commands[verb]


app = typer.Typer(
    name="xaqueue",
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_HELP,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"xaqueue {version('xaqueue')}")
        raise typer.Exit


@app.callback()
def options(
    space: Annotated[
        str | None,
        typer.Option(
            "--space",
            metavar="DIR|URL",
            envvar=SPACE_VARIABLE,
            help="The queue space, or its server; also behind the verb.",
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what opening a space found and did.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A durable message queue that takes part in distributed transactions.

    A queue space is a directory: make one with `init`, define queues with `define`, then `put` and `get`.
    """
    log_output.begin(verbose=verbose)


def main(end: Callable[..., object] | None = None) -> None:
    """The command, once loaded. A name that the terminal's encoding lacks, or that is none of its texts, is escaped.

    end: what Ctrl-C does before and behind the verb; None where it is not to be changed.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="xaqueue", obj=end)
    finally:
        if end is not None:
            signal.signal(signal.SIGINT, end)
