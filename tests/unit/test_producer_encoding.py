"""Messages as half records, and what is refused before anything is sent."""

from typing import Any

import pytest

from txlayer.adapters.ports import TopicLimits
from txlayer.config import ProducerConfig
from txlayer.core import codec
from txlayer.core.messages import HEADERS_MAX, TOPICS_BYTES_MAX, Message
from txlayer.errors import ForbiddenTopicError, RefusedRecordError, ReservedHeaderError, UsageError
from txlayer.producer.encoding import Encoder, headers_of, size_of
from txlayer.producer.identity import ANYWHERE, Identity

KEYED = Identity(partition_count=8).placement("customer-7", "commit", None)


def encoder(*, message_bytes_max: int | None = 1_000_000, serialize: Any = None, **settings: Any) -> Encoder:
    made = Encoder(ProducerConfig(**settings), half_bytes_max=1_000_000, serialize=serialize)
    made.learn("orders", TopicLimits(3, message_bytes_max))
    return made


def only(records: list[Any] | None) -> Any:
    assert records is not None
    (record,) = records
    return record


def test_text_becomes_utf_8_and_null_stays_null() -> None:
    assert ("orders", "ä".encode(), b"v", None, "") == only(
        encoder().records([Message("orders", key="ä", value="v")], ANYWHERE)
    )
    assert ("orders", None, None, None, "") == only(encoder().records([Message("orders")], ANYWHERE))


def test_headers_keep_their_order_and_tags_come_last() -> None:
    headers: list[tuple[str, bytes | str | None]] = [("b", b"1"), ("a", "ä"), ("b", None)]
    message = Message("orders", headers=headers, tags="TagA")

    record = only(encoder().records([message], ANYWHERE))

    assert [("b", b"1"), ("a", "ä".encode()), ("b", None), ("tags", b"TagA")] == record[3]


def test_a_mapping_of_headers_is_taken_too() -> None:
    assert [("a", b"1"), ("b", b"2")] == headers_of({"a": b"1", "b": "2"})


def test_partition_timestamp_and_ordering_key_become_options() -> None:
    message = Message("orders", partition=2, timestamp=1_700_000_000_000)

    options = codec.decode_options(only(encoder().records([message], KEYED))[4])

    assert (2, 1_700_000_000_000, None) == (options.partition, options.timestamp_ms, options.key_murmur)
    assert KEYED.options == only(encoder().records([Message("orders", key="k")], KEYED))[4]


def test_a_plain_message_is_the_same_record_by_both_ways() -> None:
    made = encoder()
    for message in (Message("orders", b"k", b"v"), Message("orders", None, b"v")):
        assert made.plain_record(message, ANYWHERE) == only(made.records([message], ANYWHERE))
    message = Message("orders", b"k", b"v")
    assert made.plain_record(message, KEYED) == only(made.records([message], KEYED))


def test_each_message_asks_for_the_name_of_its_group_and_leaves_room_for_it() -> None:
    made = Encoder(ProducerConfig(), half_bytes_max=None, serialize=None, named_group="shop")
    for name in ("orders", "loyalty"):
        made.learn(name, TopicLimits(3, 1_000))
    others = encoder(message_bytes_max=1_000)
    plain, later = Message("orders", b"k", b"v"), Message("loyalty", b"k", "v", partition=2)

    assert ["g1", "n2,g1"] == [record[4] for record in made.records([plain, later], ANYWHERE) or ()]
    assert f"{KEYED.options},g1" == only(made.records([plain], KEYED))[4]
    assert made.plain_record(plain, KEYED) == only(made.records([plain], KEYED))
    room = others._known["orders"].message_bytes_max - made._known["orders"].message_bytes_max
    assert len("txl-group") + len("shop") + codec.HEADER_BYTES == room


@pytest.mark.parametrize(
    "message",
    [
        Message("stock", b"k", b"v"),
        Message("orders", b"k", "v"),
        Message("orders", "k", b"v"),
        Message("orders", b"k", None),
        Message("orders", b"k", b"v", headers=[]),
        Message("orders", b"k", b"v", tags="a"),
        Message("orders", b"k", b"v", partition=0),
        Message("orders", b"k", b"v", timestamp=0),
        Message("orders", b"k", b"v" * 1_000_000),
    ],
)
def test_whatever_asks_for_more_is_not_plain(message: Message) -> None:
    assert encoder().plain_record(message, ANYWHERE) is None


