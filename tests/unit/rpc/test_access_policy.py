"""The [access] table, by brute force: every method with and without each right, and nothing that slips between."""

from __future__ import annotations

from contextlib import nullcontext
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xaqueue.access import NO_TABLE, ON_QUEUES, Identity, Policy, Right, Role, check_exposure, token_name
from xaqueue.core.model.definitions import parse
from xaqueue.errors import AccessDenied, InvalidArgument
from xaqueue.rpc.server.calls import METHODS
from xaqueue.xid import LOCAL_FORMAT_ID

TOKEN = "0123456789abcdef-a-token"
HASH = sha256(TOKEN.encode()).hexdigest()
WWW = Identity(("user:www", "user:33"))
LOCAL = [LOCAL_FORMAT_ID, b"0123456789abcdef", b""]
GLOBAL = [7, b"g", b"b"]

PARAMS: dict[str, list[Any]] = {
    "start": [GLOBAL],
    "end": [GLOBAL],
    "prepare": [GLOBAL],
    "commit": [GLOBAL],
    "rollback": [GLOBAL],
    "return": [GLOBAL],
    "explain": [GLOBAL, "why"],
    "forget": [GLOBAL],
    "outcome": [GLOBAL],
    "enqueue": ["orders", b""],
    "enqueue_many": ["orders", None, [b""]],
    "enqueue_to": [["orders"], b""],
    "publish": ["orders", b""],
    "dequeue": ["orders"],
    "dequeue_many": ["orders", 1],
    "move": ["orders", b"", "orders"],
    "receive": ["orders"],
    "settle": ["orders"],
    "extend": ["orders"],
    "accept": ["orders"],
    "remove": ["orders", b""],
    "restore": ["orders", bytes(16), {}, b""],
    "reserve": ["orders", "query#1", 0, 9],
    "consume": ["orders", "query#1", 9],
    "release": ["orders"],
    "browse": ["orders"],
    "depths": [["orders", "orders"]],
    "positions": [["orders", "orders"]],
    "span": ["orders", 0, 1],
    "span_sizes": ["orders", 0, 1],
    "span_before": ["orders", 0, 1],
    "span_kept": ["orders", 0, 1, ["body"]],
    "ranges": ["orders"],
    "tries": ["orders"],
    "indoubt_forgotten": [GLOBAL],
    "indoubt_bodies": ["orders", GLOBAL],
    "indoubt_decide": [GLOBAL, True, "me"],
    "indoubt_forget": [GLOBAL, "me"],
}
ENOUGH: dict[str, frozenset[Right] | None] = {
    **dict.fromkeys(
        ("hello", "echo", "status", "metrics", "close", "browse_next", "browse_end", "work", "mark", "cut")
    ),
    **dict.fromkeys(
        ("start", "end", "prepare", "commit", "harden", "rollback", "return", "explain", "deliver"),
        frozenset({Right.TRANSACT}),
    ),
    **dict.fromkeys(
        ("recover", "forget", "outcome", "carriers", "indoubt_list", "indoubt_next", "indoubt_forgotten"),
        frozenset({Right.TRANSACT, Right.RESOLVE}),
    ),
    "commit_all": frozenset({Right.TRANSACT}),
    "rollback_all": frozenset({Right.TRANSACT}),
    "decision": frozenset({Right.TRANSACT, Right.RESOLVE}),
    "enqueue": frozenset({Right.PRODUCE}),
    "enqueue_many": frozenset({Right.PRODUCE}),
    "enqueue_to": frozenset({Right.PRODUCE}),
    "publish": frozenset({Right.PRODUCE}),
    "dequeue": frozenset({Right.CONSUME}),
    "dequeue_many": frozenset({Right.CONSUME}),
    "reserve": frozenset({Right.CONSUME}),
    "consume": frozenset({Right.CONSUME}),
    "release": frozenset({Right.RESOLVE}),
    "release_carrier": frozenset({Right.RESOLVE}),
    "reservations": None,
    "move": frozenset({Right.CONSUME}),
    **dict.fromkeys(("receive", "settle", "extend", "accept"), frozenset({Right.CONSUME})),
    "remove": frozenset({Right.CONSUME}),
    "restore": frozenset({Right.PRODUCE}),
    **dict.fromkeys(
        ("browse", "positions", "span", "span_sizes", "span_before", "span_kept", "indoubt_bodies", "ranges", "tries"),
        frozenset({Right.BROWSE}),
    ),
    "depths": frozenset({Right.BROWSE, Right.RESOLVE}),
    "sessions": frozenset({Right.RESOLVE, Right.ADMIN}),
    "indoubt_decide": frozenset({Right.RESOLVE}),
    "indoubt_forget": frozenset({Right.RESOLVE}),
    "drain": frozenset({Right.ADMIN}),
    "define": frozenset({Right.ADMIN}),
    "undefine": frozenset({Right.ADMIN}),
    "snapshot": frozenset({Right.ADMIN}),
    "repair": frozenset({Right.ADMIN}),
    "replicate": frozenset({Right.ADMIN}),
    "replica_begin": frozenset({Right.ADMIN}),
    "replica_next": frozenset({Right.ADMIN}),
    "replica_end": frozenset({Right.ADMIN}),
    "replaced": frozenset({Right.ADMIN}),
}
"""Each of these is enough; None: to be a member of any role is."""


