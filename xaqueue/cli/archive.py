"""The verb that brings what left the queues into Parquet, now and not when the owner finds that it is time."""

from __future__ import annotations

from typing import Annotated

import typer

from xaqueue.cli import output
from xaqueue.cli.exit_codes import ExitCode, extra_there
from xaqueue.cli.location import DirectoryOption, JsonOption, directory_of
from xaqueue.message import check_queue_name


def archive(
    queues: Annotated[list[str] | None, typer.Argument(metavar="[QUEUE...]", help="Only of these.")] = None,
    json: JsonOption = False,
    space: DirectoryOption = None,
) -> None:
    """Bring what left the queues and is kept into Parquet: archive/parquet/queue=QUEUE/day=DAY/.

    That is what was taken of a queue with archive = "parquet", what has expired there, and what a stream has consumed
    and was to keep. Small files of a day become one. The space may be in use. What is damaged stays where it is, and
    then the exit status is 1.
    """
    with extra_there("lake"):
        from xaqueue.lake.archive import archive as bring
    done = bring(directory_of(space), [check_queue_name(queue) for queue in queues or ()])
    if json:
        output.as_json({"messages": done.messages, "files": done.files, "merged": done.merged, "wrong": done.wrong})
    else:
        output.lines([f"{one}: it stays" for one in done.wrong])
        output.lines([f"{output.counted(done.messages, 'message')} in {output.counted(done.files, 'new file')}"])
    if done.wrong:
        raise typer.Exit(ExitCode.NOTHING)
