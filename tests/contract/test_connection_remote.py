"""The connection through a server keeps the contract of all connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.contract_connection import (
    BlockContract,
    ConcurrencyContract,
    KillContract,
    MessagesContract,
    TwoPhaseContract,
)
from support.contract_leases import LeaseContract
from support.contract_reasons import ReasonContract
from support.served import RemoteHost


class AtBothLevels:
    @pytest.fixture(params=["FDATASYNC;DSYNC", "JOURNAL"])
    def host(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RemoteHost]:
        made = RemoteHost(tmp_path / "space", request.param)
        yield made
        made.restart()


class TestTwoPhase(AtBothLevels, TwoPhaseContract):
    pass


class TestBlocks(AtBothLevels, BlockContract):
    pass


class TestMessages(AtBothLevels, MessagesContract):
    pass


class TestKill(AtBothLevels, KillContract):
    pass


class TestLeases(AtBothLevels, LeaseContract):
    pass


class TestReasons(AtBothLevels, ReasonContract):
    pass


class TestConcurrency(AtBothLevels, ConcurrencyContract):
    pass
