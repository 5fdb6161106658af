"""Authorities and certificates for tests, made in memory and written as a server or client finds them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificate:
    """Files of one certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates; its own is in ``ca``."""

    def __init__(self, directory: Path, name: str) -> None:
        self._made = trustme.CA()
        self._directory = directory
        self.name = name
        self.ca = directory / f"{name}-ca.pem"
        self._made.cert_pem.write_to_path(self.ca)

    def issue(self, *names: str, common_name: str | None = None) -> Certificate:
        issued = self._made.issue_cert(*names, common_name=common_name)
        stem = f"{self.name}-{common_name or names[0]}"
        made = Certificate(self._directory / f"{stem}.pem", self._directory / f"{stem}.key")
        made.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        private(made.key, issued.private_key_pem.bytes())
        return made


def private(path: Path, content: bytes) -> Path:
    """A file that only its owner can read."""
    path.touch(0o600)
    path.write_bytes(content)
    return path
