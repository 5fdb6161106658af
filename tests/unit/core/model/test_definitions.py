"""queues.toml is parsed whole or refused whole, and a refusal names the place and what it takes."""

from __future__ import annotations

import tomllib

import pytest

from xaqueue.access import Policy, Role
from xaqueue.core.model.block import BODY_LIMIT_BYTES
from xaqueue.core.model.definitions import (
    BLOCKS,
    Definitions,
    QueueDefinition,
    parse,
)
from xaqueue.core.model.options import suggestion
from xaqueue.core.model.order import Order
from xaqueue.core.storage.hardening import Hardening
from xaqueue.errors import InvalidArgument, UnknownQueue
from xaqueue.features.dedup.options import WINDOW_S
from xaqueue.features.defining.edits import options_of, with_queue, without_queue
from xaqueue.features.limits.limits import QueueLimits
from xaqueue.features.limits.options import limits_of
from xaqueue.features.retries.options import EXPIRY_QUEUE, FAILURE_QUEUE, policy_of
from xaqueue.features.retries.policy import RetryPolicy

WHOLE = """\
# limits
[space]
max_body_bytes = 1000
sync = "FSYNC"

[default]
order = "lifo"

[queues.orders]      # the shop
order = "priority"
description = "what the shop sends"

[queues.plain]
"""


def test_everything_that_it_takes() -> None:
    assert parse(WHOLE) == Definitions(
        {"orders": QueueDefinition(Order.PRIORITY, "what the shop sends"), "plain": QueueDefinition()},
        QueueDefinition(Order.LIFO),
        1000,
        Hardening("FSYNC", False),
    )


