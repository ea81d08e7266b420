"""docs/reference/vectors.json, what a producer in another language needs: `python -m tests.support.vectors` writes it.

Inputs are here and on the protocol page. Every result, and every refusal, comes from the code that producers run.
"""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.protocol_page import vectors, with_enums
from txlayer.adapters.ports import TopicLimits
from txlayer.config import ProducerConfig, SystemTopics
from txlayer.core import codec, messages, partitions
from txlayer.core.ledger.transaction import TIMES_MAX
from txlayer.core.messages import (
    TOPICS_BYTES_MAX,
    TOPICS_MAX,
    CheckKind,
    CheckRecord,
    HalfHeader,
    HalfOptions,
    Message,
    OpMessage,
    OrderMode,
    Resolution,
    Source,
    Undecodable,
    UnresolvedAction,
)
from txlayer.errors import ForbiddenTopicError, RefusedRecordError, UsageError
from txlayer.producer.encoding import Encoder
from txlayer.producer.identity import OF_MESSAGES, Identity

FILE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "vectors.json"
COMMAND = ".venv/bin/python -m tests.support.vectors"

PARTITION_COUNT = 8
GROUP, BORN_MS = "orders", 1_700_000_000_000
TOPICS = SystemTopics("txlayer")
Json = dict[str, Any]

RULES: Json = {
    "topics": {"half": "{namespace}.half", "op": "{namespace}.op", "check": "{namespace}.check"},
    "check_group": "{namespace}.check.{producer_group}",
    "half_header": {
        "name": codec.HALF_HEADER,
        "form": "{version}|{txn_id}/{nonce}|{producer_group}|{topic}|{index}/{count}|{born_ms}|{options}",
        "version": codec.VERSION,
        "version_with_deliver_at": codec.TIMED_VERSION,
        "bytes_max": codec.HALF_HEADER_BYTES_MAX,
    },
    "options": [
        {"name": "deliver_at_ms", "form": "d{}"},
        {"name": "key_hash", "form": "k{}"},
        {"name": "order", "form": "o{}", "only_value": "p"},
        {"name": "immunity_ms", "form": "i{}"},
        {"name": "partition", "form": "n{}"},
        {"name": "timestamp_ms", "form": "t{}"},
        {"name": "key_murmur", "form": "m{}"},
        {"name": "check_with", "form": "a{}"},
        {"name": "query_id", "form": "q{}", "percent_encoded": "all but letters A-Z a-z, digits, _ . - ~"},
        {"name": "unresolved", "form": "u{}"},
        {"name": "is_group_named", "form": "g{}", "only_value": "1"},
    ],
    "op_line": {
        "form": "{version}|{resolution}|{txn_id}/{nonce}|{producer_group}|{last_offset}|{born_ms}|{source}|{check_number}|{reason}",
        "version": codec.VERSION,
        "separator": "\n",
        "resolutions": {**{r.name.lower(): r.value for r in Resolution}, "cancel": "A"},
        "source_of_producer": Source.PRODUCER.value,
        "source_of_answer": Source.CHECK.value,
    },
    "check_line": {
        "fields": [
            *("version", "kind", "key", "producer_group", "partition", "last_offset", "born_ms", "number", "text")
        ],
        "versions": [codec.VERSION, codec.NEXT_VERSION],
        "kinds": {kind.name.lower(): kind.value for kind in messages.CheckKind},
    },
    "unescaped_in_reason": "letters A-Z a-z, digits, _ . - ~ and the blank; every other byte of its UTF-8 as % and two upper-case digits",
    "txn_id": messages._TXN_ID.pattern,
    "nonce": f"[0-9a-f]{{{messages.NONCE_LENGTH}}}",
    "producer_group": messages._GROUP.pattern,
    "topic": messages.TOPIC_NAME.pattern,
    "reserved_header_prefix": messages.RESERVED_HEADER_PREFIX,
    "tags_header": messages.TAGS_HEADER,
    "forwarded_headers": {"group": codec.GROUP_HEADER, "id": codec.ID_HEADER, "origin": codec.ORIGIN_HEADER},
    "times_max": TIMES_MAX,
    "topics_max": TOPICS_MAX,
    "topic_names_bytes_max": TOPICS_BYTES_MAX,
    "messages_max": ProducerConfig().transaction_messages_max,
    "transaction_bytes_max": ProducerConfig().transaction_bytes_max,
    "whole_number_max": codec.WHOLE_MAX,
}


