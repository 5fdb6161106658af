"""What rides on a branch for the features: whom a commit asks."""

from __future__ import annotations

from collections.abc import Iterator

import xaqueue.features.opening  # all of them  # noqa: F401
from xaqueue.core.model.branch import Rider
from xaqueue.features.leases.leases import Lent

IN_A_COMMIT = ("stage", "ops", "performs", "publish_locked", "release_locked", "committed")


def riders(base: type[Rider] = Rider) -> Iterator[type[Rider]]:
    for one in base.__subclasses__():
        yield one
        yield from riders(one)


def test_who_has_to_do_in_a_commit_is_asked() -> None:
    found = [one for one in riders() if one.__module__.startswith("xaqueue.")]
    assert {"Carried", "Claims", "Leaving", "Lent"} <= {one.__name__ for one in found}
    silent = [one for one in found if not one.acts]
    assert Lent in silent
    assert [one for one in silent for hook in IN_A_COMMIT if getattr(one, hook) is not getattr(Rider, hook)] == []
