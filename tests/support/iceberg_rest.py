"""A REST catalogue of Iceberg's, over one in SQLite, whose answers can go astray."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from pyiceberg.catalog.rest import TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, CommitTableResponse, Table


class RestCatalog(ThreadingHTTPServer):
    """lost: of so many commits the answers are; what is said instead: a status, or 0 for a cut connection."""

    daemon_threads = True

    def __init__(self, place: Path) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.tables = SqlCatalog("rest", uri=f"sqlite:///{place}/rest.db", warehouse=f"file://{place}/warehouse")
        self.lock = threading.Lock()
        self.lost: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Requests(BaseHTTPRequestHandler):
    server: RestCatalog

    def do_GET(self) -> None:
        with self.server.lock:
            if self.path.startswith("/v1/config"):
                self._say(200, '{"defaults": {}, "overrides": {}}')
                return
            try:
                self._say(200, whole(self.server.tables.load_table(name_in(self.path))))
            except NoSuchTableError as error:
                self._refuse(404, error)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            try:
                self._post(body)
            except (NamespaceAlreadyExistsError, TableAlreadyExistsError, CommitFailedException) as error:
                self._refuse(409, error)

    def _post(self, body: bytes) -> None:
        tables = self.server.tables
        if self.path.endswith("/namespaces"):
            tables.create_namespace(tuple(json.loads(body)["namespace"]))
            self._say(200, '{"namespace": [], "properties": {}}')
        elif self.path.endswith("/tables"):
            asked = json.loads(body)
            name, schema = (name_in(self.path + "/")[0], asked["name"]), Schema.model_validate(asked["schema"])
            self._say(200, whole(tables.create_table(name, schema=schema, properties=asked["properties"])))
        else:
            commit = CommitTableRequest.model_validate_json(body)
            table = tables.load_table(name_in(self.path))
            done = tables.commit_table(table, commit.requirements, commit.updates)
            said = CommitTableResponse.model_validate(
                {"metadata": done.metadata, "metadata-location": done.metadata_location}
            )
            lost = self.server.lost.pop() if self.server.lost else None
            if lost is None:
                self._say(200, said.model_dump_json())
            elif lost:
                self._refuse(lost, CommitFailedException("the answer was lost"))
            else:
                self.close_connection = True

    def _refuse(self, status: int, error: Exception) -> None:
        self._say(status, json.dumps({"error": {"message": str(error), "type": type(error).__name__, "code": status}}))

    def _say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


def name_in(path: str) -> tuple[str, str]:
    """Of /v1/namespaces/shop/tables/orders."""
    parts = path.partition("?")[0].split("/")
    return parts[3], parts[5]


def whole(table: Table) -> str:
    return TableResponse.model_validate(
        {"metadata": table.metadata, "metadata-location": table.metadata_location}
    ).model_dump_json()


@contextmanager
def rest_catalog(place: Path) -> Iterator[RestCatalog]:
    with RestCatalog(place) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            server.tables.close()