def at(ms: int) -> datetime:
    """That many milliseconds since 1970."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


TRANSACTIONS: list[tuple[str, str, list[Message], Json]] = [
    ("one message", "order-4711", [Message("shop.orders", "customer-7", "bought")], {}),
    ("no key: no order", "order-4711", [Message("shop.orders", None, "bought")], {}),
    ("several messages with one key: it is the ordering key", "order-4712",
     [Message("shop.orders", "customer-7", "bought"), Message("loyalty", "customer-7", None)], {}),
    ("several keys: no order", "order-4713",
     [Message("shop.orders", "customer-7", "bought"), Message("loyalty", "customer-8", "points")], {}),
    ("an ordering key of its own; a message without a key follows it in its real topic", "order-4714",
     [Message("shop.orders", None, "bought"), Message("loyalty", "Zürich", "points")], {"ordering_key": "Zürich"}),
    ("an empty key is a key", "order-4715", [Message("shop.orders", "", "bought")], {}),
    ("no order, although there is a key", "order-4716", [Message("shop.orders", "customer-7", "bought")],
     {"ordering_key": None}),
    ("the order of prepare, and immunity", "order-4717", [Message("shop.orders", "customer-7", "bought")],
     {"order": "prepare", "immunity": timedelta(minutes=1)}),
    ("headers, tags, bytes that are not text", "order-4718",
     [Message("shop.orders", b"\x00\xff", b"\xfe|\n", [("h", b"1"), ("h", None), ("grüße", "ä")], tags="new")], {}),
    ("partition and timestamp", "order-4719",
     [Message("shop.orders", None, "bought", partition=3, timestamp=BORN_MS + 123)], {"ordering_key": "customer-7"}),
    ("messages with times: version 3 where there is one", "order-4720",
     [Message("shop.orders", "customer-7", "bought"),
      Message("mails", "customer-7", "pay", deliver_at=at(BORN_MS + 60_000)),
      Message("mails", None, "really", deliver_at=at(BORN_MS + 120_000))], {"ordering_key": "customer-7"}),
    ("the longest names", "!" * 128, [Message("t" * 249, "k", "v")], {"group": "g" * 200}),
]  # fmt: skip

REFUSED_MESSAGES: list[tuple[str, list[Message], Json]] = [
    ("no message", [], {}),
    ("a header name of txlayer's", [Message("shop.orders", "k", "v", [("txl-id", b"1")])], {}),
    ("a header without a name", [Message("shop.orders", "k", "v", [("", b"1")])], {}),
    ("a system topic", [Message("txlayer.half", "k", "v")], {}),
    ("a topic that cannot exist", [Message("a/b", "k", "v")], {}),
    ("the order of prepare without an ordering key", [Message("shop.orders", None, "v")], {"order": "prepare"}),
    ("a partition that does not exist", [Message("shop.orders", "k", "v", partition=8)], {}),
    ("a timestamp before 1970", [Message("shop.orders", "k", "v", timestamp=-1)], {}),
    ("a time without a zone", [Message("shop.orders", "k", "v", deliver_at=at(BORN_MS).replace(tzinfo=None))], {}),
    ("65 times", [Message("mails", "k", "v", deliver_at=at(BORN_MS + n)) for n in range(TIMES_MAX + 1)], {}),
]
REFUSED_IDS = ["", "a b", "a|b", "a/b", "a\nb", "ä", "a" * 129]
REFUSED_GROUPS = ["", "a b", "a|b", "a/b", "ä", "a" * 201]

HALF_REFUSED = [
    "1|order-4711/5f3a90c2|orders|shop.orders|2/2|1700000000000|",
    "1|order-4711/5f3a90c2|orders|shop.orders|0/2|1700000000000",
    "1|order-4711/5f3a90c2|orders|shop.orders|0/2|-1|",
    "1|order-4711/5f3a90c2|orders|shop.orders|0/2|9223372036854775808|",
    "1|order-4711/5f3a90c2|orders|shop.orders|0/2|1700000000000|kABC",
    "1|order-4711/5f3a90c2|orders|shop.orders|0/2|1700000000000|n2147483648",
    "3|order-4711/5f3a90c2|orders|shop.orders|0/2|1700000000000|",
    "4|order-4711/5f3a90c2|orders|shop.orders|0/2|1700000000000|",
    "1|order-4711/5f3a90c2|orders|..|0/2|1700000000000|",
    "1|ordär-4711/5f3a90c2|orders|shop.orders|0/2|1700000000000|",
    "1|order-4711/5f3a90c2|orders|shop.orders|0/2|1700000000000|z" + "y" * 2_048,
]
OP_REFUSED = [
    "1|X|order-4711/5f3a90c2|orders|17|1700000000000|producer||",
    "1|C|order-4711/5f3a90c2|orders|17|1700000000000|nobody||",
    "1|C|order-4711|orders|17|1700000000000|producer||",
    "1|C|order-4711/5f3a90c2|orders||1700000000000|producer||",
    "1|C|order-4711/5f3a90c2|orders|17|1700000000000|producer|",
    "1|C|order-4711/5f3a90c2|orders|17|1700000000000|producer||a|b",
    "3|C|order-4711/5f3a90c2|orders|17|1700000000000|producer||",
]


def both(raw: bytes) -> Json:
    """Bytes as hexadecimal digits, and as text if they are text."""
    try:
        return {"text": raw.decode(), "hex": raw.hex()}
    except UnicodeDecodeError:
        return {"hex": raw.hex()}


def optional(raw: bytes | None) -> Json | None:
    """The same, or null."""
    return None if raw is None else both(raw)


def encoder() -> Encoder:
    """One that knows the topics of all vectors."""
    made = Encoder(ProducerConfig(), half_bytes_max=1_048_588, serialize=None)
    for topic in ("shop.orders", "loyalty", "mails", "t" * 249):
        made.learn(topic, TopicLimits(PARTITION_COUNT, 1_048_588))
    return made


def encoded(txn_id: str, sent: Sequence[Message], asked: Json) -> Json:
    """What a producer stores for these messages, and the op line that commits them."""
    identity, settings = Identity(partition_count=PARTITION_COUNT), dict(asked)
    group = settings.pop("group", GROUP)
    wished = identity.placement(
        settings.get("ordering_key", OF_MESSAGES), settings.get("order", "commit"), settings.get("immunity")
    )
    placement = identity.placement_of(wished, sent)
    key = f"{messages.check_txn_id(txn_id)}/5f3a90c2"
    of_messages = encoder()
    of_messages.unknown_topics(sent)
    records = of_messages.records(sent, placement)
    assert records is not None
    partition = identity.partition(placement, key)
    half = []
    for index, (topic, record_key, value, headers, options) in enumerate(records):
        header = codec.half_header(key, group, topic, index, len(records), BORN_MS, options)
        ours = [(name, value) for name, value in headers or ()] + [(codec.HALF_HEADER, header)]
        half.append(
            {
                "key": optional(record_key),
                "value": optional(value),
                "headers": [{"name": name, "value": optional(value)} for name, value in ours],
            }
        )
    commit = codec.producer_op(Resolution.COMMIT.value, key, group, 17, BORN_MS)
    return {"partition": partition, "half_records": half, "commit_if_last_offset_is_17": both(commit.encode())}


def asked_for(txn_id: str, sent: Sequence[Message], asked: Json) -> Json:
    """The input of `encoded`, as JSON."""

    def raw(value: Any) -> Json | None:
        return optional(value.encode() if isinstance(value, str) else value)

    def headers(message: Message) -> list[Json]:
        tags = [] if message.tags is None else [("tags", message.tags)]
        return [{"name": name, "value": raw(value)} for name, value in [*(message.headers or ()), *tags]]

    def time_ms(message: Message) -> int | None:
        return None if message.deliver_at is None else int(message.deliver_at.timestamp() * 1_000)

    made: Json = {"txn_id": txn_id, "nonce": "5f3a90c2", "producer_group": asked.get("group", GROUP)}
    made |= {"born_ms": BORN_MS, "half_partition_count": PARTITION_COUNT}
    made["ordering_key"] = raw(asked["ordering_key"]) if "ordering_key" in asked else "of messages"
    made["order"] = asked.get("order", "commit")
    made["immunity_ms"] = asked["immunity"] // timedelta(milliseconds=1) if "immunity" in asked else None
    made["messages"] = [
        {
            "topic": message.topic,
            "key": raw(message.key),
            "value": raw(message.value),
            "headers": headers(message),
            "partition": message.partition,
            "timestamp_ms": message.timestamp,
            "deliver_at_ms": time_ms(message),
        }
        for message in sent
    ]
    return made


def refusal(act: Callable[[], object]) -> str:
    """The name of the error that `act` ends with."""
    try:
        act()
    except (UsageError, ForbiddenTopicError, RefusedRecordError) as exc:
        return type(exc).__name__
    raise AssertionError("it is not refused")


def why_not(found: object) -> str:
    """Why a decoder refuses what it read."""
    assert isinstance(found, Undecodable), found
    return found.why


def question_and_answers(line: str) -> Json:
    """A question, and what each answer to it is."""
    question = codec.decode_check(line.encode())
    assert isinstance(question, CheckRecord)
    answers = {
        resolution.name.lower(): both(
            codec.encode_op(
                OpMessage(
                    resolution,
                    question.key,
                    question.producer_group,
                    question.last_offset,
                    BORN_MS,
                    Source.CHECK,
                    question.number,
                    reason="handler: TimeoutError" if resolution is Resolution.UNKNOWN else "",
                )
            ).encode()
        )
        for resolution in Resolution
    }
    return {
        "question": both(line.encode()),
        "born_ms": BORN_MS,
        "reason_of_unknown": "handler: TimeoutError",
        "answer_topic": TOPICS.op,
        "answer_partition": question.partition,
        "answers": answers,
    }


def plain(vector: Json) -> Json:
    """A vector of the protocol page without what it is on the wire."""
    return {name: value for name, value in vector.items() if name not in ("bytes", "line")}


def half_header_of(vector: Json) -> bytes:
    """The header of a vector of the protocol page."""
    options = HalfOptions(**with_enums(vector["options"], order=OrderMode, unresolved=UnresolvedAction))
    return codec.encode_half_header(HalfHeader(**{**with_enums(vector), "options": options}))


def document() -> Json:
    """All of it."""
    accepted = [vector for vector in vectors("accepted") if vector["is_accepted"]]
    half_refused = [v["half"] for v in vectors("accepted") if not v["is_accepted"] and "half" in v] + HALF_REFUSED
    op_refused = [v["op"] for v in vectors("accepted") if not v["is_accepted"] and "op" in v] + OP_REFUSED
    lines = [vector["line"] for vector in vectors("op")]
    return {
        "about": f"Test vectors of txlayer's records; vectors.md explains them. Made by {COMMAND}",
        "rules": RULES,
        "uuid7": vectors("uuid7"),
        "partitions": [
            {**v, "partition": partitions.half_partition(
                ordering_key=None if v["ordering_key"] is None else v["ordering_key"].encode(),
                txn_id=v["txn_id"], partition_count=v["partition_count"])}
            for v in vectors("partition")
        ],
        "key_hashes": [
            {"ordering_key": both(key), "key_hash": partitions.key_hash(key)}
            for key in [*(v["ordering_key"].encode() for v in vectors("key-hash")), b"\x00\xff", b"k" * 128, b"k" * 129]
        ],
        "murmur2": [
            {"key": both(key), "murmur2": partitions.murmur2(key)}
            for key in [*(v["key"].encode() for v in vectors("murmur2")), b"", b"\x80\xff\x00"]
        ],
        "transactions": [
            {"name": name, "input": asked_for(txn_id, sent, asked), "output": encoded(txn_id, sent, asked)}
            for name, txn_id, sent, asked in TRANSACTIONS
        ],
        "half_headers": [{"input": plain(v), **both(half_header_of(v))} for v in vectors("half")],
        "op_lines": [
            {"input": plain(v), **both(codec.encode_op(OpMessage(**with_enums(v, resolution=Resolution, source=Source))).encode())}
            for v in vectors("op")
        ],
        "op_record": {"lines": lines[:3], **both(codec.encode_ops(lines[:3]))},
        "check_records": [
            {"input": plain(v), **both(codec.encode_check(CheckRecord(**with_enums(v, kind=CheckKind))))}
            for v in vectors("check")
        ],
        "questions": [
            question_and_answers(v["line"])
            for v in vectors("check") if v["kind"] == "QUESTION"
        ],
        "question_details": vectors("question-details"),
        "forwarded": vectors("origin"),
        "accepted": [both((v["half"] if "half" in v else v["op"]).encode()) | {"key": v["key"]} for v in accepted],
        "refused": {
            "by a producer": {
                "transactions": [
                    {"name": name, "error": refusal(partial(encoded, "order-1", sent, asked)),
                     **({"input": asked_for("order-1", sent, asked)} if name != "a time without a zone" else {})}
                    for name, sent, asked in REFUSED_MESSAGES
                ],
                "txn_ids": [{"txn_id": x, "error": refusal(partial(messages.check_txn_id, x))} for x in REFUSED_IDS],
                "groups": [{"group": x, "error": refusal(partial(messages.check_group, x))} for x in REFUSED_GROUPS],
            },
            "by a coordinator": {
                "half_headers": [
                    both(x.encode()) | {"why": why_not(codec.decode_half_header(x.encode()))} for x in half_refused
                ],
                "op_lines": [both(x.encode()) | {"why": why_not(codec.decode_op(x))} for x in op_refused],
            },
        },
    }  # fmt: skip


def text() -> str:
    """The file."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