def role(*rights: Right, queues: tuple[str, ...] = ("orders",), members: tuple[str, ...] = ("user:www",)) -> Role:
    given: dict[str, Any] = {right.value: queues if right in ON_QUEUES else True for right in rights}
    return Role("shop", members, **given)


def is_allowed(policy: Policy, identity: Identity, method: str, params: list[Any] | None = None) -> bool:
    try:
        policy.rights_of(identity).check(
            method, METHODS[method].need, PARAMS.get(method, []) if params is None else params
        )
    except AccessDenied:
        return False
    return True


def test_every_method_of_the_server_has_a_row() -> None:
    assert set(METHODS) == set(ENOUGH)


@pytest.mark.parametrize("method", sorted(ENOUGH))
@pytest.mark.parametrize("right", Right)
def test_each_right_gives_its_methods_and_no_other(method: str, right: Right) -> None:
    enough = ENOUGH[method]
    assert is_allowed(Policy((role(right),)), WWW, method) is (enough is None or right in enough)


@pytest.mark.parametrize("method", sorted(ENOUGH))
def test_all_rights_but_those_that_are_enough_are_not(method: str) -> None:
    enough = ENOUGH[method]
    others = [right for right in Right if enough is None or right not in enough]
    assert is_allowed(Policy((role(*others),)), WWW, method) is (enough is None)


@pytest.mark.parametrize("method", sorted(ENOUGH))
def test_who_is_in_no_role_may_do_nothing(method: str) -> None:
    policy = Policy((role(*Right, members=("user:shop", f"token:{HASH}", "cert:www")),))
    for stranger in (Identity(), WWW, Identity(("cert:user:www",)), Identity(("user:shopkeeper",), trusted=True)):
        assert not is_allowed(policy, stranger, method)


@pytest.mark.parametrize("method", sorted(ENOUGH))
def test_the_owner_may_do_everything_whatever_the_table_says(method: str) -> None:
    for policy in (NO_TABLE, Policy(()), Policy((role(),))):
        assert is_allowed(policy, Identity(("user:x",), owner=True), method)


@pytest.mark.parametrize("method", sorted(ENOUGH))
def test_without_a_table_only_those_who_were_let_in_may_do_anything(method: str) -> None:
    assert is_allowed(NO_TABLE, Identity(trusted=True), method)
    assert not is_allowed(NO_TABLE, WWW, method)
    assert not is_allowed(NO_TABLE, Identity(), method)
    assert not is_allowed(Policy(()), Identity(trusted=True), method)


def test_roles_add_up() -> None:
    produce, consume = role(Right.PRODUCE), role(Right.CONSUME, members=("user:33",))
    policy = Policy((produce, consume, role(Right.BROWSE, members=("user:other",))))
    assert is_allowed(policy, WWW, "enqueue")
    assert is_allowed(policy, WWW, "dequeue")
    assert not is_allowed(policy, WWW, "browse")


@pytest.mark.parametrize("method", ["start", "end", "commit", "rollback", "return", "outcome"])
def test_a_local_transaction_needs_no_right_but_that_to_its_queues(method: str) -> None:
    policy = Policy((role(),))
    assert is_allowed(policy, WWW, method, [LOCAL, 0])
    assert not is_allowed(policy, WWW, method, [[LOCAL_FORMAT_ID + 1, *LOCAL[1:]]])


