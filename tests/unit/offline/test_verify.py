"""Many spaces are checked in shares: what `check` finds, and what only all of them together show."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tracemalloc
from pathlib import Path

import pytest
from typer.testing import CliRunner

import xaqueue
from support.spark_space import FabricatedSpace, message_id
from xaqueue.cli.main import app
from xaqueue.core.model import layout
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import SpaceError
from xaqueue.features.opening import create
from xaqueue.features.session import attach
from xaqueue.offline import verify as offline_verify
from xaqueue.offline.check import check
from xaqueue.offline.findings import Finding
from xaqueue.offline.verify import (
    Examined,
    MessagePlace,
    Share,
    duplicates,
    examine,
    shares,
    spaces_of,
    verify,
    worst_first,
)

AT_ONCE = "FDATASYNC;DSYNC"
"""The directories are what a commit has said; with a journal they follow by a moment."""


@pytest.fixture
def spaces(tmp_path: Path) -> list[FabricatedSpace]:
    """Two spaces; the second one's messages have numbers, and so ids, of their own."""
    made = [FabricatedSpace(tmp_path / name, name) for name in ("one", "two")]
    made[0].fill("orders", (*range(1, 41), *range(4_090, 4_200)))
    made[1].fill("orders", range(6_001, 6_011))
    made[1].fill("parcels", range(7_001, 7_004))
    return made


def seen(spaces: list[FabricatedSpace], processes: int = 1) -> list[Finding]:
    """What is found beside leftovers, as a fabricated space lacks directories that the next open makes."""
    _, found = verify([str(space.root) for space in spaces], processes)
    return [told for told in found if told.severity != "leftover"]


def place(space: FabricatedSpace, queue: str, seq: int) -> str:
    return layout.message_path(queue, seq, message_id(seq))


@pytest.mark.parametrize("processes", [1, 2])
def test_sound_spaces_are_counted(spaces: list[FabricatedSpace], processes: int) -> None:
    verdict, _ = verify([str(space.root) for space in spaces], processes)
    assert (verdict.spaces, verdict.queues, verdict.messages, verdict.wrong) == (2, 3, 163, 0)
    assert seen(spaces) == []


def test_every_damage_of_a_message_is_found_with_its_space(spaces: list[FabricatedSpace]) -> None:
    one, two = spaces
    torn = one.path("orders", 4_150)
    torn.write_bytes(torn.read_bytes()[:-1])
    two.path("parcels", 7_002).rename(two.path("orders", 6_001).with_name(f"{6_020:016x}.{message_id(7_002).hex()}"))
    stray = two.path("orders", 6_001).with_name("stray")
    stray.touch()
    problems = {(told.space, told.path): (told.severity, told.problem) for told in seen(spaces)}
    wrong = problems[str(one.root), place(one, "orders", 4_150)]
    assert wrong[0] == "damage"
    assert "truncated" in wrong[1]
    moved = problems[str(two.root), layout.message_path("orders", 6_020, message_id(7_002))]
    assert "belongs to queue 'parcels'" in moved[1]
    assert len(problems) == 3


def test_the_same_is_found_as_check_finds(spaces: list[FabricatedSpace]) -> None:
    space = spaces[0]
    space.path("orders", 7).write_bytes(b"XAQB")
    (space.root / "prepared" / "stray").touch()
    (space.root / "committed" / "stray").mkdir()
    (space.root / layout.watermark_path("orders")).write_bytes(b"nonsense")
    _, found = verify([str(space.root)], 1)
    wanted = {(finding.severity.value, finding.path, finding.problem) for finding in check(space.root)}
    assert {(told.severity, told.path, told.problem) for told in found} == wanted
    assert len([told for told in found if told.severity == "damage"]) == 4


