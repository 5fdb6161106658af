"""PostgreSQL with a table as the queue, in plain transactions: one sync each."""

from __future__ import annotations

from pathlib import Path

import psycopg

from bench.peers.peer import Client, Wanted
from bench.peers.postgres import PostgresClient, PostgresPeer


def open_peer(scratch: Path, wanted: Wanted) -> TablePeer:
    return TablePeer(scratch, wanted)


def connect(place: str) -> TableClient:
    return TableClient(psycopg.connect(place))


class TablePeer(PostgresPeer):
    name = "postgres-table"
    two_phase = False

    def connect(self) -> Client:
        return connect(self.place)


class TableClient(PostgresClient):
    def _begin(self) -> None:
        """With its first statement."""

    def _end(self) -> None:
        self._connection.commit()
