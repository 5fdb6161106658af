"""What ``python -m bench.peers --json`` has written, as the guide has it: the section of a page, and its pictures.

cd tests && python -m bench.peers.page ../man/guide/figures/peers.json ../man/guide/performance.md
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peers.__main__ import SERVED, WORDS, table

BEGIN, END = "<!-- bench.peers -->", "<!-- /bench.peers -->"
BUSY_SHARE = 0.1
"""Above it the page says so."""

Found = dict[str, Any]


def section(result: Found) -> str:
    """In Markdown, with nothing in it that was not measured."""
    return "\n".join(_lines(result))


def _lines(result: Found) -> Iterator[str]:
    place, options = result["environment"], result["options"]
    seconds, size = f"{options['seconds']:g} s", f"{options['size_bytes']:,} bytes"
    yield f"Measured on {place['date']}: medians of {options['rounds']} rounds in which all took turns, {seconds} each;"
    yield f"{place['processors']} processors, {place['file_system']} on {place['device']}, Linux {place['kernel']},"
    yield f"Python {place['python']}; messages of {size}."
    if max(place["busy_share"]) > BUSY_SHARE:
        others = f"{max(place['busy_share']):.0%}"
        yield f"**The machine was not quiet**: others used up to {others} of it before a round. What these rates are"
        yield "elsewhere they do not say, and of who is ahead of whom only what is far apart. Measure yourself."
    for messages in options["messages"]:
        headings, rows = table(result, messages)
        many = "One message" if messages == 1 else f"{messages} messages"
        shown = f"![{many} in a transaction; the table below has the figures](pictures/{picture(messages)})"
        yield from ("", f"### {many} in a transaction", "", shown, "")
        yield f"| {' | '.join(headings)} |"
        yield "|---" * len(headings) + "|"
        yield from (f"| {' | '.join(row)} |" for row in rows)
        yield from ("", *_ahead(result, messages))
    yield ""
    yield from (f"- *{queue}*: {promise}." for queue, promise in result["durability"].items())
    yield from (f"- *{queue}* was not measured: {why}." for queue, why in result["missing"].items())


def _ahead(result: Found, messages: int) -> Iterator[str]:
    """Who is faster than a server of xaqueue, and how many times, in words."""
    found = {
        (row["way"], row["operation"], row["threads"]): row["per_s"]
        for row in result["results"]
        if row["messages"] == messages
    }
    for operation in WORDS.values():
        for clients in result["options"]["threads"]:
            ours = found[SERVED, operation, clients]
            faster = [
                f"{way} ({rate / ours:.1f} times)"
                for (way, what, n), rate in found.items()
                if (what, n) == (operation, clients) and rate > ours and not way.startswith("xaqueue")
            ]
            told = ", ".join(faster) or "nobody here"
            yield f"- Faster than its server, {operation} x{clients}: {told}."


def picture(messages: int) -> str:
    return f"peers-{messages}.svg"


def written(page: str, result: Found) -> str:
    """The page with its section made anew."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{section(result)}\n{END}", page, flags=re.DOTALL)


def main(source: Path, page: Path) -> None:
    from bench.chart import draw

    result = json.loads(source.read_text())
    page.write_text(written(page.read_text(), result))
    for messages in result["options"]["messages"]:
        rows = [row for row in result["results"] if row["messages"] == messages]
        options = {**result["options"], "messages_per_branch": messages}
        draw({**result, "results": rows, "options": options}, page.parent / "pictures" / picture(messages))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
