"""What a package index shows of xaqueue: README with links that lead from there, too, and the project's addresses.

Both follow from ``home`` in pyproject.toml. Without one, links stay those of the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?\[[^\]]*\])\((?!\w+:)([^)]+)\)")


class PackagePage(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text, home = Path(self.root, "README.md").read_text("utf-8"), self.config["home"]
        metadata["urls"] = {}
        if home:
            pages, files = (f"{home}/{kind}/v{metadata['version']}" for kind in ("blob", "raw"))
            text = LINK.sub(lambda found: f"{found[1]}({files if found[1][0] == '!' else pages}/{found[2]})", text)
            metadata["urls"] = {
                "Source": home,
                "Issues": f"{home}/issues",
                "Documentation": f"{pages}/man/guide/index.md",
                "Changelog": f"{pages}/CHANGELOG.md",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
