"""A URL names a server, and an Endpoint is one that cannot be wrong. No I/O here, and no secret: those are in files.

    xaq+unix:///run/xaqueue.sock              a socket of this machine
    xaq://host:port                           TCP; an IPv6 address stands in brackets
    xaqs://host:port                          TCP with TLS
    xaq://host:port,other:port                the one of these that has the space; so with TLS

Options follow as a query: ``?token_file=/etc/xaqueue/token&timeout_s=30``. What a URL holds may be printed: a name or
password in front of the host is refused, and no error repeats what stood there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, unquote

from xaqueue.errors import InvalidArgument

UNIX_PATH_LIMIT_BYTES = 107
"""Of ``struct sockaddr_un``, without its closing zero."""
PORT_LIMIT = 65535
TIMEOUT_LIMIT_S = 999_999_999


class Scheme(Enum):
    """How a server is reached."""

    UNIX = "xaq+unix"
    TCP = "xaq"
    TLS = "xaqs"


EXAMPLES = "xaq+unix:///path/to/socket, xaq://host:port or xaqs://host:port"
OPTIONS: dict[Scheme, tuple[str, ...]] = {
    Scheme.UNIX: ("token_file", "timeout_s"),
    Scheme.TCP: ("token_file", "timeout_s"),
    Scheme.TLS: ("token_file", "timeout_s", "ca", "cert", "key"),
}
"""What the query of a URL may say."""
MEMORY = "xaq+memory"
"""No scheme of a server: a space in the memory of one process, for tests."""

_URL = re.compile(r"(?P<scheme>[^:/?#]*)://(?P<place>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?P<rest>.*)", re.S)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9.])?")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,3})?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

OPEN_STRING = 'datadir="DIR"[,qspace="NAME"]'
_PARAMETER = re.compile(r"""\s*([a-z]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^,"']*?))\s*(?:,|$)""")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens, and what a client needs to be let in. Raises InvalidArgument."""

    scheme: Scheme
    path: str = ""
    """Of a Unix socket, absolute."""
    host: str = ""
    """A name or an address; of IPv6 without brackets."""
    port: int = 0
    token_file: str | None = None
    """Holds the token that the server is shown."""
    timeout_s: float | None = None
    """How long an answer may take, beside what its request itself may wait."""
    ca: str | None = None
    """Certificates of who may have signed the server's; without it, those that the system trusts."""
    cert: str | None = None
    """The client's own certificate, and those between it and its authority."""
    key: str | None = None
    """Of ``cert``; without it, in the same file."""
    others: tuple[tuple[str, int], ...] = ()
    """Hosts and ports of servers that have the same space when this one has it not."""

    def __post_init__(self) -> None:
        if self.scheme is Scheme.UNIX:
            self._check_path()
        else:
            self._check_place()
        for host, port in self.others:
            replace(self, host=host, port=port, others=())
        for name in ("token_file", "timeout_s", "ca", "cert", "key"):
            if getattr(self, name) is not None:
                self._check_option(name)
        if self.key is not None and self.cert is None:
            raise InvalidArgument("key= without cert=: name the file with the certificate that the key belongs to")

    def _check_path(self) -> None:
        if self.host or self.port or self.others:
            raise InvalidArgument(f"{self.scheme.value}:// names a path and no host: write xaq+unix:///path/to/socket")
        if not self.path.startswith("/") or self.path.endswith("/"):
            raise InvalidArgument(
                f"socket path {self.path!r} is refused: write an absolute path, xaq+unix:///path/to/socket"
            )
        _check_clean("socket path", self.path)
        size = len(self.path.encode())
        if size > UNIX_PATH_LIMIT_BYTES:
            raise InvalidArgument(
                f"a socket path of {size} bytes is over the system's limit of {UNIX_PATH_LIMIT_BYTES}: use a shorter "
                f"path, like /run/xaqueue.sock"
            )

    def _check_place(self) -> None:
        if self.path:
            raise InvalidArgument(f"{self.scheme.value}:// names a host and no path: write xaq://host:port")
        if not (is_address(self.host) if ":" in self.host else _HOST.fullmatch(self.host)):
            raise InvalidArgument(f"host {self.host!r} is refused: a name or an address is wanted, IPv6 in brackets")
        if type(self.port) is not int or not 1 <= self.port <= PORT_LIMIT:
            raise InvalidArgument(f"port {self.port!r} is refused: a number from 1 to {PORT_LIMIT} is wanted")

    def _check_option(self, name: str) -> None:
        value = getattr(self, name)
        if name not in OPTIONS[self.scheme]:
            raise InvalidArgument(
                f"{self.scheme.value}:// does not take {name}=; it takes {', '.join(OPTIONS[self.scheme])}"
            )
        if name != "timeout_s":
            if not isinstance(value, str) or not value:
                raise InvalidArgument(f"{name}= is empty: the name of a file is wanted")
            _check_clean(f"{name}=", value)
        elif type(value) not in (int, float) or not 0 < value <= TIMEOUT_LIMIT_S:
            raise InvalidArgument(f"timeout_s={value!r} is refused: seconds above 0 are wanted")

    def __str__(self) -> str:
        """The URL, with its options; ``parse`` makes the same endpoint of it, its timeout to the millisecond."""
        if self.scheme is Scheme.UNIX:
            place = quote(self.path, safe="/")
        else:
            place = ",".join(_place_of(host, port) for host, port in self.places)
        given = [(name, getattr(self, name)) for name in OPTIONS[self.scheme]]
        query = "&".join(f"{name}={_quoted(value)}" for name, value in given if value is not None)
        return f"{self.scheme.value}://{place}" + (f"?{query}" if query else "")

    @property
    def is_loopback(self) -> bool:
        """Whether it can only be reached from this machine."""
        return self.scheme is Scheme.UNIX or all(is_loopback(host) for host, _ in self.places)

    @property
    def each(self) -> tuple[Endpoint, ...]:
        """One for each place."""
        if not self.others:
            return (self,)
        return tuple(replace(self, host=host, port=port, others=()) for host, port in self.places)

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Hosts and ports, in the order in which they are tried."""
        return ((self.host, self.port), *self.others)


def is_url(text: str) -> bool:
    """Whether a text is meant as a URL, right or wrong, and not as a directory."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/?/", text) is not None


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, as far as its name or address says so."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse(text: str) -> Endpoint:
    """The Endpoint that a URL names. Raises InvalidArgument, which never repeats a name, password or value."""
    match = _URL.fullmatch(text)
    if match is None:
        raise InvalidArgument(f"this is no URL of a server: write {EXAMPLES}")
    if match["scheme"] == MEMORY:
        raise InvalidArgument(
            "a space in memory is its own process's, by xaqueue.connect: for anything else have the space in a "
            "directory, served by `xaqueue serve` or the pytest fixture queue_server"
        )
    try:
        scheme = Scheme(match["scheme"])
    except ValueError:
        raise InvalidArgument(f"a server's URL begins with {', '.join(f'{s.value}://' for s in Scheme)}") from None
    place, path = match["place"], match["path"]
    if "@" in place:
        raise InvalidArgument(
            "a name or password in a URL is refused, since URLs are printed: put the token into a file that only you "
            "can read, and add ?token_file=/path/to/it"
        )
    if match["rest"]:
        raise InvalidArgument("a '#' in a server's URL is refused: write %23 where it belongs to a file's name")
    options = _options(scheme, match["query"] or "")
    if scheme is Scheme.UNIX:
        if place:
            raise InvalidArgument("xaq+unix:// takes an absolute path, which makes three slashes: xaq+unix:///run/...")
        return Endpoint(scheme, path=_unquoted("socket path", path), **options)
    if path not in ("", "/"):
        raise InvalidArgument(f"{scheme.value}:// takes no path: write {scheme.value}://host:port")
    (host, port), *others = map(host_and_port, place.split(","))
    return Endpoint(scheme, host=host, port=port, others=tuple(others), **options)


