"""The command ``xaqueue``: its verbs by group, the options that stand before a verb, and the way errors leave it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from difflib import get_close_matches
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from xaqueue.cli import (
    archive,
    checks,
    copies,
    glance,
    health,
    indoubt,
    ingest,
    log_output,
    manual,
    messages,
    moves,
    repairs,
    replicas,
    serve,
    snapshots,
    spaces,
    tables,
    tm,
    tokens,
    tools,
    top,
    work,
)
from xaqueue.cli.exit_codes import EXIT_HELP, translated
from xaqueue.cli.location import SPACE_VARIABLE

DESTRUCTIVE = frozenset({"release", "salvage-journal", "restore", "clean", "clean-table", "promote"})
"""Never suggested to somebody who mistyped another verb."""


class Verbs(TyperGroup):
    """Translates whatever is raised while a command line is read or carried out."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        with translated():
            return super().make_context(*args, **options)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.suggest_commands = False
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            close = get_close_matches(args[0], [name for name in self.commands if name not in DESTRUCTIVE])
            message = getattr(error, "message", None)
            if close and isinstance(message, str):
                error.message = f"{message.rstrip('.')}. Did you mean {close[0]!r}?"  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: Any) -> Any:
        """From here on Ctrl-C is an exception, and what the verb has begun is ended in order."""
        if ctx.obj is not None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with translated():
            return super().invoke(ctx)


app = typer.Typer(
    name="xaqueue",
    cls=Verbs,
    no_args_is_help=True,
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


for verb in (
    *(spaces.init, spaces.status, spaces.define, glance.queues, glance.sessions, top.top, spaces.release),
    *(health.metrics, health.health, tokens.token),
    *(messages.put, messages.get, messages.browse, messages.tail, moves.move, moves.requeue),
    *(moves.purge, moves.rm, moves.undefine, copies.show, copies.export),
    *(work.work, work.forward),
    *(serve.serve, serve.drain, checks.check, checks.verify, checks.salvage_journal, snapshots.restore, ingest.ingest),
    *(archive.archive, repairs.reconstruct, repairs.clean, tables.clean_table, replicas.replica, replicas.promote),
    *(tools.demo, tools.bench, tools.iotest, tools.torture, manual.man),
):
    app.command()(verb)
app.command("import")(copies.import_)
app.add_typer(snapshots.app, name="snapshot")
app.add_typer(indoubt.app, name="indoubt")
app.add_typer(tm.app, name="tm")


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
