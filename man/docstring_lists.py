"""For the site: ``name: what it is.`` of a docstring becomes a line of a list, and so does each error of ``Raises``.

The sources have both as prose. A word that is no parameter of the function, and no attribute of the class, begins none.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

from xaqueue import errors

RAISES = re.compile(r"(?:^|(?<=\. ))Raises (.*?)\.(?= |$)")
ERROR = re.compile(rf"\b(?:{'|'.join(name for name in vars(errors) if name[0].isupper())})\b")
NEXT = re.compile(rf"[,;] (?=(?:and |of a server |any other |reading it, )*{ERROR.pattern})")


class DocstringLists(griffe.Extension):
    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        _make_lists(func, "Args", [parameter.name for parameter in func.parameters])

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        _make_lists(cls, "Attributes", [*cls.attributes])

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        _make_lists(attr, "", [])


def _make_lists(owner: griffe.Object, title: str, names: list[str]) -> None:
    if owner.docstring is None:
        return
    one = "(?:``)?(?:" + "|".join(map(re.escape, (*names, "-"))) + ")(?:``)?"
    entry = re.compile(rf"(?:^|(?<=\. ))({one}(?:, {one})*): ")
    told, listed, raised = [], [], []
    for paragraph in owner.docstring.value.split("\n\n"):
        line = paragraph if paragraph.startswith(" ") else " ".join(paragraph.split())
        raised += [piece.strip() for found in RAISES.finditer(line) for piece in NEXT.split(found[1])]
        line = RAISES.sub("", line).strip(" ") if RAISES.search(line) else line
        before, *rest = entry.split(line)
        if not rest and line == " ".join(paragraph.split()):
            before = paragraph
        told += [before.rstrip()] if before.strip() else []
        for said, text in zip(rest[::2], rest[1::2], strict=True):
            listed += [f"    {name.strip('`')}: {text.strip()}" for name in said.split(", ")]
    if listed:
        told.append("\n".join((f"{title}:", *listed)))
    if raised:
        told.append("\n".join(("**Raises**\n", *(f"- {ERROR.sub(_linked, error)}" for error in raised))))
    owner.docstring.value = "\n\n".join(told)


def _linked(found: re.Match[str]) -> str:
    return f"[{found[0]}][xaqueue.errors.{found[0]}]"