def parse_open_string(text: str) -> tuple[str, str | None]:
    """Directory and space name (None where it is not given). Raises InvalidArgument that shows the grammar.

    It names a space as XA switches do: parameters are comma separated, values in single or double quotes or in none; a
    plain path is no open string and means itself. Source: Enduro/X, ``NDRX_XA_OPEN_STR`` of its disk queue.
    """
    if not re.match(r"\s*(datadir|qspace)\s*=", text):
        return text, None
    given: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _PARAMETER.match(text, position)
        if match is None or match[1] not in ("datadir", "qspace") or match[1] in given:
            raise InvalidArgument(f"open string {text!r} is refused at {text[position:]!r}: {OPEN_STRING}")
        given[match[1]] = next(value for value in match.groups()[1:] if value is not None)
        position = match.end()
    if not given.get("datadir") or given.get("qspace") == "":
        raise InvalidArgument(f"open string {text!r} is refused: {OPEN_STRING}")
    return given["datadir"], given.get("qspace")


def endurox_flags(text: str) -> str | None:
    """The sync flags in ``NDRX_XA_FLAGS``, if any; what else stands there is for Enduro/X's transaction manager."""
    words = (word.strip().upper() for word in text.split(";"))
    return ";".join(word for word in words if word in ("FSYNC", "FDATASYNC", "DSYNC")) or None


