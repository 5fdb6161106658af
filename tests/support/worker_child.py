"""The function that ``xaqueue work`` calls in test_kill_workers: a row in PostgreSQL, and one in five fails."""

from __future__ import annotations

import random
from typing import Any

import xaqueue

UNLUCKY = 0.2


class Unlucky(Exception):
    pass


def book(message: xaqueue.Message, tx: Any) -> None:
    group, number = message.body.split()
    tx["ledger"].execute("insert into effects (member, number) values (%s, %s)", (group.decode(), int(number)))
    if random.random() < UNLUCKY:
        raise Unlucky(message.body.decode())