@pytest.mark.parametrize(
    "params", [[], [None], [LOCAL_FORMAT_ID], [[LOCAL_FORMAT_ID]], [[float(LOCAL_FORMAT_ID), b"", b""]]]
)
def test_what_is_no_xid_is_no_local_one(params: list[Any]) -> None:
    assert not is_allowed(Policy((role(),)), WWW, "start", params)


@pytest.mark.parametrize("method", ["prepare", "forget"])
def test_a_local_transaction_is_not_prepared_without_the_right(method: str) -> None:
    assert not is_allowed(Policy((role(),)), WWW, method, [LOCAL])


@pytest.mark.parametrize(
    ("patterns", "queue", "allowed"),
    [
        (("orders",), "orders", True),
        (("orders",), "orders.eu", False),
        (("orders",), "xorders", False),
        (("orders", "orders.*"), "orders.eu", True),
        (("orders.*",), "orders", False),
        (("*",), "anything", True),
        (("o?ders",), "orders", True),
        (("[ab]*",), "b1", True),
        (("[ab]*",), "c1", False),
        (("Orders",), "orders", False),
        (("a", "b"), "a|b", False),
        (("a",), "a\n", False),
        ((), "orders", False),
    ],
)
def test_queues_are_matched_as_file_names_are(patterns: tuple[str, ...], queue: str, allowed: bool) -> None:
    policy = Policy((role(Right.PRODUCE, queues=patterns),))
    assert is_allowed(policy, WWW, "enqueue", [queue, b""]) is allowed


def test_of_several_queues_each_needs_its_right() -> None:
    policy = Policy((role(Right.BROWSE),))
    assert is_allowed(policy, WWW, "depths", [["orders"]])
    assert not is_allowed(policy, WWW, "depths", [["orders", "secret"]])


@pytest.mark.parametrize("params", [[], [None], [b"orders"], [["orders", 1]], [{"orders": 1}]])
def test_a_call_that_names_no_queue_is_refused(params: list[Any]) -> None:
    with pytest.raises(InvalidArgument, match="the name of a queue is wanted"):
        Policy((role(*ON_QUEUES),)).rights_of(WWW).check("browse", METHODS["browse"].need, params)


def test_a_refusal_says_who_lacks_what_and_what_to_do() -> None:
    policy = Policy((role(Right.CONSUME),))
    with pytest.raises(AccessDenied, match=r"enqueue of queue 'orders' needs the right to produce.*user:www, user:33"):
        policy.rights_of(WWW).check("enqueue", METHODS["enqueue"].need, ["orders", b""])
    with pytest.raises(AccessDenied, match=r"prepare needs the right to transact.*transact = true in a role"):
        policy.rights_of(WWW).check("prepare", METHODS["prepare"].need, [GLOBAL])
    with pytest.raises(AccessDenied, match="access is denied to user:x: it is a member of no role"):
        policy.rights_of(Identity(("user:x",))).check("echo", METHODS["echo"].need, [])
    with pytest.raises(AccessDenied, match="denied to anonymous: show a token"):
        policy.rights_of(Identity()).check("echo", METHODS["echo"].need, [])
    with pytest.raises(AccessDenied, match=r"without an \[access\] table"):
        NO_TABLE.rights_of(WWW).check("echo", METHODS["echo"].need, [])


def test_a_token_is_known_by_its_hash() -> None:
    shown = Identity().with_token(TOKEN, trusted=False)
    assert shown.names == (f"token:{HASH}",)
    policy = Policy((role(Right.PRODUCE, members=(f"token:{HASH}",)),))
    assert is_allowed(policy, shown, "enqueue")
    assert not is_allowed(policy, Identity().with_token(TOKEN + "x", trusted=False), "enqueue")
    assert not is_allowed(policy, Identity((f"token:{HASH.upper()}",)), "enqueue")


def test_a_token_is_neither_printed_nor_is_its_whole_hash() -> None:
    shown = WWW.with_token(TOKEN, trusted=True)
    for text in (str(shown), repr(shown), repr([shown])):
        assert TOKEN not in text
        assert HASH not in text
        assert "user:www" in text


@pytest.mark.parametrize(
    "token", [None, 5, b"0123456789abcdef", "", "short", "with a space in it", "é" * 20, "a" * 1025]
)
def test_what_is_no_token_is_refused_and_not_repeated(token: object) -> None:
    with pytest.raises(InvalidArgument, match="this is no token") as refused:
        token_name(token)
    assert not token or str(token) not in str(refused.value)


