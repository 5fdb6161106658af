"""The connection through a server keeps the contract of all connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.contract_whole import WholeContract
from support.served import RemoteHost


class TestConnection(WholeContract):
    @pytest.fixture(params=["FDATASYNC;DSYNC", "JOURNAL"])
    def host(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RemoteHost]:
        made = RemoteHost(tmp_path / "space", request.param)
        yield made
        made.restart()
