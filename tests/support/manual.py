"""The manual pages, as text and as rows of their tables."""

from __future__ import annotations

import re
from pathlib import Path

MAN = Path(__file__).parent.parent.parent / "man"


def page(name: str) -> str:
    return (MAN / name).read_text()


def rows(text: str, header: str) -> list[list[str]]:
    """The rows of the column list whose header row begins with this word."""
    table = re.search(rf"\.It Sy {re.escape(header)} Ta.*?\n(.*?)\.El", text, re.DOTALL)
    assert table, header
    return [
        [cell.strip() for cell in line[4:].split(" Ta ")] for line in table[1].splitlines() if line.startswith(".It ")
    ]