@pytest.mark.parametrize("said", ["one", "many"])
def test_a_queue_says_whether_many_messages_come_in_one_file(said: str) -> None:
    found = parse(f'[default]\nblocks = "{said}"\n[queues.q]\nblocks = "{said}"\n[queues.plain]\n')
    assert [found.find(name).blocks for name in ("q", "another", "plain")] == [said, said, BLOCKS]


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_file_defines_nothing(text: str) -> None:
    assert parse(text) == Definitions({}, None, BODY_LIMIT_BYTES, None)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[queues", "no TOML"),
        ("[queue.orders]", "does not take 'queue': did you mean 'queues'"),
        ("[limits]\n", "queues.toml: the top level does not take 'limits'. It takes space, default, queues, topics"),
        ("[space]\nmax_body = 1\n", r"\[space\] does not take 'max_body': did you mean 'max_body_bytes'"),
        ("[space]\nmax_body_bytes = 0\n", "max_body_bytes = 0: a number of bytes from 1"),
        ("[space]\nmax_body_bytes = '1'\n", "max_body_bytes = '1'"),
        ("[space]\nmax_body_bytes = true\n", "max_body_bytes = True"),
        ("[space]\nsync = 'SYNC'\n", "'SYNC' are refused"),
        ("[space]\nsync = 1\n", "sync = 1: a string"),
        ("space = 1\n", "space = 1: a table"),
        ("default = 1\n", r"\[default\] is 1: a table"),
        ("queues = 1\n", "queues = 1: a table"),
        ("[queues]\norders = 1\n", r"\[queues.orders\] is 1: a table"),
        ("[queues.a]\ntopic = 't'\n", "\\[queues.a\\] topic = 't' is not defined: define it first"),
        ("[topics.tt]\n[queues.a]\ntopic = 't'\n", "did you mean 'tt'"),
        ("[queues.a]\nmatch = {k = 'v'}\n", "\\[queues.a\\] match needs topic"),
        ("[topics.t]\n[queues.a]\ntopic = 't'\nmatch = {k = 1}\n", "\\[queues.a\\] match = .*headers and their values"),
        ("[topics.t]\n[queues.a]\ntopic = 't'\nmatch = 'k'\n", "headers and their values"),
        ("[topics.t]\nname = 'x'\n", "\\[topics.t\\] does not take 'name'. It takes description"),
        ("[topics.a]\n[queues.a]\n", "\\[topics.a\\] is a queue as well"),
        ("topics = {t = 1}\n", "\\[topics.t\\] is 1: a table is wanted"),
        ("[topics.t]\n[default]\ntopic = 't'\n", "\\[default\\] does not take 'topic'"),
        ("[topics.'-']\n", "queue name '-' is refused"),
        ("[queues.orders]\norder = 'random'\n", "order = 'random': fifo, lifo or priority"),
        ("[queues.orders]\norder = ['fifo']\n", "fifo, lifo or priority is wanted"),
        ("[queues.orders]\nblocks = 'two'\n", r"\[queues.orders\] blocks = 'two': one or many is wanted"),
        ("[default]\nblocks = true\n", r"\[default\] blocks = True: one or many is wanted"),
        ("[queues.orders]\nordr = 'fifo'\n", r"\[queues.orders\] does not take 'ordr': did you mean 'order'"),
        ("[default]\nname = 'x'\n", r"\[default\] does not take 'name'"),
        ("[access]\ngroup = 7\n", r"\[access\] group = 7: the name of a group of this host is wanted"),
        ("[access]\ngroup = ''\n", r"\[access\] group = '': the name of a group"),
        ("[access]\ngroups = 'x'\n", r"\[access\] does not take 'groups': did you mean 'group'"),
        ("[access.group]\nx = 1\n", r"\[access\] group = {'x': 1}: the name of a group"),
        ("[queues.a]\nmax_tries = 0\nfailure_queue = 'b'\n[queues.b]\n", r"max_tries = 0: a number of tries from 1"),
        ("[queues.a]\nmax_tries = 1.5\nfailure_queue = 'b'\n[queues.b]\n", r"\[queues.a\] max_tries = 1.5"),
        ("[queues.a]\nmax_tries = true\nfailure_queue = 'b'\n[queues.b]\n", r"\[queues.a\] max_tries = True"),
        ("[queues.a]\nmax_messages = 0\n", r"\[queues.a\] max_messages = 0: a number of messages from 1"),
        ("[queues.a]\nmax_messages = 1.5\n", "max_messages = 1.5"),
        ("[queues.a]\nmax_bytes = '1 GB'\n", "max_bytes = '1 GB': a number of bytes from 1"),
        ("[queues.a]\nmax_bytes = true\n", "max_bytes = True"),
        ("[default]\nmax_messages = 1\nwhen_full = 'drop'\n", r"\[default\] when_full = 'drop': refuse or wait"),
        ("[queues.a]\nmax_messages = 1\nfull_wait_s = -1\n", "full_wait_s = -1: seconds from 0"),
        ("[queues.a]\nwhen_full = 'wait'\n", "when_full needs max_messages or max_bytes"),
        ("[queues.a]\nfull_wait_s = 1\n", "full_wait_s needs max_messages or max_bytes"),
        ("[queues.a]\nmax_tries = 3\n", r"\[queues.a\] max_tries needs failure_queue"),
        ("[queues.a]\nretry_delay_s = -1\n", "retry_delay_s = -1: seconds from 0"),
        ("[queues.a]\nretry_delay_s = nan\n", "retry_delay_s = nan"),
        ("[queues.a]\nretry_multiplier = 0.5\n", "retry_multiplier = 0.5: a number from 1 to 100"),
        ("[queues.a]\nretry_jitter = 1.1\n", "retry_jitter = 1.1: a share from 0 to 1"),
        ("[queues.a]\nretry_max_s = 'long'\n", "retry_max_s = 'long'"),
        ("[queues.a]\nfailure_queue = 'c'\n[queues.cc]\n", "failure_queue = 'c' is not defined: did you mean 'cc'"),
        ("[queues.a]\nfailure_queue = 'a'\n", "failure_queue is the queue itself"),
        ("[queues.a]\nfailure_queue = 'b'\n[queues.b]\npersistent = false\n", "'b', which has persistent = false"),
        ("[queues.a]\nexpiry_queue = 'b'\n[queues.b]\npersistent = false\n", r"\[queues.a\] expiry_queue = 'b', which"),
        (
            "[default]\npersistent = false\n[queues.a]\npersistent = true\nfailure_queue = 'b'\n",
            "Name a queue",
        ),
        ("[queues.a]\ndedup_window_s = -1\n", r"\[queues.a\] dedup_window_s = -1: seconds from 0 to 31,622,400"),
        ("[queues.a]\ndedup_window_s = true\n", "dedup_window_s = True"),
        ("[default]\ndedup_window_s = '1h'\n", r"\[default\] dedup_window_s = '1h'"),
        ("[queues.a]\nexpiry_queue = 'a/b'\n", r"\[queues.a\] expiry_queue: queue name 'a/b' is refused"),
        ("[default]\nfailure_queue = 7\n", r"\[default\] failure_queue: queue name 7 is refused"),
        ("[queues.'a/b']\n", "queue name 'a/b' is refused"),
        ("[queues.'.hidden']\n", "queue name '.hidden' is refused"),
    ],
)
def test_a_refusal_names_the_place_and_what_it_takes(text: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        parse(text)


def test_a_queue_is_found_by_its_definition_or_the_template() -> None:
    definitions = parse(WHOLE)
    assert definitions.find("orders").order is Order.PRIORITY
    assert definitions.find("anything").order is Order.LIFO


def test_an_unknown_queue_is_refused_with_a_suggestion() -> None:
    """Black-box behaviour 9."""
    definitions = parse("[queues.orders]\n[queues.replies]\n")
    with pytest.raises(UnknownQueue, match=r"'order' is not defined: did you mean 'orders'\? Define it with"):
        definitions.find("order")
    with pytest.raises(UnknownQueue, match=r"'zzz' is not defined. Define it with `xaqueue define zzz`"):
        definitions.find("zzz")


@pytest.mark.parametrize("name", ["a" * 128, "../up", "a/b", ".hidden", ""])
@pytest.mark.parametrize("text", ["", "[default]\n", "[queues.orders]\n"])
def test_no_template_makes_a_bad_name_good(text: str, name: str) -> None:
    """Black-box behaviour 38; a name with a slash in it would be a path out of the space."""
    with pytest.raises(InvalidArgument, match="queue name"):
        parse(text).find(name)


def test_a_suggestion_is_for_a_near_miss_only() -> None:
    assert suggestion("ordesr", ["orders", "replies"]) == ": did you mean 'orders'?"
    assert suggestion("x", ["orders"]) == ""
    assert suggestion("x", []) == ""


def test_with_queue_adds_one_and_keeps_comments_and_the_rest() -> None:
    text = with_queue(WHOLE, "replies", {"order": "lifo", "description": "answers"})
    assert text.startswith(WHOLE.rstrip())
    assert parse(text).queues["replies"] == QueueDefinition(Order.LIFO, "answers")
    before, after = tomllib.loads(WHOLE), tomllib.loads(text)
    del after["queues"]["replies"]
    assert after == before


def test_without_queue_keeps_comments_and_the_rest() -> None:
    for name in parse(WHOLE).queues:
        text = without_queue(WHOLE, name)
        wanted = tomllib.loads(WHOLE)
        del wanted["queues"][name]
        assert tomllib.loads(text) == wanted
        assert [line for line in WHOLE.splitlines() if line.startswith("#")] == [
            line for line in text.splitlines() if line.startswith("#")
        ]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("[queues.a]", ""),
        ("# of a\n[queues.a]\n# of its order\norder='fifo'\n\n# of b\n[queues.b]\n", "# of a\n\n# of b\n[queues.b]\n"),
        ("[queues.ab]\n[queues.a]\n[queues.'a.b']\n", "[queues.ab]\n[queues.'a.b']\n"),
        ("[queues.b]\n[queues.'a']\n[default]\n", "[queues.b]\n[default]\n"),
        ("[queues.a]\ndescription = '''\n[queues.b]\n'''\n[queues.b]\n", "[queues.b]\n"),
        ("[queues]\n[queues.a]\n", "[queues]\n"),
    ],
)
def test_without_queue_cuts_its_table_out(text: str, left: str) -> None:
    assert without_queue(text, "a") == left


