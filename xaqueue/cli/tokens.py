"""Tokens of roles: made, handed out in a file, and taken away, while the server works."""

from __future__ import annotations

import secrets
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from xaqueue.access import token_name
from xaqueue.cli.location import DirectoryOption, directory_of
from xaqueue.cli.replacing import replacing
from xaqueue.space.model.definition_edits import with_member
from xaqueue.space.owner.open import edit_definitions


def token(
    ctx: typer.Context,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="A role of [access.roles] in queues.toml.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Gets the token; only its owner may read it.")],
    only: Annotated[bool, typer.Option("--only", help="No other token has the role from now on.")] = False,
    space: DirectoryOption = None,
) -> None:
    """Make a token for a role, and write it into FILE.

    queues.toml gets its SHA-256. A server takes that within a second or two, and clients read FILE at each connect. To
    rotate tokens: run this, hand FILE to the clients, and run it with --only once they have it. FILE has a token that
    holds at every moment: the role knows the new one before FILE has it, and loses the others last.
    """
    directory = directory_of(ctx, space)
    made = secrets.token_hex(32)
    admits = partial(with_member, role=role, member=token_name(made))
    edit_definitions(directory, partial(admits, only=False))
    with replacing(file, 0o600) as written:
        written.write(f"{made}\n".encode())
    if only:
        edit_definitions(directory, partial(admits, only=True))
    typer.echo(f"{file} has a token of role {role}" + (", the only one" if only else ""))