# The table in queues.toml

TABLE = f"""
[access.roles.shop]
members = ["user:www", "token:{HASH}", "cert:shop.example"]
produce = ["orders", "orders.*"]
consume = ["replies"]
browse  = ["*"]
transact = true
resolve = false

[access.roles.operators]
members = ["user:ops"]
resolve = true
admin = true
"""


def test_the_table_is_read() -> None:
    policy = parse(TABLE).access
    assert policy == Policy(
        (
            Role(
                "shop",
                ("user:www", f"token:{HASH}", "cert:shop.example"),
                ("orders", "orders.*"),
                ("replies",),
                ("*",),
                transact=True,
            ),
            Role("operators", ("user:ops",), resolve=True, admin=True),
        )
    )
    assert policy.names_any("cert")
    assert not Policy(policy.roles[1:] if policy.roles else None).names_any("token", "cert")


def test_no_table_is_not_an_empty_one() -> None:
    assert parse("").access is NO_TABLE
    assert parse("[access]\n").access == Policy(())
    assert parse("[access.roles]\n").access == Policy(())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("access = 1", r"access = 1: a table \[access\]"),
        ("[access]\nrole = {}", r"\[access\] does not take 'role': did you mean 'roles'"),
        ("[access]\nroles = 1", r"a table \[access.roles\] is wanted"),
        ("[access]\nroles = {shop = 1}", r"\[access.roles.shop\] is no table"),
        ("[access.roles.shop]\nmember = []", r"\[access.roles.shop\] does not take 'member': did you mean 'members'"),
        ("[access.roles.shop]\nmembers = 'user:www'", "members is no list of strings"),
        ("[access.roles.shop]\nproduce = [1]", "produce is no list of strings"),
        ("[access.roles.shop]\ntransact = 1", "transact = 1: true or false"),
        ("[access.roles.shop]\nproduce = ['a/b']", "queues.toml: role 'shop': produce of 'a/b'"),
        ("[access.roles.shop]\nproduce = ['']", "produce of ''"),
        ("[access.roles.shop]\nmembers = ['www']", "user:NAME, token:SHA256 or cert:NAME"),
        ("[access.roles.shop]\nmembers = ['group:www']", "user:NAME, token:SHA256 or cert:NAME"),
        ("[access.roles.shop]\nmembers = ['user:']", "user: and the name or number"),
        ("[access.roles.shop]\nmembers = ['user:a b']", "user: and the name or number"),
        ("[access.roles.shop]\nmembers = ['cert:']", "cert: and a name"),
        (f"[access.roles.shop]\nmembers = ['token:{HASH[1:]}']", "64 hex digits"),
        (f"[access.roles.shop]\nmembers = ['token:{HASH.upper()}']", "64 hex digits"),
    ],
)
def test_a_table_that_cannot_be_taken_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        f"members = ['token:{TOKEN}']",
        f"members = ['{TOKEN}']",
        f"members = ['tokens:{TOKEN}']",
        f"members = ['user:x', 5, '{TOKEN}']",
        f"members = '{TOKEN}'",
    ],
)
def test_a_token_in_the_clear_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse(f"[access.roles.shop]\n{text}\n")
    assert TOKEN not in str(refused.value)


# Ports


@pytest.mark.parametrize("loopback", [True, False])
@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("insecure", [True, False])
def test_no_port_is_opened_by_accident(loopback: bool, tls: bool, known: bool, insecure: bool) -> None:
    safe = known and (tls or loopback)
    with nullcontext() if insecure or safe else pytest.raises(InvalidArgument, match="--insecure"):
        check_exposure("0.0.0.0:7701", loopback=loopback, tls=tls, known=known, insecure=insecure)


# Anything


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=8) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=6,
)


@given(method=st.sampled_from([*METHODS]), params=st.lists(VALUES, max_size=3))
def test_any_call_is_allowed_or_refused(method: str, params: list[Any]) -> None:
    try:
        Policy((role(Right.PRODUCE, queues=("o*",)),)).rights_of(WWW).check(method, METHODS[method].need, params)
    except (AccessDenied, InvalidArgument):
        return
    named = params[0] if params and isinstance(params[0], list) else params[:1]
    need = METHODS[method].need
    assert need.nothing or (need.queue and all(queue.startswith("o") for queue in named))
