"""What the site shows beyond the pages: a file that a page links to, such as an example, stands below the paragraph,
folded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\[([^\]]+)\]\(\.\./\.\./([^)]+)\)")


WORKER = "https://unpkg.com/iframe-worker/shim"
"""What the plugin for the search from file:// takes from the internet."""


def on_post_page(output: str, **_: Any) -> str:
    return output.replace(WORKER, "offline.js")


on_post_template = on_post_page


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page is read in the repository, too, so its links are those of the repository."""
    return "\n\n".join(_shown(paragraph) for paragraph in markdown.split("\n\n"))


def _shown(paragraph: str) -> str:
    files = [found[2] for found in LINK.finditer(paragraph)]
    blocks = [_folded(name) for name in files if (ROOT / name).suffix != ".png"]
    return "\n\n".join([LINK.sub(r"`\2`", paragraph), *blocks])


def _folded(name: str) -> str:
    text = (ROOT / name).read_text("utf-8").rstrip()
    language = {".py": "python", ".java": "java", ".service": "ini", "": "dockerfile"}.get((ROOT / name).suffix, "yaml")
    code = "\n".join(f"    {line}" if line else "" for line in f"```{language}\n{text}\n```".splitlines())
    return f'??? example "{name}"\n\n{code}'