@pytest.mark.parametrize("text", ["queues.a.order = 'fifo'", "[queues]\na = {order = 'fifo'}", "queues = {a = {}}"])
def test_without_queue_leaves_what_is_no_table_of_its_own(text: str) -> None:
    with pytest.raises(InvalidArgument, match="queue a is no table of its own: take it out by hand"):
        without_queue(text, "a")


def test_without_queue_refuses_what_others_name() -> None:
    text = "[default]\nfailure_queue='a'\n[queues.a]\n[queues.b]\nexpiry_queue='a'\nfailure_queue='a'\n"
    with pytest.raises(InvalidArgument) as told:
        without_queue(text, "a")
    assert "[queues.b] failure_queue, [queues.b] expiry_queue, [default] failure_queue" in str(told.value)
    with pytest.raises(UnknownQueue, match="did you mean 'b'"):
        without_queue("[default]\n[queues.b]", "bb")
    with pytest.raises(InvalidArgument, match="no TOML"):
        without_queue("[", "a")
    with pytest.raises(InvalidArgument, match="is a topic"):
        without_queue("[topics.events]", "events")


def test_with_queue_redefines_one_in_place() -> None:
    text = with_queue(WHOLE, "orders", {"order": "fifo"})
    assert parse(text).queues["orders"] == QueueDefinition(Order.FIFO, "what the shop sends")
    assert "# the shop" in text
    assert "# limits" in text
    assert text.count("[queues.orders]") == 1


