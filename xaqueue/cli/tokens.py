"""Tokens of roles: made, handed out in a file, and taken away, while the server works."""

from __future__ import annotations

import secrets
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from xaqueue.access import token_name
from xaqueue.cli.location import DirectoryOption, directory_of
from xaqueue.cli.replacing import replacing
from xaqueue.core.model.definitions import parse
from xaqueue.core.model.options import suggestion
from xaqueue.core.owner.definitions_file import usable_definitions
from xaqueue.errors import InvalidArgument
from xaqueue.rpc.credentials import read_token


def token(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="A role of [access.roles] in queues.toml.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Gets the token; only its owner may read it.")],
    only: Annotated[bool, typer.Option("--only", help="No other token has the role from now on.")] = False,
    space: DirectoryOption = None,
) -> None:
    """Make a token for a role, and write it into FILE.

    queues.toml gets its SHA-256. A server takes that within a second or two, and clients read FILE at each connect. To
    rotate tokens: run this, hand FILE to the clients, and once they have it run it with --only, which keeps the token
    of FILE and takes all others away. FILE has a token that holds at every moment: the role knows a new one before FILE
    has it.
    """
    from xaqueue.features.defining.queues_file import edit_definitions

    directory = directory_of(space)
    member = _held(directory, role, file) if only else None
    if member is None:
        made = secrets.token_hex(32)
        member = token_name(made)
        with replacing(file, 0o600) as written:
            edit_definitions(directory, partial(_with_member, role=role, member=member, only=False))
            written.write(f"{made}\n".encode())
    if only:
        edit_definitions(directory, partial(_with_member, role=role, member=member, only=True))
    typer.echo(f"{file} has a token of role {role}" + (", the only one" if only else ""))


def _held(directory: str, role: str, file: Path) -> str | None:
    """The token in the file, as a member of the role; None where there is none that the role has."""
    with suppress(InvalidArgument):
        found = token_name(read_token(file))
        roles = usable_definitions(directory)[0].access.roles or ()
        if any(found in one.members for one in roles if one.name == role):
            return found
    return None


def _with_member(text: str, role: str, member: str, *, only: bool) -> str:
    """The same queues.toml, with a member of a role; only: and no other token. Raises InvalidArgument: no such role."""
    import tomlkit  # which is slow to load

    roles = parse(text).access.roles or ()
    if role not in {one.name for one in roles}:
        names = [one.name for one in roles]
        has = f" (it has {', '.join(names)})" if names else ""
        raise InvalidArgument(
            f"queues.toml has no role {role!r}{has}{suggestion(role, names) or '.'} Write a table "
            f'[access.roles.{role}] with its rights there first, such as consume = ["orders"]: ACCESS in xaqueue(5) '
            "has them; then run this again"
        )
    document = tomlkit.parse(text)
    table: Any = document["access"]["roles"][role]
    before = [str(one) for one in table.get("members", ())]
    kept = [one for one in before if one != member and not (only and one.startswith("token:"))]
    table["members"] = [*kept, member]
    made = tomlkit.dumps(document)
    parse(made)
    return made
