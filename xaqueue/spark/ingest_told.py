"""What an ingest says: how far it is, and what failed, in the words of whoever found it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from xaqueue import errors
from xaqueue.errors import Error, OperationalError

_RAISED = re.compile(r"xaqueue\.errors\.(\w+): (.+)")


@dataclass(slots=True)
class Told:
    """How far it is. ``lag``: messages that wait, as of the last batch; None before it."""

    rows: int = 0
    dead_letters: int = 0
    batches: int = 0
    repeated: int = 0
    """Batches that were in place already: of a run that was killed."""
    seconds: float = 0.0
    lag: int | None = None
    stopped: bool = False
    """It was asked to end before there was nothing left."""

    @property
    def messages(self) -> int:
        return self.rows + self.dead_letters


def lag_of(progress: Any) -> int | None:
    """The numbers between the end of the last batch and what is there."""
    if not progress or not progress["sources"]:
        return None
    source = progress["sources"][0]
    latest, end = (json.loads(source[name] or "null") for name in ("latestOffset", "endOffset"))
    if latest is None or end is None:
        return None
    return max(0, total(latest.get("spaces", latest)) - total(end.get("spaces", end)))


def total(offset: Any) -> int:
    """The sum of all numbers in an offset: how many messages were before it, gaps counted."""
    if isinstance(offset, Mapping):
        return sum(total(value) for value in offset.values())
    return offset if isinstance(offset, int) and not isinstance(offset, bool) else 0


@contextmanager
def translated() -> Iterator[None]:
    """What fails inside Spark is raised as what it is: ours by its own class, all else in a sentence."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise translation(error) from error


def translation(error: BaseException) -> Error:
    """The error that Spark's report of a failure tells of."""
    text = str(error)
    ours = _RAISED.findall(text)
    if ours:
        name, said = ours[-1][0], ours[-1][1].replace("option failOnDataLoss=false", "--no-fail-on-data-loss")
        kind = getattr(errors, name, OperationalError)
        return kind(said) if isinstance(kind, type) and issubclass(kind, Error) else OperationalError(said)
    if isinstance(error, PySparkException):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        said = lines[0] if lines else type(error).__name__
        return OperationalError(f"Spark failed: {said[:500]}; what is in the target stays, run it again to go on")
    return OperationalError("Spark's process ended: what is in the target stays, run it again to go on")