def test_a_message_without_a_key_is_not_plain_where_the_ordering_key_places_it() -> None:
    assert encoder().plain_record(Message("orders", None, b"v"), KEYED) is None


def test_a_serializer_writes_values_and_may_add_headers() -> None:
    def serialize(value: Any, *, topic: str, headers: list[tuple[str, bytes | None]]) -> bytes:
        headers.append(("schema", b"7"))
        return f"{topic}:{value}".encode()

    made = encoder(serialize=serialize)

    assert made.plain_record(Message("orders", b"k", b"v"), ANYWHERE) is None
    record = only(made.records([Message("orders", b"k", {"a": 1})], ANYWHERE))
    assert (b"orders:{'a': 1}", [("schema", b"7")]) == (record[2], record[3])


@pytest.mark.fault("coordinator: a user's code raises an exception")
def test_a_serializers_own_exception_comes_out_as_it_is() -> None:
    def serialize(value: Any, **_: Any) -> bytes:
        raise KeyError(value)

    with pytest.raises(KeyError):
        encoder(serialize=serialize).records([Message("orders", value="x")], ANYWHERE)


@pytest.mark.parametrize(
    ("header", "error"),
    [(("txl-id", b"a/1"), ReservedHeaderError), (("a", 5), UsageError), (("a\0b", b""), UsageError)],
)
def test_what_a_serializer_adds_is_checked_like_a_users_headers(header: Any, error: type[UsageError]) -> None:
    def serialize(_value: Any, *, headers: list[Any], **_: Any) -> bytes:
        headers.append(header)
        return b""

    with pytest.raises(error, match="Nothing was sent"):
        encoder(serialize=serialize).records([Message("orders", value="x")], ANYWHERE)


def test_a_serializer_must_give_bytes() -> None:
    made = encoder(serialize=lambda _value, **_: "text")

    with pytest.raises(UsageError, match="serializer"):
        made.records([Message("orders", value="x")], ANYWHERE)


@pytest.mark.parametrize(
    "message",
    [
        Message("orders", key=7),  # type: ignore[arg-type] # users' code has no type checker
        Message("orders", value=7),
        Message("orders", value={"a": 1}),
        Message("orders", value="\ud800"),
        Message("orders", tags=7),  # type: ignore[arg-type] # the same
        Message("orders", timestamp=-1),
        Message("orders", timestamp=1.5),  # type: ignore[arg-type] # the same
        Message("orders", timestamp=1 << 63),
        Message("orders", timestamp=True),
        Message("orders", partition=True),
        Message("orders", headers=7),  # type: ignore[arg-type] # the same
        Message("orders", headers=["a"]),  # type: ignore[list-item] # the same
        Message("orders", headers=[("", b"1")]),
        Message("orders", headers=[("\ud800", b"1")]),
        Message("orders", headers=[("a\0b", b"1")]),
        Message("orders", headers=[(b"a", b"1")]),  # type: ignore[list-item] # the same
        Message("orders", headers=[("a", 1)]),  # type: ignore[list-item] # the same
    ],
)
def test_what_is_no_message_is_refused(message: Message) -> None:
    with pytest.raises(UsageError):
        encoder().records([message], ANYWHERE)


@pytest.mark.parametrize("name", ["txl", "txl-id", "txlayer"])
def test_a_reserved_header_is_refused_by_name(name: str) -> None:
    with pytest.raises(ReservedHeaderError) as raised:
        encoder().records([Message("orders", headers={name: b""})], ANYWHERE)
    assert name == raised.value.header


@pytest.mark.parametrize(
    "topic",
    [
        "txlayer.half",
        "txlayer.op",
        "txlayer.doubt",
        "txlayer.check",
        "txlayer.locks",
        "g.orders.dlq",
        "g.orders.replay",
        "__consumer_offsets",
        "__x",
        "",
        "a b",
        ".",
        "..",
        "a" * 250,
        7,
        None,
    ],
)
def test_what_nobody_may_send_to_is_refused_without_asking(topic: Any) -> None:
    with pytest.raises(ForbiddenTopicError, match="nothing was sent"):
        encoder().unknown_topics([Message(topic)])


@pytest.mark.fault("data: the target topic does not exist")
def test_a_topic_that_does_not_exist_is_refused_and_asked_for_again() -> None:
    made = encoder()

    with pytest.raises(ForbiddenTopicError, match="no such topic"):
        made.learn("stock", None)
    assert ["stock"] == made.unknown_topics([Message("orders"), Message("stock"), Message("stock")])
    assert made.records([Message("stock")], ANYWHERE) is None


