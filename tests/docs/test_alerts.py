"""examples/alerts.yml and grafana.json: their names are those of a real scrape, and on a scripted day each alert fires
at its event, and nothing else does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import xaqueue
from support import ROOT
from xaqueue import metrics

ALERTS, BOARD = ROOT / "examples" / "alerts.yml", ROOT / "examples" / "grafana.json"
RULES = {rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
EXPRESSIONS = [target["expr"] for panel in json.loads(BOARD.read_text())["panels"] for target in panel["targets"]]
FEW = {f"xaqueue_{name}" for name, *_ in (*metrics.OF_FEW, *metrics.OF_REPLICATION)}
"""What a space without a replica, of which nothing is wrong, does not show."""
PROMTOOL = shutil.which("promtool")


def text_of(place: object) -> str:
    from prometheus_client import generate_latest

    return generate_latest(metrics.registry(place)).decode()  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """By name of a series, its labels."""
    with xaqueue.connect(tmp_path_factory.mktemp("space") / "s", create=True) as connection:
        connection.enqueue("orders", b"one")
        connection.commit()
        text = text_of(connection)
    found = dict[str, set[str]]()
    for name, labels in re.findall(r"^(xaqueue_\w+)(?:\{(.*)\})? ", text, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


@pytest.mark.parametrize("expression", [*(rule["expr"] for rule in RULES.values()), *EXPRESSIONS])
def test_an_expression_asks_for_what_there_is(expression: str, scraped: Mapping[str, set[str]]) -> None:
    names = set(re.findall(r"\bxaqueue_\w+", expression))
    assert names or "node_textfile" in expression
    assert names - FEW - {"xaqueue_stream_lag_messages"} <= set(scraped)
    for name, labels in re.findall(r"\b(xaqueue_\w+)\{(.*?)\}", expression):
        assert set(re.findall(r"(\w+)=~?\"", labels)) <= scraped.get(name, {"queue"}) | {"instance"}


def test_the_guide_lists_all_names_and_no_others(scraped: Mapping[str, set[str]]) -> None:
    page = (ROOT / "man" / "guide" / "monitoring.md").read_text()
    listed = set(re.findall(r"^\| `(xaqueue_\w+)`", page, re.MULTILINE))
    base = {re.sub(r"(_bucket|_sum|_count)$", "", name) for name in scraped}
    assert listed == base | FEW | {"xaqueue_stream_lag_messages"}


def run_promtool(*arguments: str) -> None:
    if PROMTOOL is None:
        pytest.skip("no promtool is found: apt-get install prometheus")
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_board_is_in_the_language(tmp_path: Path) -> None:
    plain = [re.sub(r"\$__rate_interval", "5m", one) for one in EXPRESSIONS]
    rules = [{"record": f"board:panel{number}", "expr": one} for number, one in enumerate(plain)]
    (tmp_path / "board.yml").write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    run_promtool("check", "rules", str(tmp_path / "board.yml"))


# The day

DAY = 900
"""Minutes. promtool's clock begins at 0, where a space that was never fenced has its last fence, too."""
OWN = {"instance": "a:8000", "job": "xaqueue"}
ORDERS = OWN | {"queue": "orders"}
Values = list[float | None]


def steady(value: float, *changes: tuple[int, int, float | None]) -> Values:
    """changes: from which minute, up to which, and the value then; None: nothing is scraped."""
    found: Values = [value] * DAY
    for begin, end, other in changes:
        found[begin:end] = [other] * (end - begin)
    return found


def counted(rates: Iterable[tuple[int, int, float]], resets: Iterable[int] = ()) -> Values:
    """rates: from which minute, up to which, so many a minute."""
    a_minute, found, total = [0.0] * DAY, Values(), 0.0
    for begin, end, rate in rates:
        a_minute[begin:end] = [rate] * (end - begin)
    for minute, rate in enumerate(a_minute):
        total = 0.0 if minute in resets else total + rate
        found.append(total)
    return found


def rising(begin: int, end: int, a_minute: float) -> Values:
    return [(minute - begin) * a_minute if begin <= minute < end else 0.0 for minute in range(DAY)]


