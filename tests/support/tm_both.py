"""What a transaction promises is the same for threads and for tasks: a module that imports both names runs in both.

And in what it has in ``WAYS`` beside them: "general" is in threads, with no way of its own for the plain case.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import tm_plain
from support.awaited import LoopThread
from support.tm_world import Rig

ONLY_THREADS = (
    "test_a_pooler_that_lost_the_database_has_not_said_no",  # changes the participant of a rig
    "test_interrupted_behind_a_commit_in_one_phase_it_is_not_called_rolled_back",  # KeyboardInterrupt ends a loop
    "test_nothing_is_active_after_an_interruption",
    "test_interrupted_when_all_is_done_it_is_committed",
    "test_one_that_took_too_long_is_rolled_back_before_its_database_decides",  # reaches into a transaction
    "test_a_transaction_that_begins_while_a_list_is_on_its_way_is_left_alone",  # begins in the call of a participant
    "test_a_transaction_that_commits_while_a_list_is_on_its_way_is_not_rolled_back",
    "test_participants_are_prepared_in_the_order_of_their_keys",  # changes the participants of a rig
    "test_side_by_side_where_all_of_them_allow_it",  # one waits for the other, in threads
    "test_no_call_goes_to_a_thread_where_another_transaction_is_at_work",
    "test_the_time_counts_until_the_decision_and_not_after",  # reach into a transaction, as does the next
    "test_a_statement_that_hangs_past_the_time_is_interrupted",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function.__name__ not in ONLY_THREADS:
        ways = ("threads", "tasks", *getattr(metafunc.module, "WAYS", ()))
        metafunc.parametrize("way", ways, indirect=True)


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    given: str = getattr(request, "param", "threads")
    if given != "tasks":
        with tm_plain.way(plain=given != "general"):
            yield given
        return
    thread = LoopThread()
    monkeypatch.setattr(Rig, "thread", thread)
    try:
        yield given
    finally:
        thread.stop()