def host_and_port(text: str) -> tuple[str, int]:
    """The two halves of ``host:port``, an IPv6 address in brackets. Raises InvalidArgument."""
    match = re.fullmatch(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]{1,5})", text)
    if match is None:
        bare = text.count(":") > 1 and "[" not in text
        raise InvalidArgument(
            f"{text!r} is no host and port: write host:port" + (", an IPv6 address as [::1]:port" if bare else "")
        )
    if int(match["port"]) > PORT_LIMIT:
        raise InvalidArgument(f"port {match['port']} is refused: a number up to {PORT_LIMIT} is wanted")
    if match["six"] is None:
        return match["host"], int(match["port"])
    host = unquote(match["six"])
    if ":" not in host:
        raise InvalidArgument(f"[{host}] is no IPv6 address: only these stand in brackets")
    return host, int(match["port"])


def _options(scheme: Scheme, query: str) -> dict[str, Any]:
    """The options of a query. An error names the option, never what it was set to."""
    found: dict[str, Any] = {}
    for part in query.split("&") if query else []:
        name, equals, value = part.partition("=")
        if name not in OPTIONS[scheme]:
            if name in ("token", "password"):
                raise InvalidArgument(f"{name}= in a URL is refused, since URLs are printed: use token_file=")
            which = f"{name!r}" if re.fullmatch(r"[a-z_]{1,20}", name) and equals else "this"
            raise InvalidArgument(
                f"{scheme.value}:// does not take {which} as an option; it takes {', '.join(OPTIONS[scheme])}"
            )
        if name in found:
            raise InvalidArgument(f"{name}= is given twice")
        found[name] = _seconds(name, value) if name == "timeout_s" else _unquoted(f"{name}=", value)
    return found


def _seconds(name: str, value: str) -> float:
    if not _SECONDS.fullmatch(value):
        raise InvalidArgument(f"{name}= is refused: seconds above 0 are wanted, like 30 or 2.5")
    return float(value)


def _unquoted(what: str, value: str) -> str:
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgument(f"{what} is refused: its %-escapes are no UTF-8") from None


def _place_of(host: str, port: int) -> str:
    return f"[{quote(host, safe=':')}]:{port}" if ":" in host else f"{host}:{port}"


def _quoted(value: str | float) -> str:
    if isinstance(value, str):
        return quote(value, safe="/")
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _check_clean(what: str, value: str) -> None:
    if _CONTROL.search(value):
        raise InvalidArgument(f"{what} is refused: it has a control character in it")
