"""What branches keep in memory of their blocks, with a journal or at NONE: so much of each and of all, and above that
files."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

import xaqueue
from support.bare_space import A_FILE_EACH, BareSpace, bare_space
from xaqueue.core.engine import heuristics, journal_log, log, messages, unsynced_log
from xaqueue.core.engine.log import HELD_BYTES
from xaqueue.core.model import layout
from xaqueue.errors import DiskFull, RetryLater
from xaqueue.xid import Xid

KiB = 1024
EACH, ALL = 256 * KiB, 1024 * KiB
BODY = bytes(7 * KiB)
"""With what a record holds beside it 8 KiB of memory, and a little."""
BEYOND = 2 * EACH // len(BODY)


@pytest.fixture(params=["JOURNAL", "NONE"])
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[BareSpace]:
    monkeypatch.setattr(journal_log, "KEPT_BYTES", EACH)
    monkeypatch.setattr(unsynced_log, "KEPT_BYTES", EACH)
    monkeypatch.setattr(log, "ALL_KEPT_BYTES", ALL)
    with bare_space(tmp_path / "space", request.param, definitions=A_FILE_EACH) as opened:
        yield opened


def room_fails(bare: BareSpace) -> dict[tuple[str, str], int]:
    """What a step needs room for."""
    if not bare.space.log.follows:
        return {("create", "active/"): errno.ENOSPC}
    return {("write_at", "journal/"): errno.ENOSPC, ("create", "journal/"): errno.ENOSPC}


def begun(bare: BareSpace, stack: ExitStack, count: int, *, messages: int = BEYOND) -> list[xaqueue.Connection]:
    """So many branches that are open at once, with so many messages each."""
    connections = []
    for number in range(count):
        connection = stack.enter_context(closing(bare.connect()))
        connection.tpc_begin(Xid(1, b"%d" % number, b"b"))
        connection.enqueue_many("q", [BODY] * messages)
        connections.append(connection)
    return connections


def in_files(bare: BareSpace) -> int:
    return len(list((bare.root / layout.ACTIVE).iterdir()))


def test_one_branch_keeps_so_much_and_has_files_for_the_rest(bare: BareSpace) -> None:
    with ExitStack() as stack:
        begun(bare, stack, 1)
        size, count = bare.space.kept()
        assert EACH * 3 / 4 < size < EACH
        assert count + in_files(bare) == BEYOND


def test_sixty_four_keep_so_much_together(bare: BareSpace) -> None:
    """But for the little that each may have in any case; and nothing is lost of them."""
    with ExitStack() as stack:
        open_ones = begun(bare, stack, 64)
        size, count = bare.space.kept()
        assert ALL * 3 / 4 < size <= ALL + 64 * HELD_BYTES
        assert count + in_files(bare) == 64 * BEYOND
        for number, connection in enumerate(open_ones):
            if number % 2:
                connection.tpc_prepare()
                connection.tpc_commit()
            else:
                connection.tpc_rollback()
        assert bare.space.kept() == (0, 0)
    bare.space.log.settle()
    assert in_files(bare) == 0
    assert bare.take("q") == [BODY] * (32 * BEYOND)


def test_who_adds_little_needs_no_file_where_others_have_it_all(bare: BareSpace) -> None:
    with ExitStack() as stack:
        begun(bare, stack, 8)
        files = in_files(bare)
        with closing(bare.connect()) as small:
            small.enqueue_many("q", [BODY] * (HELD_BYTES // len(BODY) - 2))
            assert in_files(bare) == files


def test_what_was_written_early_is_kept_no_more(bare: BareSpace) -> None:
    """Its branch may keep as much again."""
    with ExitStack() as stack:
        (connection,) = begun(bare, stack, 1)
        (branch,) = bare.space.branches.values()
        messages.write_early(bare.space, branch)
        assert in_files(bare) == BEYOND
        assert bare.space.kept() == (0, 0)
        connection.enqueue_many("q", [BODY] * BEYOND)
        assert bare.space.kept()[0] > EACH * 3 / 4
        assert bare.space.kept()[1] + in_files(bare) == 2 * BEYOND


def test_of_a_shared_body_only_one_block_counts(bare: BareSpace) -> None:
    """What is added to several queues is written early as one file, and all its names."""
    with closing(bare.connect()) as connection:
        connection.enqueue_to(["a", "b", "c"], bytes(HELD_BYTES))
        assert HELD_BYTES < bare.space.kept()[0] < HELD_BYTES * 3 / 2
        (branch,) = bare.space.branches.values()
        messages.write_early(bare.space, branch)
        assert bare.space.kept() == (0, 0)


def prepared(connection: xaqueue.Connection) -> None:
    connection.tpc_prepare()


def rolled_back(connection: xaqueue.Connection) -> None:
    connection.tpc_rollback()


def committed(connection: xaqueue.Connection) -> None:
    connection.tpc_commit()


ENDS: list[Callable[[xaqueue.Connection], None]] = [prepared, rolled_back, committed]


@pytest.mark.parametrize("end", ENDS)
def test_what_ends_gives_it_back(bare: BareSpace, end: Callable[[xaqueue.Connection], None]) -> None:
    with ExitStack() as stack:
        for connection in begun(bare, stack, 8):
            end(connection)
        files = in_files(bare)
        with closing(bare.connect()) as connection:
            connection.enqueue_many("q", [BODY] * (BEYOND // 4))
            assert in_files(bare) == files


def test_a_step_that_fails_gives_nothing_back_and_an_operator_does(bare: BareSpace) -> None:
    with ExitStack() as stack:
        open_ones = begun(bare, stack, 8)
        bare.fs.faults = room_fails(bare)
        for connection in open_ones[:4]:
            with pytest.raises(DiskFull):
                connection.tpc_prepare()
        bare.fs.faults.clear()
        for connection in open_ones[:4]:
            with suppress(xaqueue.Error):
                connection.tpc_rollback()
        for number, connection in enumerate(open_ones[4:], 4):
            connection.tpc_prepare()
            heuristics.decide(bare.space, Xid(1, b"%d" % number, b"b"), True, "me@here")
        files = in_files(bare)
        begun_anew = stack.enter_context(closing(bare.connect()))
        begun_anew.enqueue_many("q", [BODY] * (BEYOND // 4))
        assert in_files(bare) == files
        assert bare.space.kept()[0] < EACH


def test_one_that_recovery_has_found_keeps_nothing(bare: BareSpace) -> None:
    with ExitStack() as stack:
        for connection in begun(bare, stack, 8):
            connection.tpc_prepare()
        bare.reopen()
        assert len(bare.in_doubt()) == 8
        assert all(branch.kept == (0, 0) for branch in bare.space.branches.values())
        connection = stack.enter_context(closing(bare.connect()))
        connection.enqueue_many("q", [BODY] * (BEYOND // 4))
        assert in_files(bare) == 0


@pytest.mark.parametrize("two_phase", [True, False])
def test_files_of_a_branch_are_synced_together(bare: BareSpace, two_phase: bool) -> None:
    synced: list[str] = []

    def note(path: str) -> None:
        synced.append(path)

    bare.fs.sync_data = bare.fs.sync_file = note  # type: ignore[method-assign]
    with ExitStack() as stack:
        (connection,) = begun(bare, stack, 1)
        assert in_files(bare) > 16
        if two_phase:
            connection.tpc_prepare()
        connection.tpc_commit()
    assert [path for path in synced if not path.startswith("journal/")] == []


@pytest.mark.parametrize("level", ["JOURNAL", "NONE"])
@pytest.mark.parametrize("two_phase", [True, False])
def test_on_a_full_disk_a_large_branch_in_memory_ends_as_any_other(tmp_path: Path, level: str, two_phase: bool) -> None:
    """A prepare is rolled back, and a commit is done again once there is room."""
    bodies = [bytes(60 * KiB)] * 100
    opened = bare_space(tmp_path / "space", level, definitions=A_FILE_EACH)
    with opened as bare, closing(bare.connect()) as connection:
        connection.tpc_begin(Xid(1, b"large", b"b"))
        connection.enqueue_many("q", bodies)
        assert in_files(bare) == 0
        assert bare.space.kept()[1] == len(bodies)
        bare.fs.faults = room_fails(bare)
        with pytest.raises(DiskFull if two_phase else RetryLater):
            connection.tpc_prepare() if two_phase else connection.tpc_commit()
        bare.fs.faults.clear()
        assert bare.space.failure is None
        if two_phase:
            with suppress(xaqueue.Error):
                connection.tpc_rollback()
        else:
            connection.tpc_commit()
        assert bare.take("q") == ([] if two_phase else bodies)
