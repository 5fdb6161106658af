"""When a failed delivery is tried again: a schedule that grows, has a limit, and is the same whoever reckons it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xaqueue.core.model.entry import Retry
from xaqueue.features.retries.policy import RetryPolicy
from xaqueue.message import MessageId

IDENTITY = MessageId(bytes(range(16)))
NOW_US = 1_800_000_000_000_000
POLICIES = st.builds(
    RetryPolicy,
    st.just(0),
    st.floats(0.001, 1e6),
    st.floats(1, 100),
    st.floats(0.001, 1e7),
    st.floats(0, 1),
)


def delays_s(policy: RetryPolicy, tries: int) -> list[float]:
    before, found = Retry(0), []
    for _ in range(tries):
        before = policy.failed(before, IDENTITY, NOW_US, "")
        found.append(((before.not_before or NOW_US) - NOW_US) / 1e6)
    return found


def test_each_delay_is_longer_by_the_multiplier_up_to_the_longest() -> None:
    assert delays_s(RetryPolicy(delay_s=1, multiplier=3, max_s=20), 5) == [1, 3, 9, 20, 20]
    assert delays_s(RetryPolicy(), 3) == [0, 0, 0]


@given(POLICIES, st.integers(1, 2**40))
def test_a_delay_is_never_longer_than_the_longest_and_its_share(policy: RetryPolicy, tries: int) -> None:
    retry = policy.failed(Retry(tries), IDENTITY, NOW_US, "why")
    delay_us = (retry.not_before or NOW_US) - NOW_US
    least = min(policy.delay_s, policy.max_s) * (1 - policy.jitter)
    assert int(least * 1e6) <= delay_us <= policy.max_s * (1 + policy.jitter) * 1e6
    assert retry == policy.failed(Retry(tries), IDENTITY, NOW_US, "why")
    assert retry.tries == tries + 1


def test_messages_that_failed_together_come_apart() -> None:
    policy = RetryPolicy(delay_s=10, jitter=0.5)
    found = {policy.failed(Retry(0), MessageId(bytes([n] * 16)), NOW_US, "").not_before for n in range(100)}
    assert len(found) == 100
    assert max(filter(None, found)) - min(filter(None, found)) > 8_000_000


@pytest.mark.parametrize("first", [0, 7])
def test_it_is_remembered_when_it_failed_first_and_last_and_why(first: int) -> None:
    retry = RetryPolicy().failed(Retry(2, None, first, first, "rolled back"), IDENTITY, NOW_US, "timeout")
    assert retry == Retry(3, None, first or NOW_US, NOW_US, "timeout")