@pytest.mark.parametrize("text", ["", "# only a comment\n", "[default]\norder = 'fifo'\n"])
def test_with_queue_into_a_file_that_has_none(text: str) -> None:
    defined = with_queue(text, "a.b", {})
    assert list(parse(defined).queues) == ["a.b"]
    assert defined.startswith(text)
    assert list(parse(with_queue(defined, "c", {"order": "lifo"})).queues) == ["a.b", "c"]


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [("[queues", "a", {}), ("", "a/b", {}), ("", "a", {"order": "random"}), ("", "a", {"ordr": "fifo"})],
)
def test_with_queue_refuses_what_parse_refuses(text: str, name: str, options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        with_queue(text, name, options)


def test_a_group_alone_says_nothing_of_a_server() -> None:
    assert parse("[access]\ngroup = 'readers'\n") == Definitions(readers="readers")
    assert parse("[access]\n").access == Policy(())
    both = parse("[access]\ngroup = 'readers'\n[access.roles.shop]\nmembers = ['user:www']\n")
    assert (both.readers, both.access) == ("readers", Policy((Role("shop", ("user:www",)),)))


def test_what_becomes_of_a_message_that_cannot_be_handled() -> None:
    text = (
        "[default]\n[queues.a]\nmax_tries = 5\nretry_delay_s = 0.5\nretry_multiplier = 3\nretry_max_s = 60\n"
        "retry_jitter = 0.1\nfailure_queue = 'f'\nexpiry_queue = 'e'\n"
    )
    queue = parse(text).queues["a"]
    assert policy_of(queue) == RetryPolicy(5, 0.5, 3.0, 60.0, 0.1)
    assert (FAILURE_QUEUE.of(queue), EXPIRY_QUEUE.of(queue)) == ("f", "e")
    assert policy_of(parse("[queues.a]\n").queues["a"]) == RetryPolicy()


def test_a_window_is_in_seconds() -> None:
    assert parse("[queues.a]\ndedup_window_s = 0.5\n").queues["a"] == QueueDefinition(options={"dedup_window_s": 0.5})
    assert WINDOW_S.of(parse("[queues.a]\n").queues["a"]) == 0


def test_words_of_a_command_are_values_as_in_toml_or_plain_text() -> None:
    words = ["max_tries=5", "retry_delay_s=0.5", "failure_queue=orders.failed", 'description="a = b"', "expiry_queue="]
    assert options_of(words) == {
        "max_tries": 5,
        "retry_delay_s": 0.5,
        "failure_queue": "orders.failed",
        "description": "a = b",
        "expiry_queue": None,
    }
    for word, said in (
        ("max_tries", "'max_tries': KEY=VALUE is wanted, or max_tries= to take it away"),
        ("=1", "queues have no ''"),
        ("order_=fifo", r"queues have no 'order_': did you mean 'order'\? They take order, "),
    ):
        with pytest.raises(InvalidArgument, match=said):
            options_of([word])


def test_with_queue_takes_a_key_away() -> None:
    text = with_queue(WHOLE, "orders", {"description": None, "order": "fifo"})
    assert parse(text).queues["orders"] == QueueDefinition()


def test_limits_of_a_queue() -> None:
    text = (
        "[queues.a]\nmax_messages = 5\n[queues.b]\nmax_bytes = 7\nwhen_full = 'wait'\nfull_wait_s = 1.5\n[queues.c]\n"
    )
    queues = parse(text).queues
    assert limits_of(queues["a"]) == QueueLimits(5)
    assert limits_of(queues["b"]) == QueueLimits(0, 7, waits=True, wait_s=1.5)
    assert limits_of(queues["c"]) is None