@pytest.mark.parametrize("partition", [-1, 3, "0", 1.0])
def test_a_partition_that_does_not_exist_is_refused(partition: Any) -> None:
    with pytest.raises(RefusedRecordError) as raised:
        encoder().records([Message("orders", partition=partition)], ANYWHERE)
    assert "unknown-partition" == raised.value.reason


def test_a_message_is_measured_with_its_headers_and_those_of_the_forwarded_record() -> None:
    made = encoder(message_bytes_max=10_000)
    room = 10_000 - 61 - 32 - 228  # batch, record, txl-id and txl-origin
    headers = [("name", b"v" * 100)]
    value = b"v" * (room - 10 - 110)
    fits = Message("orders", b"k" * 10, value, headers=headers)

    assert room == size_of(b"k" * 10, value, headers)
    assert made.records([fits], ANYWHERE) is not None
    with pytest.raises(RefusedRecordError) as raised:
        made.records([fits._replace(value=value + b"v")], ANYWHERE)
    assert ("orders", room + 1, room, "too-large") == (
        raised.value.topic,
        raised.value.size_bytes,
        raised.value.size_bytes_max,
        raised.value.reason,
    )


def test_the_half_topics_own_limit_counts_too() -> None:
    made = Encoder(ProducerConfig(), half_bytes_max=5_000, serialize=None)
    made.learn("orders", TopicLimits(3, 1_000_000))

    with pytest.raises(RefusedRecordError):
        made.records([Message("orders", value=b"v" * 4_200)], ANYWHERE)


def test_a_topic_that_does_not_tell_its_limit_is_left_to_the_broker() -> None:
    made = Encoder(ProducerConfig(), half_bytes_max=None, serialize=None)
    made.learn("orders", TopicLimits(3, None))

    assert made.records([Message("orders", value=b"v" * 5_000_000)], ANYWHERE) is not None


@pytest.mark.promise("P11")
def test_ten_thousand_messages_are_a_transaction_and_one_more_is_not() -> None:
    messages = [Message("orders", b"k", b"v")] * 10_000

    assert 10_000 == len(encoder().records(messages, ANYWHERE) or ())
    with pytest.raises(UsageError, match="10001 messages"):
        encoder().records([*messages, messages[0]], ANYWHERE)


@pytest.mark.promise("P11")
def test_the_bytes_of_a_transaction_have_a_limit() -> None:
    made = encoder(transaction_bytes_max=1_000)
    message = Message("orders", b"k", b"v" * 499)

    assert made.records([message] * 2, ANYWHERE) is not None
    with pytest.raises(UsageError, match="transaction_bytes_max"):
        made.records([message] * 3, ANYWHERE)
    with pytest.raises(RefusedRecordError):
        made.records([Message("orders", b"k", b"v" * 1_000)], ANYWHERE)
    with pytest.raises(UsageError, match="transaction_bytes_max"):  # what a coordinator needs for them in memory
        made.records([Message("orders", b"k", b"v", headers=[("h", b"")] * 20)], ANYWHERE)


@pytest.mark.promise("P1")
def test_a_message_has_no_more_headers_than_a_client_can_read() -> None:
    """The coordinator's client shows none of a record that has more than 100,000: what is committed would be lost."""
    made, header = encoder(), ("h", b"")

    assert made.records([Message("orders", b"k", b"v", headers=[header] * HEADERS_MAX)], ANYWHERE) is not None
    with pytest.raises(UsageError, match="99001 headers"):
        made.records([Message("orders", b"k", b"v", headers=[header] * HEADERS_MAX, tags="one")], ANYWHERE)


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_too_much", [False, True])
def test_names_of_topics_beyond_what_doubt_can_list_are_refused_before_anything_is_sent(*, is_too_much: bool) -> None:
    made = encoder(transaction_messages_max=TOPICS_BYTES_MAX)
    names = [f"{number:064}" for number in range(TOPICS_BYTES_MAX // 64)]
    for name in (*names, "one-more"):
        made.learn(name, TopicLimits(3, 1_000))
    messages = [Message(name) for name in names]

    if is_too_much:
        with pytest.raises(UsageError, match="names of the transaction's topics"):
            made.records([*messages, Message("one-more")], ANYWHERE)
    else:
        assert len(messages) == len(made.records([*messages, messages[0]], ANYWHERE) or ()) - 1