def test_an_id_in_two_spaces_or_queues_or_twice_in_a_queue(spaces: list[FabricatedSpace]) -> None:
    one, two = spaces
    two.put("orders", 4_100)
    one.put("invoices", 9)
    one.publish("invoices", 9)
    twice = one.root / layout.message_path("orders", 5_000, message_id(8))
    shutil.copy(one.path("orders", 8), twice)
    found = sorted((told.severity, told.path, told.problem.partition(":")[0]) for told in seen(spaces))
    assert found == [
        ("damage", str(twice.relative_to(one.root)), "stands in its queue twice"),
        (
            "duplicate",
            place(one, "orders", 9),
            f"has the message id of {place(one, 'invoices', 9)} in {one.root}",
        ),
        (
            "duplicate",
            place(two, "orders", 4_100),
            f"has the message id of {place(one, 'orders', 4_100)} in {one.root}",
        ),
    ]


def test_a_directory_whose_name_is_no_utf_8(cli: CliRunner, spaces: list[FabricatedSpace], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    spaces[1].put("orders", 4_100)
    odd = Path(os.fsdecode(bytes(tmp_path) + b"/t\xffo"))
    spaces[1].root.rename(odd)
    _, found = verify([str(spaces[0].root), str(odd)], 1)
    assert [told.space for told in found if told.severity != "leftover"] == [str(odd)]
    report = tmp_path / "found.parquet"
    done = cli.invoke(app, ["verify", "--space", f"{tmp_path}/*", "--cores", "1", "--report", str(report)])
    assert (done.exit_code, report.exists()) == (1, True), done.output
    assert "t\\udcffo" in done.output


def test_a_duplicate_that_is_gone_does_not_count(spaces: list[FabricatedSpace]) -> None:
    places = [MessagePlace(str(space.root), "orders", 4_100) for space in spaces]
    assert duplicates(message_id(4_100), places) == []
    spaces[1].put("orders", 4_100)
    assert len(duplicates(message_id(4_100), places)) == 1


def test_numbers_are_held_against_the_watermark(spaces: list[FabricatedSpace]) -> None:
    space = spaces[1]
    space.put("orders", 6_500)
    space.put("parcels", 9_000)
    _, found = verify([str(space.root)], 1)
    problems = {told.path: told.problem for told in found if told.path.endswith(".watermark")}
    assert problems == {
        layout.watermark_path("orders"): "message 6500 is above published 6010: the next open shows it",
        layout.watermark_path("parcels"): "message 9000 is above reserved 8003: the next open reserves it",
    }


def test_a_space_in_use_is_checked_as_it_is(tmp_path: Path) -> None:
    create(tmp_path / "live", any_queue=True)
    with xaqueue.connect(tmp_path / "live", sync=AT_ONCE) as connection:
        connection.enqueue("orders", b"one")
        connection.commit()
        connection.enqueue("orders", b"not yet")
        connection.tpc_recover()
        verdict, found = verify([str(tmp_path / "live")], 1)
    assert verdict.messages == 1
    assert [told.severity for told in found] == ["note"]


def test_what_a_stream_has_consumed_is_no_message_any_more(tmp_path: Path) -> None:
    create(tmp_path / "space", any_queue=True)
    session = attach(tmp_path / "space", watch=False, sync=AT_ONCE)
    try:
        with xaqueue.Connection(session, fresh_id) as connection:
            for number in range(4):
                connection.enqueue("orders", b"%d" % number)
            connection.commit()
            session.reserve("orders", "s#1", 0, 4)
            session.consume("orders", "s#1", 3)
            verdict, _ = verify([str(tmp_path / "space")], 1)
    finally:
        session.close()
    assert verdict.messages == 1
    assert verdict.wrong == 0


def test_a_space_behind_its_journal_is_one_share(tmp_path: Path) -> None:
    """The owner is killed, as far as the files tell: what it had not carried out yet stands in its journal."""
    create(tmp_path / "space", any_queue=True)
    with xaqueue.connect(tmp_path / "space", sync="JOURNAL") as connection:
        connection.enqueue("orders", b"one")
        connection.commit()
        shutil.copytree(tmp_path / "space", tmp_path / "left", ignore=shutil.ignore_patterns("socket"))
    (share,) = shares(str(tmp_path / "left"))
    assert share.whole
    assert examine(share).messages.keys() <= {"orders"}
    verdict, found = verify([str(tmp_path / "left")], 1)
    assert verdict.wrong == 0
    assert any(told.path == "journal" and told.severity == "leftover" for told in found)
    assert len(shares(str(tmp_path / "space"))) > 1


def test_spaces_are_named_one_by_one_or_by_a_pattern(spaces: list[FabricatedSpace], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    both = [str(space.root) for space in spaces]
    assert spaces_of(f"{tmp_path}/*") == both
    assert spaces_of(f"{both[1]}, {both[0]},{both[1]}") == both[::-1]
    for wrong in (f"{tmp_path}/o[t]*", f"{tmp_path}/other", ""):
        with pytest.raises(SpaceError):
            spaces_of(wrong)


@pytest.fixture
def cli() -> CliRunner:
    return CliRunner()


def test_the_verb(cli: CliRunner, spaces: list[FabricatedSpace], tmp_path: Path) -> None:
    done = cli.invoke(app, ["verify", "--space", f"{tmp_path}/*", "--cores", "1"])
    assert done.exit_code == 0, done.output
    assert "163 messages in 3 queues of 2 spaces" in done.output
    assert "all is well" in done.output
    spaces[1].put("orders", 4_100)
    done = cli.invoke(app, ["verify", "--space", f"{tmp_path}/*", "--cores", "1", "--json"])
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert (told["messages"], told["wrong"], told["counts"]["duplicate"]) == (164, 1, 1)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_report(cli: CliRunner, spaces: list[FabricatedSpace], tmp_path: Path, ending: str) -> None:
    """All findings as a table, in the order in which they are shown, and never over another one."""
    dataset = pytest.importorskip("pyarrow.dataset", reason="pyarrow is not installed")
    spaces[0].put("orders", 6_005)
    spaces[0].path("orders", 4_150).write_bytes(b"XAQB")
    report = tmp_path / f"found.{ending}"
    words = ["verify", "--space", f"{tmp_path}/*", "--cores", "2", "--report", str(report)]
    done = cli.invoke(app, words)
    assert (done.exit_code, f"all findings are in {report}" in done.output) == (1, True)
    _, findings = verify([str(space.root) for space in spaces], 1)
    rows = [tuple(row.values()) for row in dataset.dataset(report, format=ending).to_table().to_pylist()]
    assert rows == [(one.space, one.severity.value, one.path, one.problem) for one in worst_first(findings)]
    assert [severity for _, severity, *_ in rows[:2]] == ["damage", "duplicate"]
    for again, why in (
        (report, "is there already"),
        (tmp_path / "found.txt", "ends in .parquet or .csv"),
        (tmp_path / "none" / report.name, "cannot be written"),
    ):
        done = cli.invoke(app, [*words[:-1], str(again)])
        assert (done.exit_code, why in done.output.replace("\n", " ")) == (2, True), done.output


def test_ids_and_places_of_very_many_are_in_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = 200_000
    found = [Examined([], {"orders": [(seq, b"%016d" % seq) for seq in range(many)]})]
    monkeypatch.setattr(offline_verify, "shares", lambda space: [Share(space, False, "orders", "range=0")])
    monkeypatch.setattr(offline_verify, "_examined", lambda *_: found)
    monkeypatch.setattr(offline_verify, "queues_of", len)
    tracemalloc.start()
    summary, _ = verify([str(tmp_path)], 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert summary.messages == many
    assert peak < 20 * many


def test_without_room_for_the_ids_it_says_where_that_is_wanted(
    cli: CliRunner, spaces: list[FabricatedSpace], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def small(path: str) -> sqlite3.Connection:
        made = connect(path)
        made.execute("pragma max_page_count = 2")
        return made

    monkeypatch.setattr(sqlite3, "connect", small)
    done = cli.invoke(app, ["verify", "--space", str(spaces[0].root), "--cores", "1"])
    assert done.exit_code == 4
    assert "set TMPDIR to a directory that has room" in done.output.replace("\n", " ")
