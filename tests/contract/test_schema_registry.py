"""Confluent's serializers in producers and its deserializers in consumers, with its own client and a registry over HTTP."""

import asyncio
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any, NamedTuple, cast

import pytest
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.contract.conftest import OF_USERS_CODE
from txlayer import AsyncOrderedConsumer, Codec, Context, OrderedConsumer, ReceivedMessage, RetryPolicy
from txlayer.core.dead_letters import dead_letter_topic
from txlayer.testing import KafkaAccess, Stage, wait_until


class Registry(ThreadingHTTPServer):
    """What Confluent's client asks of a registry that takes every schema, on a free port of this machine."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Asked)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked_count = 0
        self.is_broken = False
        """True: everything is answered with an error of the server."""
        self._known: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        """(status, body) of one request: a schema under a subject, or an id or guid."""
        with self._lock:
            self.asked_count += 1
            if self.is_broken:
                return 500, {"error_code": 50001, "message": "Error in the backend data store"}
            if body is not None:
                return 200, self._registered(body)
            wanted = path.rpartition("/")[2].partition("?")[0]
            for each in self._known:
                if wanted in (str(each["id"]), each["guid"]):
                    return 200, each
            return 404, {"error_code": 40403, "message": "Schema not found"}

    def _registered(self, body: dict[str, Any]) -> dict[str, Any]:
        schema = {name: body[name] for name in ("schema", "schemaType", "references") if body.get(name)}
        for each in self._known:
            if schema.items() <= each.items():
                return each
        self._known.append({**schema, "id": len(self._known) + 1, "guid": str(uuid.uuid4()), "version": 1})
        return self._known[-1]


class _Asked(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        status, told = cast("Registry", self.server).answer(self.path, body)
        raw = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_POST = _answer  # noqa: N815 - the names that http.server asks for

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


# Their packages bring no types.
BASE: Any = import_module("confluent_kafka.schema_registry")
JSON: Any = import_module("confluent_kafka.schema_registry.json_schema")
AVRO: Any = import_module("confluent_kafka.schema_registry.avro")
PROTOBUF: Any = import_module("confluent_kafka.schema_registry.protobuf")
DESCRIPTORS: Any = import_module("google.protobuf.descriptor_pb2")
POOL: Any = import_module("google.protobuf.descriptor_pool")
MESSAGES: Any = import_module("google.protobuf.message_factory")

WITHIN_S = 30.0
OFTEN = RetryPolicy(attempt_count_max=1_000, backoff_first_ms=20, backoff_max_ms=50)
AS_JSON = json.dumps(
    {"title": "Sale", "type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]}
)
AS_AVRO = json.dumps(
    {"type": "record", "name": "Sale", "fields": [{"name": "cents", "type": "int"}, {"name": "shop", "type": "string"}]}
)


def message_type() -> Any:
    """What `protoc` makes of `message Sale { int64 cents = 1; }`."""
    described = DESCRIPTORS.FileDescriptorProto(name="sale.proto", package="shop", syntax="proto3")
    sale = described.message_type.add(name="Sale")
    cents = DESCRIPTORS.FieldDescriptorProto
    sale.field.add(name="cents", number=1, type=cents.TYPE_INT64, label=cents.LABEL_OPTIONAL, json_name="cents")
    pool = POOL.DescriptorPool()
    pool.Add(described)
    return MESSAGES.GetMessageClass(pool.FindMessageTypeByName("shop.Sale"))


SALE = message_type()


@dataclass
class Sale:
    """What a handler wants of a value in Avro."""

    cents: int
    shop: str


class Format(NamedTuple):
    """One of Confluent's formats: what writes and reads it, and a value."""

    serializer: Callable[..., Any]  # (client, settings)
    deserializer: Callable[..., Any]  # (client)
    value: Any


