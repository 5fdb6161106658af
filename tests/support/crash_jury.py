"""A jury holds trees to the record of a story: every promise is kept, and what is in doubt goes either way."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from support.archived import archived, live
from support.crash_level import Level, open_space, ready
from support.crash_story import (
    FRESH,
    SCAN,
    Became,
    Contents,
    Put,
    Record,
    Seen,
    Story,
    Take,
    body_of,
    call,
    drained,
    look,
    message_id,
    tags_of_message,
    watermark,
    xid_of,
)
from support.forgetful import Tree
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout, records
from xaqueue.features.pair.pair_fs import OWN
from xaqueue.features.session import Session
from xaqueue.xa import Flag

OVER = frozenset({Became.DONE, Became.DECIDED_DONE})


def expected(story: Story, became: Mapping[int, Became], start: Contents) -> Contents:
    """The model: what the queues hold where the acts became this. Raises KeyError where they cannot all have."""
    contents = dict(start)
    for position, outcome in became.items():
        for work in story.acts[position].work:
            place = work.queue, work.message
            if outcome in (Became.DONE, Became.DECIDED_DONE):
                if isinstance(work, Put):
                    contents[place] = False
                else:
                    del contents[place]
            elif outcome is Became.IN_DOUBT and isinstance(work, Take):
                contents[place] = not contents[place]
    return contents


def matches(story: Story, record: Record, seen: Seen, start: Contents) -> list[dict[int, Became]]:
    """Every outcome of the acts that the record allows and that explains what is seen."""
    found = []
    for outcomes in itertools.product(*record.may_be):
        became = dict(enumerate(outcomes))
        waiting = {i: what for i, what in became.items() if what not in (Became.DONE, Became.NOTHING)}
        listed = {story.xid(i): what for i, what in waiting.items()}
        if len(listed) < len(waiting):  # two lives of one xid, of which the first is over once the second begins
            continue
        with suppress(KeyError):
            if listed == seen.listed and expected(story, became, start) == seen.contents:
                found.append(became)
    return found


_starts: dict[object, Contents] = {}


def start_of(story: Story, level: Level) -> Contents:
    key = story.start.key(), level
    if key not in _starts:
        space = open_space(ready(story.start, level).open(), level, goes_on=True)
        _starts[key] = look(space, Session(space)).contents
    return _starts[key]


class Jury:
    """Holds trees to one story's records; the same tree under the same promises is judged once. Level: the jury's.

    judged: of juries that sit on alike stories, each of which may come to the same trees. What is to come in a story is
    no part of a judgement, but for its queues.
    """

    def __init__(self, story: Story, level: Level, judged: set[object] | None = None) -> None:
        self.story = story
        self.level = level
        self.start = start_of(story, level)
        self.judged = set() if judged is None else judged
        self._known = level, tuple(self.start), tuple(story.queues)

    def judge(self, tree: Tree, record: Record, *, tries_kept: bool = False) -> None:
        """AssertionError unless the tree, opened, keeps every promise, and its branches in doubt go either way."""
        if not self.is_new(tree, record, tries_kept):
            return
        for verb in ("commit", "rollback"):
            space = open_space(tree.open_for_good(), self.level)
            became = self.recovered(space, record, tries_kept=tries_kept)
            self._check_kept(space, became, record)
            self._settle(space, became, verb)
            self._go_on(space, record)
            if Became.IN_DOUBT not in became.values():
                break

    def is_new(self, tree: Tree, record: Record, question: object) -> bool:
        """Whether nobody has asked this of the tree under these promises; from now on somebody has."""
        began = tuple((act.work, act.life_of) for act in self.story.acts[: len(record.may_be)])
        known = len(self.judged)
        self.judged.add((question, tree.key(), record.key(), began, self._known))
        return len(self.judged) > known

    def recovered(self, space: Space, record: Record, *, tries_kept: bool = False) -> dict[int, Became]:
        """What the acts became, as this space says just after its recovery."""
        assert not space.report.quarantined, "a mere crash damages nothing"
        seen = look(space, Session(space))
        found = matches(self.story, record, seen, self.start)
        assert found, f"seen {seen}, allowed {record.may_be}"
        for place, seq in seen.seqs.items():
            assert record.seqs.get(place, seq) == record.shown.get(place, seq) == seq, "a message keeps its number"
            assert seq > record.before.get(place, 0), "an earlier life of its id is over"
            assert watermark(space.fs.read(layout.watermark_path(place[0]))).published >= seq
        for place, seq in record.shown.items():
            assert seen.seqs.get(place) == seq, "what a reader has seen stays"
        undone = [
            (work.queue, work.message)
            for position, outcome in found[0].items()
            for work in self.story.acts[position].work
            if outcome in (Became.NOTHING, Became.DECIDED_NOTHING) or (work.queue, work.message) in record.before
        ]
        for place, tries in seen.tries.items():
            assert tries <= (1 + record.openings) * undone.count(place), (
                "an opening counts a block that is back, if only by its id"
            )
            assert tries >= record.undone.count(place) or not tries_kept
        for work in (work for act in self.story.acts for work in act.work if isinstance(work, Put)):
            tags = tags_of_message(work.message)
            assert seen.tags.get((work.queue, work.message), tags) == tags, "a name tells all that it did"
        for queue in self.story.queues:
            beside = {(seq, int.from_bytes(one, "big")) for seq, one in records.read_retries(space.fs, queue)}
            there = {(seq, message) for (name, message), seq in seen.seqs.items() if name == queue}
            assert beside <= there, "tries go with their message"
        return found[0]

    def pinned(self, space: Space, record: Record) -> Record:
        """The record once this recovery has told what the acts became: no later crash may change it."""
        seen = look(space, Session(space))
        found = matches(self.story, record, seen, self.start)
        may_be = [{became[position] for became in found} for position in range(len(record.may_be))]
        return replace(record, may_be=may_be, seqs={**record.seqs, **seen.seqs}, openings=record.openings + 1)

    def _settle(self, space: Space, became: Mapping[int, Became], verb: str) -> None:
        """Decides what is in doubt, forgets what was decided, and finds exactly the messages that this makes."""
        session = Session(space)
        decided = Became.DONE if verb == "commit" else Became.NOTHING
        final = {i: decided if what is Became.IN_DOUBT else what for i, what in became.items()}
        for position, what in became.items():
            if what is Became.IN_DOUBT:
                call(session, verb, self.story.xid(position))
            elif what not in (Became.DONE, Became.NOTHING):
                session.forget(self.story.xid(position))
        assert session.recover(1000, SCAN) == []
        wanted = expected(self.story, final, self.start)
        assert look(space, session).contents == wanted
        assert not any(wanted.values())
        space.log.settle()
        kept = self._check_kept(space, final)
        own = space.fs.list(layout.ACTIVE) if self.level.paired else []
        assert len(own) == self.level.paired
        assert all(name.startswith(OWN) and space.fs.list(f"{layout.ACTIVE}/{name}") == [] for name in own)
        for directory in (layout.ACTIVE, layout.PREPARED, layout.HEURISTIC, layout.QUARANTINE):
            assert space.fs.list(directory) == (own if directory == layout.ACTIVE else [])
        session.start(xid_of(-1))
        for queue in self.story.queues:
            bodies = sorted(drained(session, queue))
            assert bodies == sorted(body_of(message) for name, message in wanted if name == queue)
        session.end(xid_of(-1))
        session.commit(xid_of(-1), Flag.ONEPHASE)
        if self.level.keeps:
            space.log.settle()
            left = [name for name, _ in wanted if name in self.story.queues]
            assert sum(len(archived(space.fs, queue)) for queue in self.story.queues) == kept + len(left)

    def _check_kept(self, space: Space, became: Mapping[int, Became], record: Record | None = None) -> int:
        """What was taken, and nothing else, is in the archive, and not in its queue; where it was acknowledged, with
        who took it. Returns how many that are."""
        count = 0
        space.log.settle()
        for queue in self.story.queues if self.level.keeps else ():
            found, taken = archived(space.fs, queue), self._taken(became, queue)
            assert not found.keys() & live(space.fs, queue), "it is there, and was taken"
            bodies = sorted(body for body, positions in taken.items() for _ in positions)
            assert sorted(left.body for left in found.values()) == bodies
            for left in found.values():
                by, positions = left.by, taken[left.body]
                promised = [one for one in positions if record is not None and record.may_be[one] <= OVER]
                assert by is not None or not promised, "nobody says who took it"
                assert by is None or by.by in {str(self.story.xid(one)) for one in positions}
            count += len(found)
        return count

    def _taken(self, became: Mapping[int, Became], queue: str) -> dict[bytes, list[int]]:
        """By body which acts have taken it, and not moved it to another queue."""
        taken: dict[bytes, list[int]] = {}
        for position, what in became.items():
            work = self.story.acts[position].work if what in OVER else ()
            added = {one.message for one in work if isinstance(one, Put)}
            for one in work:
                if isinstance(one, Take) and one.queue == queue and one.message not in added:
                    taken.setdefault(body_of(one.message), []).append(position)
        return taken

    def _go_on(self, space: Space, record: Record) -> None:
        """A new message gets a number that no published message ever had."""
        session = Session(space)
        session.start(xid_of(-2))
        for queue in self.story.queues:
            session.enqueue(queue, b"", message_id=message_id(FRESH))
        session.end(xid_of(-2))
        session.commit(xid_of(-2), Flag.ONEPHASE)
        seqs = look(space, session).seqs
        for queue in self.story.queues:
            used = [seq for (name, _), seq in (*record.seqs.items(), *record.before.items()) if name == queue]
            assert seqs[queue, FRESH] > max(used, default=0)
