"""The bench of a row and a message: every way is measured on a database of somebody's, and nothing is left there."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

from bench.ledger import OURS, PEERS, main
from xaqueue.errors import Error

SHORT = ("--seconds", "0.05", "--rounds", "1", "--threads", "1,2")


def bench(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What it said."""
    main([str(word) for word in words])
    return capsys.readouterr().out


def test_every_way_is_measured_and_nothing_is_left(
    dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(dsn) as own:
        before = own.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
    said = bench(capsys, "--dsn", dsn, "--directory", tmp_path, "--json", tmp_path / "figures", *SHORT)
    rows = json.loads((tmp_path / "figures").read_text())["results"]
    both = {(row["way"], row["threads"], row["transaction"]): row for row in rows}
    assert both.keys() == {
        *((way, threads, "produce") for way in (*OURS, *PEERS) for threads in (1, 2)),
        *((way, threads, "consume") for way in (*OURS, "dual", "table") for threads in (1, 2)),
    }
    assert all(row["per_s"] > 0 and row["cpu_us"] > 0 for row in rows)
    assert both["dual", 1, "produce"]["of_dual"] == both["table", 2, "consume"]["of_table"] == 1
    assert both["row", 1, "produce"]["of_dual"] > 0
    assert "two phases" in said
    with psycopg.connect(dsn) as own:
        after = own.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
        ours = ("xaqueue_decisions", "xaqueue_nodes", "xaqueue_signs", "xaqueue_ended", "xaqueue_heuristics")
        assert set(after) - set(before) <= {(table,) for table in (*ours, "xaqueue_id")}
        for table in ours:
            assert own.execute(f"select * from {table}").fetchall() == []
    assert [path.name for path in tmp_path.iterdir()] == ["figures"]


def test_peers_are_chosen(dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = bench(capsys, "--dsn", dsn, "--directory", tmp_path, "--peer", "table", *SHORT)
    assert "table" in said
    assert "outbox, " not in said
    assert "dual, " not in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--peer", "other"), "choose from"),
        (("--rounds", "1", "--threads", "0"), "from 1"),
        (("--dsn", "host=/nowhere"), "name one with --dsn"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((Error, SystemExit)) as refused:
        main(words)
    assert why in str(refused.value) + capsys.readouterr().err
