"""The plugin of pytest. Nothing of xaqueue that takes time is loaded before a test asks for a fixture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xaqueue.testing.memory import MemorySpace, Queues

QUEUES = "xaqueue_queues"


def pytest_addoption(parser: pytest.Parser) -> None:
    doc = "names of queues for queue_space and queue_server, or the path of a queues.toml, from the root directory"
    parser.addini(QUEUES, doc, type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "xaqueue(queues, sync): of queue_space and queue_server, in the place of xaqueue_queues"
    )


@pytest.fixture
def queue_space(request: pytest.FixtureRequest) -> Iterator[MemorySpace]:
    """A space in memory: ``xaqueue.testing.MemorySpace``."""
    from xaqueue.testing.memory import MemorySpace

    queues, sync = _wanted(request)
    with MemorySpace(queues, sync=sync) as space:
        yield space


@pytest.fixture
def crash_after(queue_space: MemorySpace) -> Callable[[int], None]:
    """``crash_after(calls)``: the power of queue_space goes after so many more calls to the disk."""
    return queue_space.crash_after


@pytest.fixture
def queue_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server in a process of its own: ``xaqueue.testing.served``."""
    from xaqueue.testing.serving import served

    queues, sync = _wanted(request)
    with served(queues, sync=sync) as url:
        yield url


def _wanted(request: pytest.FixtureRequest) -> tuple[Queues, str | None]:
    config = request.config
    named: list[str] = config.getini(QUEUES)
    queues: Queues = config.rootpath / named[0] if len(named) == 1 and named[0].endswith(".toml") else named
    marker = request.node.get_closest_marker("xaqueue")
    return _of_marker(queues, *marker.args, **marker.kwargs) if marker else (queues, None)


def _of_marker(of_ini: Queues, queues: Queues | None = None, sync: str | None = None) -> tuple[Queues, str | None]:
    return of_ini if queues is None else queues, sync
