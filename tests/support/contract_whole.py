"""All that a connection promises, wherever its space is."""

from __future__ import annotations

from support.contract_connection import (
    BlockContract,
    ConcurrencyContract,
    KillContract,
    MessagesContract,
    TwoPhaseContract,
)
from support.contract_leases import LeaseContract
from support.contract_reasons import ReasonContract
from support.contract_savepoints import SavepointContract


class WholeContract(
    TwoPhaseContract,
    BlockContract,
    MessagesContract,
    KillContract,
    LeaseContract,
    ReasonContract,
    SavepointContract,
    ConcurrencyContract,
):
    """For a class of tests with a fixture ``host``."""
