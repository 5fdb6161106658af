"""An Engine of SQLAlchemy and a queue: both or neither, whoever fails at which step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")

from support import SUPPORT
from support.sqlalchemy_scene import DECIDED, STEPS, WAYS, Shop, take
from xaqueue.errors import RolledBack
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.xa import Outcome

CHILD = SUPPORT / "sqlalchemy_child.py"
Killer = Callable[..., int]
is_sample = os.environ.get("XAQUEUE_CRASH_FULL") != "1"


def cases(*more: tuple[Step, str], kinds: tuple[str, ...] = tuple(WAYS)) -> pytest.MarkDecorator:
    """Every step; without ``XAQUEUE_CRASH_FULL`` none at the queue, where the transaction manager's own tests stop."""
    every = [((kind, way), step, name) for kind in kinds for way in WAYS[kind] for step, name in (*STEPS[way], *more)]
    if is_sample:
        every = [case for case in every if case[-1] != "queue"]
    ids = [f"{kind}-{way}-{step}-{name or 'all'}" for (kind, way), step, name in every]
    return pytest.mark.parametrize(("sql_shop", "step", "name"), every, indirect=["sql_shop"], ids=ids)


@cases(kinds=("postgresql", "mariadb"))
def test_a_session_whose_backend_is_lost_at_any_step_tears_nothing_apart(sql_shop: Shop, step: Step, name: str) -> None:
    shop = sql_shop
    lost: list[int] = []
    tm = shop.manager()

    def strike(now: Step, participant: str) -> None:
        if (now, participant) == (step, name) and not lost:
            lost.append(backend)
            shop.lose(backend)

    shop.on_step = strike
    try:
        with tm.transaction("db", "queue") as tx:
            backend = shop.own(tx["db"])
            take(tx, 1)
    except RolledBack:
        outcome = Outcome.ROLLED_BACK
    else:
        outcome = Outcome.COMMITTED
    assert lost
    shop.settle()
    assert shop.rows() == shop.messages() == ([1] if outcome is Outcome.COMMITTED else [])
    assert tm.outcome(tx.gtrid) is outcome
    if step in DECIDED or (step, name) == (Step.DECIDE, ""):
        assert outcome is Outcome.COMMITTED, "what is prepared does not need its backend"
    with tm.transaction() as tx:
        take(tx, 2)
    assert 2 in shop.rows()


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    """Performs a transaction in a process that dies at a step; returns the signal that it died of."""
    with subprocess.Popen(
        [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def kill(*words: str) -> int:
            print(json.dumps(words), file=process.stdin, flush=True)
            return int(process.stdout.readline())  # type: ignore[union-attr]

        yield kill
        process.stdin.close()


@cases((Step.BEGIN, "db"), (Step.BEGIN, "queue"), (Step.DONE, ""), (Step.ROLLBACK, "db"))
def test_the_next_life_finishes_what_a_killed_session_left(
    sql_shop: Shop, step: Step, name: str, killer: Killer
) -> None:
    shop = sql_shop
    words = [shop.url, str(shop.space), str(shop.directory / "decisions"), shop.way, str(step), name]
    assert killer(*words) == signal.SIGKILL
    tm = shop.manager(recovery_interval_s=60.0)
    for _ in range(2):
        tm.recover()
    tm.close()
    assert shop.rests()
    committed = [1] if step in DECIDED else []
    assert (shop.rows(), shop.messages()) == (committed, committed)
