"""What a side shows of itself, and TLS 1.2 or later: a file that cannot be used is named with what is wrong with it.

Tokens and keys come from files that nobody else can read; what is in them is in no error.

A client always checks the server's certificate and name. A server that is given a client authority takes nobody
without a certificate of it; the names in that certificate are what roles know the client by.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xaqueue.access import token_name
from xaqueue.errors import InvalidArgument

SECRET_LIMIT_BYTES = 1024 * 1024
CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
KEY = b"PRIVATE KEY-----"
ENCRYPTED = (b"BEGIN ENCRYPTED PRIVATE KEY", b"Proc-Type: 4,ENCRYPTED")
NAMES = ("DNS", "email", "URI")
"""Kinds of alternative names by which roles may know a client, beside its common name."""


def server_context(cert: str, key: str | None = None, client_ca: str | None = None) -> ssl.SSLContext:
    """For a server with this certificate (PEM, those between it and its authority behind it). Raises InvalidArgument.

    key: without it, in the same file. client_ca: whoever has no certificate signed by one of these is refused.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load_own(context, cert, key)
    if client_ca is not None:
        _load_authority(context, "client CA file", client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca: str | None = None, cert: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """For a client. ca: who may have signed the server's certificate; without it, whom the system trusts.

    cert, key: the client's own, where the server wants one. Raises InvalidArgument.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is not None:
        _load_authority(context, "CA file", ca)
    else:
        context.load_default_certs()
    if cert is not None:
        _load_own(context, cert, key)
    return context


def names_in(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """The members of roles that a verified certificate makes its holder, of ``getpeercert()``."""
    subject = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    others = [value for kind, value in certificate.get("subjectAltName", ()) if kind in NAMES]
    return tuple(dict.fromkeys(f"cert:{name}" for name in (*subject, *others)))


def explain(error: OSError, other: str) -> str:
    """What went wrong with TLS, and what to do about it. other: "server" or "client", the side that is not this one."""
    if isinstance(error, ssl.SSLCertVerificationError):
        where = "the URL's host and ca=" if other == "server" else "--client-ca"
        return f"the {other}'s certificate is refused: {error.verify_message.rstrip('.')}; check it, and {where}"
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    for part, explained in _REASONS.items():
        if part in reason:
            return explained.format(other=other)
    return f"TLS failed: {reason.replace('_', ' ').lower() or error.strerror or type(error).__name__}"


def is_refusal(error: BaseException | None) -> bool:
    """Whether TLS failed for a reason that trying again does not mend: a certificate, a version, a peer without TLS."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, _INTERRUPTED)


_INTERRUPTED = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_REASONS = {
    "CERTIFICATE_REQUIRED": "the {other} wants a certificate: give cert= and key= in the URL",
    "DID_NOT_RETURN_A_CERTIFICATE": "the {other} showed no certificate: it needs cert= and key= in its URL",
    "ALERT_UNKNOWN_CA": "the {other} does not trust who signed the certificate: check its CA file, and the certificate",
    "ALERT_CERTIFICATE_EXPIRED": "the {other} refuses the certificate: it has expired",
    "ALERT_CERTIFICATE_REVOKED": "the {other} refuses the certificate: it was revoked",
    "ALERT_BAD_CERTIFICATE": "the {other} refuses the certificate: check what it is for, and who signed it",
    "ALERT_UNSUPPORTED_CERTIFICATE": "the {other} refuses the certificate: it is not for this side of TLS",
    "ALERT_HANDSHAKE_FAILURE": "the {other} refuses the handshake: it may want a certificate (cert= and key=)",
    "PROTOCOL_VERSION": "the {other} does not speak TLS 1.2 or later",
    "UNSUPPORTED_PROTOCOL": "the {other} does not speak TLS 1.2 or later",
    "WRONG_VERSION_NUMBER": "the {other} does not speak TLS here: xaqs:// is for ports with TLS, xaq:// for others",
    "RECORD_LAYER_FAILURE": "the {other} does not speak TLS here: xaqs:// is for ports with TLS, xaq:// for others",
    "HTTP_REQUEST": "the {other} speaks HTTP: this is no port for it",
    "UNEXPECTED_EOF": "the {other} hung up in the middle: see its log, and whether it speaks TLS there (xaq:// is for "
    "ports without)",
}
"""Parts of OpenSSL's reasons."""


def _load_own(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    key_file = key or cert
    _check_content("certificate file", cert, _read("certificate file", cert), CERTIFICATE)
    found = read_secret("key file", key_file)
    _check_content("key file", key_file, found, KEY)
    if any(mark in found for mark in ENCRYPTED):
        raise InvalidArgument(
            f"key file {key_file} is encrypted: use a key without a passphrase, in a file that only you can read"
        )
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        why = f"{cert} and {key_file} cannot be used: {_reason_of(error)}"
        if "key values mismatch" in _reason_of(error):
            why = f"the key in {key_file} does not belong to the first certificate in {cert}"
        raise InvalidArgument(why) from None


def _load_authority(context: ssl.SSLContext, what: str, path: str) -> None:
    content = _read(what, path)
    _check_content(what, path, content, CERTIFICATE)
    try:
        context.load_verify_locations(cadata=content.decode("ascii", errors="ignore"))
    except ssl.SSLError as error:
        raise InvalidArgument(f"{what} {path} has a certificate that cannot be read: {_reason_of(error)}") from None


def _reason_of(error: OSError) -> str:
    if not isinstance(error, ssl.SSLError):
        return str(error.strerror)
    return (error.reason or str(error)).replace("_", " ").lower()


def _read(what: str, path: str | os.PathLike[str], *, private: bool = False) -> bytes:
    """private: it is a secret, which is not large. Raises InvalidArgument."""
    try:
        with Path(path).open("rb") as file:
            if private:
                _check_private(what, path, os.fstat(file.fileno()))
            return file.read(SECRET_LIMIT_BYTES + 1 if private else -1)
    except OSError as error:
        raise InvalidArgument(f"{what} {os.fspath(path)} cannot be read: {error.strerror}") from None


def _check_content(what: str, path: str, content: bytes, wanted: bytes) -> None:
    if wanted not in content:
        kind = "certificate" if wanted is CERTIFICATE else "private key"
        raise InvalidArgument(f"{what} {path} holds no {kind} in PEM form (-----BEGIN ...): name the right file")


# Secrets


def read_secret(what: str, path: str | os.PathLike[str]) -> bytes:
    """The content of a file that only its owner can read, or only root and one group. Raises InvalidArgument."""
    content = _read(what, path, private=True)
    if len(content) > SECRET_LIMIT_BYTES:
        raise InvalidArgument(
            f"{what} {os.fspath(path)} is larger than {SECRET_LIMIT_BYTES:,} bytes: name another file"
        )
    return content


def read_token(path: str | os.PathLike[str]) -> str:
    """The token in a file, alone in its first line. Raises InvalidArgument."""
    token = read_secret("token file", path).decode("ascii", errors="replace").strip()
    try:
        token_name(token)
    except InvalidArgument as error:
        raise InvalidArgument(f"token file {os.fspath(path)}: {error}") from None
    return token


def _check_private(what: str, path: str | os.PathLike[str], found: os.stat_result) -> None:
    """As PostgreSQL has it for keys: root's may be read by a group, everybody else's by its owner alone."""
    others = 0o027 if found.st_uid == 0 else 0o077
    if stat.S_ISREG(found.st_mode) and found.st_mode & others:
        raise InvalidArgument(
            f"{what} {os.fspath(path)} can be read or changed by other users (mode {stat.S_IMODE(found.st_mode):04o}): "
            f"chmod 600 {os.fspath(path)}"
        )