OWNERS = (300, 363)
"""A fence, and a failover: counters begin anew."""
FENCED: Values = [0.0 if minute < 300 else 300 * 60.0 for minute in range(DAY)]
SERIES: tuple[tuple[str, dict[str, str], Values], ...] = (
    ("up", OWN, steady(1, (300, 301, 0), (360, 363, 0))),
    ("xaqueue_up", OWN, steady(1, (300, 301, None), (360, 363, None), (400, 404, 0))),
    ("xaqueue_state", OWN | {"state": "ready"}, steady(1, (420, 430, 0))),
    ("xaqueue_state", OWN | {"state": "read-only"}, steady(0, (420, 430, 1))),
    ("xaqueue_state", OWN | {"state": "recovering"}, steady(0, (301, 303, 1))),
    ("xaqueue_last_fence_timestamp_seconds", OWN, FENCED),
    ("xaqueue_disk_low", OWN, steady(0, (200, 220, 1))),
    ("xaqueue_indoubt_oldest_seconds", OWN, rising(450, 480, 60)),
    ("xaqueue_indoubt_damaged_branches", OWN, steady(0, (500, 510, 1))),
    ("xaqueue_messages_enqueued_total", ORDERS, counted([(0, DAY, 600)], OWNERS)),
    ("xaqueue_messages_dequeued_total", ORDERS, counted([(0, 100, 600), (130, DAY, 600)], OWNERS)),
    ("xaqueue_messages_redelivered_total", ORDERS, counted([(0, DAY, 2), (100, 130, 300)], OWNERS)),
    ("xaqueue_messages_dead_lettered_total", ORDERS | {"reason": "tries"}, counted([(125, 126, 1)], OWNERS)),
    ("xaqueue_queue_oldest_seconds", ORDERS, rising(100, 131, 60)),
    ("xaqueue_queue_full", ORDERS, steady(1, (0, 205, None), (225, DAY, None))),
    ("xaqueue_queue_used_ratio", ORDERS, steady(0.5, (230, 250, 0.93))),
    ("xaqueue_sync_duration_seconds_bucket", OWN | {"le": "0.5"}, counted([(0, 550, 60), (570, DAY, 60)], OWNERS)),
    ("xaqueue_sync_duration_seconds_bucket", OWN | {"le": "2.5"}, counted([(0, DAY, 60)], OWNERS)),
    ("xaqueue_sync_duration_seconds_bucket", OWN | {"le": "+Inf"}, counted([(0, DAY, 60)], OWNERS)),
    ("xaqueue_replica_connected", OWN, steady(1, (600, 610, 0), (360, 363, None))),
    ("xaqueue_replica_lag_bytes", OWN, steady(4096)),
    ("xaqueue_replica_lag_seconds", OWN, steady(0.2)),
    ("xaqueue_stream_lag_messages", ORDERS | {"stream": "lake"}, steady(50, (650, 690, 200_000))),
    ("node_textfile_mtime_seconds", {"file": "/var/lib/node/xaqueue.prom", "instance": "a:9100"},
     [min(minute, 700) * 60.0 if minute < 720 else minute * 60.0 for minute in range(DAY)]),
)  # fmt: skip
FIRES = {
    "XaqueueConsumerFails": [(108, 130)],
    "XaqueueQueueOld": [(121, 130)],
    "XaqueueDeadLetters": [(126, 134)],
    "XaqueueDiskLow": [(202, 219)],
    "XaqueueQueueStuck": [(211, 224)],
    "XaqueueQueueNearlyFull": [(235, 249)],
    "XaqueueFenced": [(300, 314)],
    "XaqueueDown": [(362, 362), (402, 403)],
    "XaqueueNotReady": [(425, 429)],
    "XaqueueInDoubt": [(461, 479)],
    "XaqueueInDoubtDamaged": [(500, 509)],
    "XaqueueSyncSlow": [(557, 568)],
    "XaqueueReplicaBehind": [(602, 609)],
    "XaqueueStreamBehind": [(665, 689)],
    "XaqueueTextFileOld": [(706, 719)],
}
"""From which minute and up to which each is there for sure."""
NEAR = 8
"""Minutes by which an alert may come earlier, or go later: a rate looks back."""


def expected(alert: str) -> list[dict[str, Any]]:
    lines = {"XaqueueTextFileOld": {"file": "/var/lib/node/xaqueue.prom", "instance": "a:9100"}}
    own = lines.get(alert, ORDERS if "queue }}" in RULES[alert]["annotations"]["summary"] else OWN)
    own = own | ({"stream": "lake"} if alert == "XaqueueStreamBehind" else {})
    own = own | ({"reason": "tries"} if alert == "XaqueueDeadLetters" else {})
    own = own | ({"state": "read-only"} if alert == "XaqueueNotReady" else {})
    own = {"instance": "a:8000"} if alert == "XaqueueSyncSlow" else own
    summary = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: own[found[1]], RULES[alert]["annotations"]["summary"])
    return [{"exp_labels": own | RULES[alert]["labels"], "exp_annotations": {"summary": summary}}]


def test_on_a_day_each_alert_fires_at_its_event_and_nothing_else(tmp_path: Path) -> None:
    assert set(FIRES) == set(RULES)
    tests = []
    for alert, spans in FIRES.items():
        moments = {minute for begin, end in spans for minute in (begin, (begin + end) // 2, end)}
        near = {minute for begin, end in spans for minute in range(begin - NEAR, end + NEAR + 1)}
        others = {minute for each in FIRES.values() for begin, end in each for minute in (begin, end)} | {30, 899}
        tests += [(minute, alert, expected(alert)) for minute in sorted(moments)]
        tests += [(minute, alert, []) for minute in sorted(others - near)]
    series = [
        {
            "series": name + "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}",
            "values": " ".join("_" if value is None else f"{value:g}" for value in values),
        }
        for name, labels, values in SERIES
    ]
    cases = [{"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": found} for minute, alert, found in tests]
    day = {"interval": "1m", "input_series": series, "alert_rule_test": cases}
    document = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [day]}
    (tmp_path / "day.yml").write_text(json.dumps(document))
    run_promtool("test", "rules", str(tmp_path / "day.yml"))
