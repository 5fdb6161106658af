"""What Prometheus is told of a space: each figure as it is, counters from the owner's start, and never an exception."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

import xaqueue
from support.bare_space import BareSpace, bare_space
from support.journal_of import journal_log
from support.served import serving
from xaqueue import metrics
from xaqueue.cli.main import app
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.owner.record import read_owner
from xaqueue.features.counters import counters as counter_files
from xaqueue.features.retries import moving
from xaqueue.features.streams import cleanup
from xaqueue.rpc.client.sockets import PlainSocket
from xaqueue.rpc.methods.meters import metrics_in
from xaqueue.testing import MemorySpace
from xaqueue.xid import Xid

DEFINED = Definitions(
    {"orders": QueueDefinition(options={"max_tries": 2, "failure_queue": "failed"}), "failed": QueueDefinition()}
)
NOON_US = 1_800_000_000_000_000


@pytest.fixture(params=["NONE", "JOURNAL"])
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path, request.param, definitions=DEFINED, now_us=lambda: NOON_US) as made:
        yield made


def parsed(text: str) -> dict[tuple[str, ...], float]:
    """By name and values of the labels, in the order of these."""
    return {
        (sample.name, *(sample.labels[key] for key in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def told(bare: BareSpace) -> dict[tuple[str, ...], float]:
    return parsed(metrics.text_of(lambda: metrics_in(bare.space, 3)).decode())


def states(bare: BareSpace, queue: str = "orders") -> dict[str, float]:
    return {key[2]: value for key, value in told(bare).items() if key[:2] == ("xaqueue_queue_messages", queue)}


def test_messages_are_told_by_state(bare: BareSpace) -> None:
    bare.put("orders", *[b"%d" % number for number in range(6)])
    with bare.connect() as connection:
        connection.enqueue("orders", b"later", not_before=NOON_US + 60_000_000)
        connection.commit()
    assert states(bare) == {"ready": 6, "delayed": 1}
    holder = bare.connect()
    assert holder.dequeue("orders") is not None
    bare.prepare(Xid(1, b"x", b"y"), take=["orders", "orders"])
    assert states(bare) == {"ready": 3, "delayed": 1, "locked": 1, "in_doubt": 2}
    found = told(bare)
    assert found["xaqueue_indoubt_branches",] == 1
    assert found["xaqueue_active_branches",] == 1
    assert found["xaqueue_sessions",] == 3
    assert found["xaqueue_state", "ready"] == 1
    holder.rollback()


def test_counters_begin_with_each_owner(bare: BareSpace) -> None:
    for _ in range(2):
        bare.put("orders", b"one", b"two")
        with bare.connect() as connection:
            assert [connection.dequeue("orders") is not None for _ in range(3)] == [True, True, False]
            connection.commit()
        found = told(bare)
        assert found["xaqueue_messages_enqueued_total", "orders"] == 2
        assert found["xaqueue_messages_dequeued_total", "orders"] == 2
        assert found["xaqueue_steps_total",] >= found["xaqueue_rounds_total",] >= (journal_log(bare.space) is not None)
        bare.space.checkpoint()
        counter_files.write(bare.space)
        bare.reopen()
    assert told(bare)["xaqueue_messages_enqueued_total", "orders"] == 0
    assert counter_files.counted(bare.space)[1]["orders"].enqueued == 4


def test_syncs_are_counted_where_there_are_any(bare: BareSpace) -> None:
    bare.put("orders", b"one")
    found = told(bare)
    counted = [value for key, value in found.items() if key[0] == "xaqueue_sync_duration_seconds_bucket"]
    assert counted == sorted(counted)
    assert found.get(("xaqueue_sync_duration_seconds_count",), 0) == max(counted, default=0)


def test_what_is_moved_or_expires_is_never_less_than_nothing(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    bare.put("orders", *[b"%d" % number for number in range(5)])
    for _ in range(2):
        for _ in range(5):
            with bare.connect() as connection:
                assert connection.dequeue("orders") is not None
                connection.rollback()
    seen = []
    perform = bare.space.log.perform

    def looked(*arguments: Any, **named: Any) -> object:
        seen.append(states(bare))
        done = perform(*arguments, **named)
        seen.append(states(bare))
        return done

    monkeypatch.setattr(bare.space.log, "perform", looked)
    cleanup.clear(bare.space)
    moving.move_exhausted(bare.space, cleanup.never)
    assert len(seen) >= 10
    assert all(set(one) == {"ready", "exhausted"} or one == {"ready": 0} for one in seen)
    assert [sum(one.values()) for one in seen] == sorted((sum(one.values()) for one in seen), reverse=True)
    with bare.connect() as connection:
        connection.enqueue("orders", b"refused")
        connection.commit()
        connection.receive("orders")[0].reject("no order")
    found = told(bare)
    assert found["xaqueue_messages_dead_lettered_total", "orders", "tries"] == 5
    assert found["xaqueue_messages_dead_lettered_total", "orders", "rejected"] == 1


def test_a_branch_that_lost_something_is_told(bare: BareSpace) -> None:
    bare.prepare(Xid(1, b"x", b"y"), add=[("orders", b"one"), ("orders", b"two")])
    if journal_log(bare.space) is not None:
        bare.space.log.settle()
    next(path for path in (bare.root / "prepared").iterdir() if path.name.endswith(".001")).write_bytes(b"torn")
    bare.space.close()
    bare.reopen()
    found = told(bare)
    assert (found["xaqueue_indoubt_branches",], found["xaqueue_indoubt_damaged_branches",]) == (1, 1)


def scrape(of: object) -> dict[tuple[str, ...], float]:
    return parsed(generate_latest(metrics.registry(of)).decode())  # type: ignore[arg-type]


def test_the_text_is_that_of_the_library(bare: BareSpace) -> None:
    bare.put("orders", b"one")
    answer = metrics_in(bare.space, 3)
    for space in ("", 'a "space"\\of\nmine'):
        text = metrics.text_of(lambda: dict(answer), space).decode()
        library = generate_latest(metrics.SpaceCollector(lambda: dict(answer), space)).decode()
        assert parsed(text) == parsed(library)
        assert len(parsed(text)) > 40
        assert {one for one in text.splitlines() if one[0] == "#"} == {
            one for one in library.splitlines() if one[0] == "#"
        }


def test_a_connection_and_its_directory(tmp_path: Path) -> None:
    place = tmp_path / "s"
    with xaqueue.connect(place, create=True) as connection:
        connection.enqueue("orders", b"one")
        connection.commit()
        registry = metrics.registry(connection)
        assert parsed(generate_latest(registry).decode())["xaqueue_queue_messages", "orders", "ready"] == 1
    with xaqueue.connect(place):
        assert scrape(place)["xaqueue_up",] == 1
    found = scrape(place)
    assert (found["xaqueue_up",], found["xaqueue_queue_messages", "orders", "ready"]) == (0, 1)
    assert scrape(tmp_path / "nothing") == {("xaqueue_up",): 0}


def test_a_connection_whose_space_is_closed_tells_nothing(tmp_path: Path) -> None:
    connection, other = xaqueue.connect(tmp_path / "s", create=True), xaqueue.connect(tmp_path / "s")
    registry = metrics.registry(connection)
    connection.close()
    assert parsed(generate_latest(registry).decode())["xaqueue_up",] == 1
    other.close()
    assert parsed(generate_latest(registry).decode()) == {("xaqueue_up",): 0}


def test_what_nobody_knows_is_absent(tmp_path: Path) -> None:
    with bare_space(tmp_path, "JOURNAL") as bare:
        told_now = metrics_in(bare.space, 3)
    head = {key: told_now[key] for key in ("sync", "epoch", "began_at", "fenced_at", "sessions")}
    recovering = parsed(metrics.text_of(lambda: {"state": "recovering", **head}).decode())
    assert {key[0] for key in recovering} == {
        *("xaqueue_up", "xaqueue_build_info", "xaqueue_state", "xaqueue_epoch", "xaqueue_sessions"),
        *("xaqueue_owner_start_timestamp_seconds", "xaqueue_last_fence_timestamp_seconds"),
    }
    xaqueue.connect(tmp_path / "s", create=True).close()
    of_files = scrape(tmp_path / "s")
    assert of_files["xaqueue_free_bytes",] > 0
    assert {"xaqueue_steps_total", "xaqueue_sessions"}.isdisjoint(key[0] for key in of_files)


def test_a_space_in_memory_has_them_too() -> None:
    with MemorySpace(["orders"]) as space, space.connect() as connection:
        connection.enqueue("orders", b"one")
        connection.commit()
        assert scrape(connection)["xaqueue_queue_messages", "orders", "ready"] == 1
        with pytest.raises(xaqueue.errors.InvalidArgument, match="space in memory"):
            metrics.registry(space)


def test_a_server_that_does_not_answer_holds_no_scrape_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = list[float | None]()
    settimeout = PlainSocket.settimeout

    def noted(plain: PlainSocket, limit_s: float | None) -> None:
        limits.append(limit_s)
        settimeout(plain, limit_s)

    xaqueue.connect(tmp_path / "s", create=True).close()
    with (
        serving(tmp_path / "s") as server,
        xaqueue.connect(server.url) as connection,
        monkeypatch.context() as watched,
    ):
        watched.setattr(PlainSocket, "settimeout", noted)
        assert [scrape(of)["xaqueue_up",] for of in (connection, server.url)] == [1, 1]
    assert set(limits) == {metrics.ANSWER_S}


def test_only_who_waits_for_a_message_waits(bare: BareSpace) -> None:
    with bare.connect() as connection:
        connection.enqueue("orders", b"one")
        (branch,) = bare.space.branches.values()
        branch.working.add(7)
        assert told(bare)["xaqueue_waiting_sessions",] == 0
        branch.working.clear()
        connection.rollback()


def test_a_name_that_is_no_unicode_breaks_no_scrape(bare: BareSpace) -> None:
    text = metrics.text_of(lambda: metrics_in(bare.space, 0), metrics.name_of("/srv/s\udcff")).decode()
    assert 'xaqueue_up{space="/srv/s\\\\udcff"} 1.0' in text


def test_a_fence_is_told_by_the_next_owner(tmp_path: Path) -> None:
    place = tmp_path / "s"
    connection = xaqueue.connect(place, create=True)
    assert scrape(connection)["xaqueue_last_fence_timestamp_seconds",] == 0
    space = connection._manager.space  # type: ignore[attr-defined]
    space.fence(OSError(5, "the disk is gone"))
    assert scrape(connection)["xaqueue_state", "fenced"] == 1
    for _ in range(100):
        owner = read_owner(place)
        if owner is not None and owner.trouble:
            break
        time.sleep(0.05)
    assert scrape(place)["xaqueue_state", "fenced"] == 1  # by its files, too
    connection.close()
    for _ in range(2):
        with xaqueue.connect(place) as again:
            assert scrape(place)["xaqueue_state", "ready"] == 1
            assert scrape(again)["xaqueue_last_fence_timestamp_seconds",] > 1_700_000_000


def test_the_command_replaces_its_file_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, file = tmp_path / "s", tmp_path / "x.prom"
    xaqueue.connect(place, create=True).close()
    file.write_text("old")
    done = CliRunner().invoke(app, ["metrics", "--space", str(place), "-o", str(file)])
    assert done.exit_code == 0, done.output
    assert f'xaqueue_up{{space="{place}"}} 0.0' in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    before = file.read_text()

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    done = CliRunner().invoke(app, ["metrics", "--space", str(place), "-o", str(file)])
    assert (done.exit_code, file.read_text()) == (3, before)
    assert [one.name for one in tmp_path.iterdir() if one.name not in ("s", "x.prom")] == []


def test_where_nobody_answers_the_command_says_so_in_both_ways(tmp_path: Path) -> None:
    file = tmp_path / "x.prom"
    done = CliRunner().invoke(app, ["metrics", "--space", f"xaq+unix://{tmp_path}/none", "-o", str(file)])
    assert done.exit_code == 3
    assert f'xaqueue_up{{space="xaq+unix://{tmp_path}/none"}} 0.0' in file.read_text()
