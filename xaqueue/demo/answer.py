"""The question, answered from the CSV without queue and Spark, and what a true answer must look like.

Delays are whole minutes, so sums are exact and two answers are equal or they are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from xaqueue.demo import records


class Delay(NamedTuple):
    """Of one carrier: flights, those that departed, and the sum of their departure delays in minutes."""

    flights: int
    departed: int
    minutes: int

    @property
    def mean(self) -> float:
        """Minutes; a carrier without departures has 0."""
        return self.minutes / self.departed if self.departed else 0.0


Answer = Mapping[str, Delay]
"""By carrier code."""


class Tally(NamedTuple):
    """What Spark counted of the messages it read."""

    messages: int
    message_ids: int
    """Distinct ones."""
    records: int
    """Distinct numbers of flights."""
    first: int
    last: int


class Finding(NamedTuple):
    """One thing that must hold, and whether it does."""

    claim: str
    holds: bool

    def __str__(self) -> str:
        return f"  {'ok   ' if self.holds else 'WRONG'}  {self.claim}"


def from_csv(flights: int) -> dict[str, Delay]:
    """The answer for the first ``flights`` lines of the CSV."""
    sums: dict[str, list[int]] = {}
    for row in records.rows(flights):
        found = sums.setdefault(row["carrier"], [0, 0, 0])
        found[0] += 1
        if row["dep_delay"] != "NA":
            found[1] += 1
            found[2] += int(row["dep_delay"])
    return {carrier: Delay(*found) for carrier, found in sums.items()}


def check(flights: int, tally: Tally, answer: Answer, expected: Answer, kills: int, least_kills: int) -> list[Finding]:
    """Every claim of the demo, held against what came out."""
    return [
        Finding(f"{tally.messages:,} messages were read, {flights:,} records went in", tally.messages == flights),
        Finding(f"{tally.message_ids:,} message ids are distinct", tally.message_ids == flights),
        Finding(
            f"{tally.records:,} flights are distinct, {tally.first:,} to {tally.last:,}: none lost, none doubled",
            (tally.records, tally.first, tally.last) == (flights, 0, flights - 1),
        ),
        Finding(f"the answer for {len(answer)} carriers equals the one from the CSV", dict(answer) == dict(expected)),
        Finding(f"the producer was killed in the middle of a commit {kills} times", kills >= least_kills),
    ]


def table(answer: Answer, names: Mapping[str, str]) -> list[str]:
    """The answer as lines of text, the longest delay first."""
    lines = [f"  {'carrier':<30} {'flights':>8} {'mean departure delay':>22}"]
    for code, delay in ranked(answer):
        lines.append(f"  {code}  {names.get(code, ''):<26} {delay.flights:>8,} {delay.mean:>18.2f} min")
    return lines


def ranked(answer: Answer) -> Sequence[tuple[str, Delay]]:
    """By mean delay, the longest first."""
    return sorted(answer.items(), key=lambda item: (-item[1].mean, item[0]))


def passed(findings: Iterable[Finding]) -> bool:
    """Whether all of it holds."""
    return all(finding.holds for finding in findings)
