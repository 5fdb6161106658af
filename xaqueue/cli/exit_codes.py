"""Every exit code of the command line is here, and every way in which an error or a signal ends a command."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType

import typer

from xaqueue.cli.output import may_ask, one_line
from xaqueue.errors import (
    ConnectionLost,
    Error,
    InvalidArgument,
    OperationalError,
    OutcomeUnknown,
    ResourceFailed,
    SpaceError,
    SpaceInUse,
    UnknownQueue,
)


class ExitCode(IntEnum):
    """What a shell script may rely on."""

    OK = 0
    NOTHING = 1
    """``iotest`` and ``torture``: the directory is unsafe; ``demo``: its check failed; else see EXIT_HELP."""
    USAGE = 2
    """A word, a value or a queues.toml that cannot be taken; nothing was done."""
    SPACE = 3
    """The directory is no space, or is in use by another process, or its disk failed, or its server does not answer."""
    ERROR = 4
    FENCED = 5
    """``serve``, ``work``, ``forward``: a write or sync failed, or hung, and nothing was acknowledged since."""
    INTERRUPTED = 130
    PIPE_CLOSED = 141


WORDS = {
    "Input should be a valid integer, unable to parse string as an integer": "a whole number is wanted",
    "Input should be a valid number, unable to parse string as a number": "a number is wanted",
    "Input should be": "it is to be",
    "Value error, ": "",
    " (env var: 'None')": "",
    "Got unexpected extra argument(s)": "there are words too many",
    "Got unexpected extra arguments": "there are words too many",
    "Got unexpected extra argument": "there are words too many",
    "No such command 'new-id'": "No such command 'new-id'. Did you mean 'claim --new-id'?",
    "No such option: --tm": "No such option: --tm. See `xaqueue tm`",
}
"""What Typer says of a value, and we do."""
EXIT_HELP = (
    "Exit codes: 0 done; 1 nothing to get, damage or duplicates found, no advice, a participant that cannot be asked, "
    "branches left after the timeout of drain, "
    "a message that failed under --until-empty, or a question answered with no; 2 wrong usage; "
    "3 the space cannot be used, another process owns it, or its server does not answer; 4 any other error; "
    "5 serve, work or forward ended since its disk failed: start it again; "
    "10 to 18 what health has found; "
    "130 interrupted, or ingest --once ended before all was in."
)


RIGHTS = "run this as the user that it belongs to, see `ls -ld`, or give this one the right"
WAYS_OUT = {
    errno.EACCES: RIGHTS,
    errno.EPERM: RIGHTS,
    errno.EROFS: "choose a place on another disk, or mount this one for writing: a kernel makes it so after an error, "
    "see `dmesg`",
}
"""Out of what the system refused, whatever was to be opened."""


def code_of(error: Error) -> ExitCode:
    if isinstance(error, OutcomeUnknown):
        return ExitCode.ERROR  # the space was reached, and something may have been done
    if isinstance(error, SpaceError | SpaceInUse | ResourceFailed | ConnectionLost):
        return ExitCode.SPACE
    if isinstance(error, InvalidArgument | UnknownQueue):
        return ExitCode.USAGE
    return ExitCode.ERROR


def complain(text: str) -> None:
    """One line on stderr, also of what a server or a file says."""
    typer.echo(f"xaqueue: {one_line(' '.join(text.split()))}", err=True)


def agreed(question: str, otherwise: str = "nothing was done", more: str = "") -> None:
    """Ends the command, with the way to do it, where the answer is no or nobody is there to give one.

    question: an empty one is asked nobody, as where stdout is for a program. otherwise, more: what it came to then, and
    what else there is beside ``--yes``.
    """
    try:
        if question and may_ask() and typer.confirm(question, err=True):
            return
    except typer.Abort:
        typer.echo(err=True)  # behind the question, which Ctrl-C or Ctrl-D has answered
    complain(f"{otherwise}: with --yes it is done without a question{more}")
    raise typer.Exit(ExitCode.NOTHING)


@contextmanager
def translated() -> Iterator[None]:
    """Around all work of the command line: what is raised inside becomes a line and an exit code."""
    try:
        yield
    except Error as error:
        _complain_of(str(error), error.__cause__)
        raise typer.Exit(code_of(error)) from None
    except BrokenPipeError:
        drop_stdout()
        raise typer.Exit(ExitCode.PIPE_CLOSED) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _complain_of(f"{where}{error.strerror or error}", error)
        raise typer.Exit(ExitCode.ERROR) from None
    except Exception as error:
        # Typer exports no common base of its usage errors; this method is theirs
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(message(), err=True)
        else:
            context = getattr(error, "ctx", None)
            command = context.command_path if context is not None else "xaqueue"
            said = message().rstrip(".")
            for theirs, ours in WORDS.items():
                said = said.replace(theirs, ours)
            if "words too many" in said and context is not None and "space" in context.params:
                said += ": a space is named by --space"
            complain(f"{said} (see `{command} --help`)")
        raise typer.Exit(ExitCode.USAGE) from None


def _complain_of(text: str, cause: BaseException | None) -> None:
    way = WAYS_OUT.get(cause.errno or 0) if isinstance(cause, OSError) else None
    complain(text if way is None or "as the user that" in text else f"{text} ({way})")


@contextmanager
def extra_there(extra: str) -> Iterator[None]:
    """Around the import of what an extra brings: what is missing is named, with the way to get it."""
    try:
        yield
    except ImportError as error:
        missing = error.__cause__ or error  # the room that needs it names an extra by itself, perhaps a smaller one
        package = (missing.name or "xaqueue").partition(".")[0] if isinstance(missing, ModuleNotFoundError) else ""
        if package == "xaqueue":
            raise
        said = f"{package} is not installed: pip install 'xaqueue[{extra}]'" if package else str(error)
        raise OperationalError(said) from None


@contextmanager
def ended_in_order() -> Iterator[None]:
    """``kill`` and a closed terminal are answered as Ctrl-C is: what was made first is removed.

    Inside, these signals raise SystemExit, with the exit code that a shell shows for them.
    """
    signals = (signal.SIGTERM, signal.SIGHUP)
    heard = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup asks for
    before = {number: signal.signal(number, _end) for number in heard}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def drop_stdout() -> None:
    """Nobody reads stdout any more: what is buffered goes nowhere, and the interpreter's exit does not stumble."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
