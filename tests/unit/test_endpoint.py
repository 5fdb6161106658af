"""A server's URL is read whole or refused, says what is wrong, and never repeats a secret that stood in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xaqueue.endpoint import OPTIONS, UNIX_PATH_LIMIT_BYTES, Endpoint, Scheme, host_and_port, is_url, parse
from xaqueue.errors import InvalidArgument

SECRET = "s3cr3t-and-nobody-elses"


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("xaq+unix:///run/x.sock", Endpoint(Scheme.UNIX, path="/run/x.sock")),
        ("xaq+unix:///run/a%20b/x.sock", Endpoint(Scheme.UNIX, path="/run/a b/x.sock")),
        ("xaq+unix:///x?token_file=/t", Endpoint(Scheme.UNIX, path="/x", token_file="/t")),
        ("xaq://localhost:7701", Endpoint(Scheme.TCP, host="localhost", port=7701)),
        ("xaq://localhost:7701/", Endpoint(Scheme.TCP, host="localhost", port=7701)),
        ("xaq://[::1]:7701", Endpoint(Scheme.TCP, host="::1", port=7701)),
        ("xaq://[fe80::1%25eth0]:7701", Endpoint(Scheme.TCP, host="fe80::1%eth0", port=7701)),
        (
            "xaq://a:7000,[::1]:7001,b:7002?timeout_s=5",
            Endpoint(Scheme.TCP, host="a", port=7000, others=(("::1", 7001), ("b", 7002)), timeout_s=5.0),
        ),
        ("xaqs://a:1,b:2", Endpoint(Scheme.TLS, host="a", port=1, others=(("b", 2),))),
        ("xaq://10.0.0.1:1?timeout_s=2.5", Endpoint(Scheme.TCP, host="10.0.0.1", port=1, timeout_s=2.5)),
        (
            "xaqs://queue.example:7702?ca=/c/ca.pem&cert=/c/me.pem&key=/c/me%26.key&token_file=t&timeout_s=30",
            Endpoint(
                Scheme.TLS,
                host="queue.example",
                port=7702,
                ca="/c/ca.pem",
                cert="/c/me.pem",
                key="/c/me&.key",
                token_file="t",
                timeout_s=30.0,
            ),
        ),
    ],
)
def test_a_url_is_read(url: str, endpoint: Endpoint) -> None:
    assert parse(url) == endpoint
    assert parse(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "no URL of a server: write xaq"),
        ("/data/orders", "no URL of a server"),
        ("http://localhost:1", r"begins with xaq\+unix://, xaq://, xaqs://"),
        ("XAQ://localhost:1", "begins with"),
        ("xaq+unix://", "absolute path"),
        ("xaq://a:1,", "'' is no host and port"),
        ("xaq://a:1,b", "'b' is no host and port"),
        ("xaq://a:1,b:0", "port 0 is refused"),
        ("xaq://a:1,b-:1", "host 'b-' is refused"),
        ("xaq+unix://run/x", "three slashes"),
        ("xaq+unix:///", "absolute path"),
        ("xaq+unix:///run/", "absolute path"),
        ("xaq+unix:///a%00b", "control character"),
        ("xaq+unix:///a%ffb", "no UTF-8"),
        (f"xaq+unix:///{'a' * UNIX_PATH_LIMIT_BYTES}", f"over the system's limit of {UNIX_PATH_LIMIT_BYTES}"),
        ("xaq+unix:///a?ca=/x", r"xaq\+unix:// does not take 'ca' as an option; it takes token_file, timeout_s"),
        ("xaq://localhost", "write host:port"),
        ("xaq://localhost:", "write host:port"),
        ("xaq://localhost:x", "write host:port"),
        ("xaq://:7701", "host '' is refused"),
        ("xaq://localhost:0", "port 0 is refused: a number from 1 to 65535"),
        ("xaq://localhost:65536", "port 65536"),
        ("xaq://::1:7701", r"an IPv6 address as \[::1\]:port"),
        ("xaq://[::1]", "write host:port"),
        ("xaq://[localhost]:1", "no IPv6 address"),
        ("xaq://[:::1]:1", "host ':::1' is refused"),
        ("xaq://a b:1", "host 'a b' is refused"),
        ("xaq://localhost:1/space", "takes no path"),
        ("xaq://localhost:1?ca=/x", "xaq:// does not take 'ca'"),
        ("xaqs://localhost:1?timeout_s=0", "seconds above 0"),
        ("xaqs://localhost:1?timeout_s=-1", "seconds above 0"),
        ("xaqs://localhost:1?timeout_s=inf", "seconds above 0"),
        ("xaqs://localhost:1?timeout_s=1&timeout_s=1", "given twice"),
        ("xaqs://localhost:1?ca=", "ca= is empty"),
        ("xaqs://localhost:1?key=/k", "key= without cert="),
        ("xaqs://localhost:1#x", "'#'"),
        ("xaqs://localhost:1?", None),
    ],
)
def test_a_refusal_says_what_is_wanted(url: str, complaint: str | None) -> None:
    if complaint is None:
        parse(url)
        return
    with pytest.raises(InvalidArgument, match=complaint):
        parse(url)


@pytest.mark.parametrize(
    "url",
    [
        f"xaqs://me:{SECRET}@localhost:1",
        f"xaqs://{SECRET}@localhost:1",
        f"xaq://localhost:1?token={SECRET}",
        f"xaq://localhost:1?password={SECRET}",
        f"xaq://localhost:1?{SECRET}",
        f"xaq://localhost:1?{SECRET}=1",
        f"xaq://localhost:1?timeout_s={SECRET}",
        f"xaq://localhost:1?token_file={SECRET}%00",
        f"xaq://localhost:1#{SECRET}",
        f"http://me:{SECRET}@localhost:1",
        f"{SECRET}://localhost:1",
    ],
)
def test_a_refusal_repeats_no_secret(url: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse(url)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_a_password_is_answered_with_what_to_do() -> None:
    with pytest.raises(InvalidArgument, match="token_file="):
        parse(f"xaqs://me:{SECRET}@localhost:1")


NAMES = st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=["Cs"]), min_size=1)
SECONDS = st.integers(1, 10**9).map(lambda number: number / 1000)


@given(
    host=st.sampled_from(["localhost", "a-b.example", "10.1.2.3", "::1", "fe80::1%eth0", "2001:db8::2"]),
    port=st.integers(1, 65535),
    options=st.fixed_dictionaries({}, optional={"token_file": NAMES, "ca": NAMES, "cert": NAMES, "timeout_s": SECONDS}),
)
def test_what_is_formatted_is_read_back(host: str, port: int, options: dict[str, str | float]) -> None:
    endpoint = Endpoint(Scheme.TLS, host=host, port=port, **options)  # type: ignore[arg-type]
    assert parse(str(endpoint)) == endpoint


@given(path=NAMES)
def test_a_socket_path_is_read_back(path: str) -> None:
    path = "/" + path.rstrip("/")
    if path != "/" and len(path.encode()) <= UNIX_PATH_LIMIT_BYTES:
        endpoint = Endpoint(Scheme.UNIX, path=path)
        assert parse(str(endpoint)) == endpoint


@given(st.text(alphabet="xaqsunix+:/[]@?&=%#.1 \n", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        endpoint = parse(text)
    except InvalidArgument:
        return
    assert parse(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"scheme": Scheme.UNIX, "path": "/x", "host": "h"}, "names a path and no host"),
        ({"scheme": Scheme.TCP, "path": "/x", "host": "h", "port": 1}, "names a host and no path"),
        ({"scheme": Scheme.TCP, "host": "h", "port": True}, "port True"),
        ({"scheme": Scheme.TCP, "host": "h", "port": 1, "timeout_s": float("nan")}, "timeout_s=nan"),
        ({"scheme": Scheme.TCP, "host": "h", "port": 1, "cert": "/x"}, "does not take cert="),
    ],
)
def test_an_endpoint_cannot_be_wrong(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        Endpoint(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("xaq+unix:///x", True),
        ("xaq://localhost:1", True),
        ("xaq://127.0.0.53:1", True),
        ("xaq://[::1]:1", True),
        ("xaq://0.0.0.0:1", False),
        ("xaq://[::]:1", False),
        ("xaq://localhost.example:1", False),
    ],
)
def test_what_only_this_machine_can_reach(url: str, loopback: bool) -> None:
    assert parse(url).is_loopback is loopback


@pytest.mark.parametrize(
    ("text", "is_one"), [("xaq://h:1", True), ("xaq:/x", True), ("http://h", True), ("data/x", False), ("a:b", False)]
)
def test_a_url_is_told_from_a_directory(text: str, is_one: bool) -> None:
    assert is_url(text) is is_one


def test_a_place_to_listen_is_read() -> None:
    assert host_and_port("[::]:7701") == ("::", 7701)
    assert host_and_port("0.0.0.0:7701") == ("0.0.0.0", 7701)


def test_every_scheme_has_its_options() -> None:
    assert set(OPTIONS) == set(Scheme)


def test_each_place_of_several() -> None:
    assert [str(one) for one in parse("xaqs://a:1,[::1]:2?ca=/c").each] == ["xaqs://a:1?ca=/c", "xaqs://[::1]:2?ca=/c"]
    one = parse("xaq://a:1")
    assert one.each == (one,)
    assert parse("xaq://127.0.0.1:1,localhost:2").is_loopback
    assert not parse("xaq://127.0.0.1:1,b:2").is_loopback
