"""The guide's table of Spark's versions is what was found when each was tried, for all that is tried today."""

from __future__ import annotations

import json
import re

import pytest

from support import ROOT

pytest.importorskip("pyspark", reason="pyspark is not installed")

PAGE = (ROOT / "man" / "guide" / "spark_versions.md").read_text()
FOUND = json.loads((ROOT / "man" / "guide" / "figures" / "spark_versions.json").read_text())
FEATURES = re.findall(
    r'^    "([^"]+)": \w+,$', (ROOT / "tests/spark/test_spark_streaming.py").read_text(), re.MULTILINE
)
HEAD, _, *ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line[:1] == "|"]


@pytest.mark.parametrize("version", HEAD[1:])
def test_the_table_is_what_was_found(version: str) -> None:
    told = {name.replace("`", "").lower(): cells[HEAD.index(version) - 1] for name, *cells in ROWS}
    found = FOUND[version]
    assert len(told) == len(FEATURES) > 10
    for feature in FEATURES:
        (said,) = [cell for name, cell in told.items() if name.startswith(feature.lower())]
        assert said == ("refused" if "refused" in found else found[feature])


def test_the_sentence_is_what_was_found() -> None:
    assert FOUND["4.1.1"]["refused"] in PAGE
