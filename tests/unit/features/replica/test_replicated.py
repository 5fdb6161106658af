"""How old what a replica has is, as its directory tells it."""

from __future__ import annotations

import json

from xaqueue.features.replica import replicated
from xaqueue.features.replica.replicated import LAG
from xaqueue.testing.forgetful import ForgetfulFileSystem

NOON_US = 1_800_000_000_000_000


def lag(at_us: int, *, said: dict[str, object] | None) -> tuple[bool, float]:
    """At noon. said: just before ``at_us``; None: nothing, and then it was made a replica."""
    fs = ForgetfulFileSystem()
    replicated.write(fs, replicated.Replicated(replicated.REPLICA, "xaq://source", at=at_us))
    if said is not None:
        fs.create(LAG, [json.dumps({"at": at_us, "lag_bytes": 9, **said}).encode()])
    found = replicated.status(fs, NOON_US)
    assert found is not None
    return found.connected, found.lag_s


def test_the_age_of_what_it_has_goes_on_while_it_is_silent() -> None:
    late, just_now = NOON_US - 90_000_000, NOON_US - 1_000_000
    assert lag(just_now, said={"connected": True, "lag_s": 0.5}) == (True, 0.5)
    assert lag(late, said={"connected": True, "lag_s": 0.5}) == (False, 90.5)
    assert lag(just_now, said={"connected": False, "lag_s": 30.0}) == (False, 31.0)
    assert lag(late, said=None) == (False, 90.0)
