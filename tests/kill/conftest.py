"""What the tests of failovers share."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from support.pair import Networks


@pytest.fixture
def networks() -> Iterator[Networks]:
    try:
        made = Networks()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine gives no network namespaces: {error}")
    yield made
    made.close()