FORMATS = {
    "json": Format(
        lambda client, conf: JSON.JSONSerializer(AS_JSON, client, conf=conf),
        lambda client: JSON.JSONDeserializer(None, schema_registry_client=client),
        {"cents": 42},
    ),
    "avro": Format(
        lambda client, conf: AVRO.AvroSerializer(client, AS_AVRO, conf=conf),
        AVRO.AvroDeserializer,
        {"cents": 42, "shop": "corner"},  # it takes no record of less than 6 bytes, wherever the id is
    ),
    "protobuf": Format(
        lambda client, conf: PROTOBUF.ProtobufSerializer(SALE, client, conf),
        lambda client: PROTOBUF.ProtobufDeserializer(SALE, {}, client),
        SALE(cents=42),
    ),
}


@pytest.fixture
def stage(kafka: KafkaAccess) -> Iterator[Stage]:
    with Stage(kafka) as made:
        yield made


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as running:
        thread = threading.Thread(target=running.serve_forever, args=[0.01], name="schema-registry", daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


class Shop:
    """A topic, and a consumer that notes what it handled."""

    def __init__(self, stage: Stage, registry: Registry) -> None:
        self.stage = stage
        self.group = stage.unique("loyalty")
        self.orders = stage.topic("orders", consumer_group=self.group)
        self.seen: list[tuple[Any, Any]] = []
        self._url = registry.url
        self._clients = ExitStack()
        self.close = self._clients.close

    def client(self) -> Any:
        """A client of the registry that knows nothing yet."""
        made = BASE.SchemaRegistryClient({"url": self._url, "max.retries": 0})
        return self._clients.enter_context(made)

    def sell(self, made: Format, *, key: Any = "anna", conf: Any = None) -> None:
        """One message in a transaction of its own."""
        serializer = made.serializer(self.client(), conf)
        with self.stage.producer("shop", codec=Codec(serializer)).transaction() as tx:
            tx.send(self.orders, key=key, value=made.value)
            tx.prepare()

    def consumer(self, **settings: Any) -> OrderedConsumer:
        """Not started yet."""
        consumer = OrderedConsumer(
            group=self.group,
            topics=[self.orders],
            start_at="earliest",
            store_interval=timedelta(milliseconds=20),
            **self.stage.consumer_options,
            **settings,
        )

        @consumer.handler
        def note(message: ReceivedMessage, _context: Context) -> None:
            self.seen.append((message.key, message.value))

        return consumer

    def wait_for(self, *wanted: tuple[Any, Any]) -> None:
        """Until these were handled, in this order."""
        wait_until(lambda: self.seen == list(wanted), within=WITHIN_S, what=f"{wanted}, not {self.seen}")

    def letters(self) -> list[ReceivedMessage]:
        """The dead letters."""
        return self.stage.messages(dead_letter_topic(self.group, self.orders))

    def wait_for_letters(self, count: int) -> list[ReceivedMessage]:
        """Until there are so many."""
        wait_until(lambda: len(self.letters()) == count, within=WITHIN_S, what=f"{count} dead letters")
        return self.letters()


@pytest.fixture
def shop(stage: Stage, registry: Registry) -> Iterator[Shop]:
    with closing(Shop(stage, registry)) as made:
        yield made


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("place", ["in the value", "in a header"])
@OF_USERS_CODE
def test_a_deserializer_reads_what_its_serializer_wrote(shop: Shop, name: str, place: str) -> None:
    made = FORMATS[name]
    conf = {"schema.id.serializer": BASE.header_schema_id_serializer} if place == "in a header" else None
    shop.sell(made, conf=conf)

    with shop.consumer(codec=Codec(deserializer=made.deserializer(shop.client()))):
        shop.wait_for((b"anna", made.value))

    (found,) = shop.stage.messages(shop.orders)
    assert (place == "in a header") is any(n == "__value_schema_id" for n, _ in found.headers)
    assert [] == shop.letters()


@pytest.mark.fault("consumer: a deserializer cannot read a message, or the schema registry does not answer")
@pytest.mark.parametrize("name", FORMATS)
@OF_USERS_CODE
def test_what_nobody_can_read_is_a_dead_letter_and_harms_nobody_else(shop: Shop, name: str) -> None:
    made = FORMATS[name]
    shop.stage.write(shop.orders, b"no schema", key="anna")
    shop.stage.write(shop.orders, b"\x00\x00\x00\x03\xe7\x00", key="anna")  # of schema 999
    shop.stage.wait_until_settled()
    shop.sell(made)

    with shop.consumer(codec=Codec(deserializer=made.deserializer(shop.client())), retry=OFTEN):
        shop.wait_for((b"anna", made.value))
        first, second = shop.wait_for_letters(2)

    told = [dict(letter.headers) for letter in (first, second)]
    assert [b"no schema", b"\x00\x00\x00\x03\xe7\x00"] == [first.raw_value, second.raw_value]
    reasons = [b" ".join(value or b"" for value in headers.values()) for headers in told]
    assert all(b"undecodable" in reason for reason in reasons)
    assert b"SchemaRegistryError" in reasons[1]


@pytest.mark.fault("consumer: a deserializer cannot read a message, or the schema registry does not answer")
@OF_USERS_CODE
def test_a_registry_that_does_not_answer_makes_no_dead_letters(shop: Shop, registry: Registry) -> None:
    made = FORMATS["json"]
    shop.sell(made)
    registry.is_broken = True
    asked_before = registry.asked_count

    with shop.consumer(codec=Codec(deserializer=made.deserializer(shop.client())), retry=OFTEN):
        wait_until(lambda: registry.asked_count > asked_before + 3, within=WITHIN_S, what="attempts")
        registry.is_broken = False
        shop.wait_for((b"anna", made.value))

    assert [] == shop.letters()


@OF_USERS_CODE
def test_a_codec_of_theirs_writes_and_its_plain_values_become_the_body_that_a_handler_wants(shop: Shop) -> None:
    found: list[Sale] = []
    client, made = shop.client(), FORMATS["avro"]
    codec = Codec(made.serializer(client, None), made.deserializer(client))
    with shop.stage.producer("shop", codec=codec).transaction() as tx:
        tx.send(shop.orders, key="anna", value=made.value)
        tx.prepare()
    shop.stage.write(shop.orders, b"no schema", key="anna")

    consumer = OrderedConsumer(
        group=shop.group, topics=[shop.orders], start_at="earliest", codec=codec, **shop.stage.consumer_options
    )

    @consumer.handler
    def note(sale: Sale) -> None:
        found.append(sale)

    with consumer:
        shop.wait_for_letters(1)

    assert [Sale(42, "corner")] == found


def test_keys_are_read_too_and_order_goes_by_their_bytes(shop: Shop) -> None:
    made, client = FORMATS["json"], shop.client()
    written = made.serializer(client, None)({"cents": 7}, SerializationContext(shop.orders, MessageField.KEY))
    shop.sell(made, key=written)
    shop.stage.write(shop.orders, b"unread", key=b"no schema")
    fields: list[str] = []

    def value_of(raw: bytes | None, message: ReceivedMessage) -> Any:
        fields.append(getattr(message, "field"))  # noqa: B009 - what a SerializationContext has
        return raw if raw == b"unread" else made.deserializer(client)(raw, message)

    with shop.consumer(codec=Codec(deserializer=value_of), key_deserializer=made.deserializer(shop.client())):
        shop.wait_for(({"cents": 7}, made.value))
        (letter,) = shop.wait_for_letters(1)

    assert (b"no schema", b"unread") == (letter.raw_key, letter.raw_value)
    assert {"value"} == set(fields)


@OF_USERS_CODE
def test_a_coroutine_is_given_what_was_read_too(shop: Shop, stage: Stage) -> None:
    made = FORMATS["avro"]
    shop.sell(made)

    async def consume() -> Any:
        found: asyncio.Queue[Any] = asyncio.Queue()
        consumer = AsyncOrderedConsumer(
            group=shop.group,
            topics=[shop.orders],
            start_at="earliest",
            codec=Codec(deserializer=made.deserializer(shop.client())),
            **stage.consumer_options,
        )

        @consumer.handler
        async def note(message: ReceivedMessage, _context: Context) -> None:
            await found.put(message.value)

        async with consumer:
            return await asyncio.wait_for(found.get(), WITHIN_S)

    assert made.value == asyncio.run(consume())
