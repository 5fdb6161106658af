"""For the tests of those who use xaqueue: a space in memory, and a power loss at every moment.

    with xaqueue.testing.MemorySpace(["orders"]) as space, space.connect() as conn:
        conn.enqueue("orders", b"...")

With pytest its plugin has fixtures: ``queue_space``, ``queue_server`` and ``crash_after``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xaqueue.testing.crashing import Crashed as Crashed
    from xaqueue.testing.memory import Crash as Crash
    from xaqueue.testing.memory import MemorySpace as MemorySpace
    from xaqueue.testing.memory import every_crash as every_crash
    from xaqueue.testing.serving import served as served
else:

    def __getattr__(name):
        """The engine is loaded with the first that needs it: pytest loads the plugin at each start."""
        if name in __all__:
            from xaqueue.testing import crashing, memory, serving

            return getattr({"Crashed": crashing, "served": serving}.get(name, memory), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Crash", "Crashed", "MemorySpace", "every_crash", "served"]
