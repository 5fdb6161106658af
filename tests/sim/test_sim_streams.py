"""Streams that reserve, consume and are released join the simulation of a space: branches, kills and power losses."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from support.crash_level import LAGGING
from support.forgetful import Crashed
from support.sim_space import CALLS, PICK, QUEUES, JournalMachine, Model, SpaceMachine
from support.simulating import simulate
from xaqueue.errors import QueueReserved, ResourceFailed
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup

VERBS = st.sampled_from(("reserve", "consume", "archive", "release", "clear"))


@dataclass
class StreamModel(Model):
    """``kept``: the streams that have a queue, by its name."""

    kept: dict[str, str] = field(default_factory=dict)


class StreamMachine(SpaceMachine):
    model: StreamModel

    def __init__(self) -> None:
        super().__init__()
        self.model = StreamModel()
        self.streams = 0

    def _dequeue(self, number: int, queue: str) -> None:
        if queue not in self.model.kept:
            super()._dequeue(number, queue)
            return
        with pytest.raises(QueueReserved, match=self.model.kept[queue]):
            self.sessions[number].dequeue(queue)

    def _shows(self, model: Model) -> bool:
        assert isinstance(model, StreamModel)
        kept = {one.queue: one.stream for one in Session(self.space).reservations()}
        return kept == model.kept and super()._shows(model)

    @rule(verb=VERBS, queue=QUEUES, pick=PICK)
    def work_of_a_stream(self, verb: str, queue: str, pick: int) -> None:
        self.model = self._after(verb, queue, pick)
        self._perform(verb, queue, pick)

    @rule(verb=VERBS, queue=QUEUES, pick=PICK, calls=CALLS, dice=st.integers(0, 2**32), kill=st.booleans())
    def crash_of_a_stream(self, verb: str, queue: str, pick: int, calls: int, dice: int, kill: bool) -> None:
        """Within or after a verb."""
        before, after = self.model.after_crash(), self._after(verb, queue, pick).after_crash()
        self.fs.crash_after = self.fs.calls + calls
        try:
            self._perform(verb, queue, pick)
            allowed = [after]
        except (Crashed, ResourceFailed):
            assert self.fs.crashed
            allowed = [before, after]
        self._reopen(allowed, dice, kill)

    @precondition(lambda self: bool(self.model.kept))
    @rule(pick=PICK)
    def another_stream_is_refused(self, pick: int) -> None:
        queue = sorted(self.model.kept)[pick % len(self.model.kept)]
        with pytest.raises(QueueReserved, match=self.model.kept[queue]):
            Session(self.space).reserve(queue, "another#1", 0, 1)

    def _upto(self, queue: str, pick: int) -> int:
        """The number of one of its messages; 0 without one."""
        seqs = sorted(self.seqs[queue, message] for message in self.model.queues[queue])
        return seqs[pick % len(seqs)] if seqs else 0

    def _after(self, verb: str, queue: str, pick: int) -> StreamModel:
        after = deepcopy(self.model)
        held = any(place[0] == queue for place in self.model.locked())
        if verb == "reserve" and not held:
            after.kept.setdefault(queue, f"query#{self.streams + 1}")
        elif verb in ("consume", "archive") and queue in after.kept:
            upto = self._upto(queue, pick)
            after.queues[queue] = [message for message in after.queues[queue] if self.seqs[queue, message] > upto]
        elif verb == "release":
            after.kept.pop(queue, None)
        return after

    def _perform(self, verb: str, queue: str, pick: int) -> None:
        """The model says already what it comes to, or does not yet."""
        session = Session(self.space)
        told = {one.queue: one for one in session.reservations()}.get(queue)
        if verb == "reserve":
            self.streams += 1
            stream = told.stream if told is not None else f"query#{self.streams}"
            if any(place[0] == queue for place in self.model.locked()):
                with pytest.raises(QueueReserved, match="held by branches"):
                    session.reserve(queue, stream, 0, 0)
            else:
                session.reserve(queue, stream, 0, 0)
        elif verb in ("consume", "archive") and told is not None:
            visible = sorted(message.seq for message in session.browse(queue))
            upto = visible[pick % len(visible)] if visible else 0
            session.consume(queue, told.stream, upto, verb == "archive")
        elif verb == "release":
            assert (session.release(queue) is None) == (told is None)
        elif verb == "clear":
            cleanup.clear(self.space)


class JournalStreamMachine(StreamMachine, JournalMachine):
    level = LAGGING


@pytest.mark.crash
@pytest.mark.parametrize("machine", [StreamMachine, JournalStreamMachine])
def test_any_order_of_verbs_and_crashes(quiet: None, machine: type[StreamMachine]) -> None:
    simulate(machine, sample=60)
