"""Values as JSON, Avro and Protobuf, plain and behind a schema registry's prefix."""

import io
import json
from dataclasses import dataclass, make_dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

import fastavro
import msgspec
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pyspark.sql import SparkSession

from txlayer.adapters.bodies import write_json
from txlayer.errors import UsageError
from txlayer_spark import AvroBody, JsonBody, ProtobufBody
from txlayer_spark.bodies import BodyCodec, with_body

OLD: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "customer", "type": "string"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "cents", "type": "long", "default": 5}]}


def bodies(spark: SparkSession, codec: BodyCodec, *values: bytes | None) -> list[tuple[Any, bool]]:
    """(body as a dict, whether there is an error) of each value."""
    rows = spark.createDataFrame(list(enumerate(values)), "n INT, value BINARY")
    found = with_body(rows, codec).orderBy("n").collect()
    return [(row.body and row.body.asDict(), row.body_error is not None) for row in found]


def test_json_is_read_and_what_is_none_says_so(spark: SparkSession) -> None:
    codec = JsonBody(schema="customer STRING, cents BIGINT")
    values = (
        b'{"customer": "7", "cents": 5, "more": 1}',
        b"{}",
        b"no json",
        b'{"cents": "x"}',
        b'{"customer": "\xff"}',
        None,
    )

    good, empty, *wrong, none = bodies(spark, codec, *values)

    assert ({"customer": "7", "cents": 5}, False) == good
    assert ({"customer": None, "cents": None}, False) == empty
    assert [(None, True)] * 3 == wrong
    assert (None, False) == none
    prefixed = JsonBody(schema="customer STRING", has_prefix=True)
    assert [({"customer": "7"}, False), (None, True)] == bodies(spark, prefixed, b"\0\0\0\0\1" + values[0], values[0])


class Color(Enum):
    RED = "r"


@dataclass(frozen=True)
class Line:
    sku: str
    weight: float | None


@dataclass(frozen=True)
class Order:
    customer: str
    cents: int
    at: datetime
    day: date
    total: Decimal
    color: Color
    lines: tuple[Line, ...]
    tags: dict[str, str]


class Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    order_id: str
    counts: list[Annotated[int, Field(gt=0)]]


class Packed(msgspec.Struct, rename="camel"):
    order_id: UUID
    is_paid: bool = True


def test_a_producers_type_gives_the_schema_of_its_json(spark: SparkSession) -> None:
    at = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
    order = Order("7", 5, at, at.date(), Decimal("1.50"), Color.RED, (Line("a", 1.5), Line("b", None)), {"k": "v"})
    packed = Packed(UUID(int=7))

    ((body, is_wrong), wrong) = bodies(spark, JsonBody(schema=Order), write_json(order), b'{"cents": "x"}')

    assert (None, True) == wrong
    assert not is_wrong
    assert at == body.pop("at").astimezone(UTC)
    lines = [("a", 1.5), ("b", None)]
    assert lines == [tuple(line) for line in body.pop("lines")]
    rest = {"customer": "7", "cents": 5, "day": at.date(), "total": "1.50", "color": "r", "tags": {"k": "v"}}
    assert rest == body
    model = write_json(Model(order_id="a", counts=[1, 2]))
    assert [({"orderId": "a", "counts": [1, 2]}, False)] == bodies(spark, JsonBody(schema=Model), model)
    found = bodies(spark, JsonBody(schema=Packed), write_json(packed))
    assert [({"orderId": str(UUID(int=7)), "isPaid": True}, False)] == found


@pytest.mark.parametrize("kind", [int | str, Any, list, bytes, "Tree", Color | Line])
def test_a_type_that_no_column_can_have_is_refused(spark: SparkSession, kind: Any) -> None:
    tree = make_dataclass("Tree", [("of", kind)])
    tree.__annotations__["of"] = list[tree] if kind == "Tree" else kind  # type: ignore[valid-type]  # made here

    with pytest.raises(UsageError, match=r"give a schema as text|contains itself"):
        bodies(spark, JsonBody(schema=tree), b"{}")


def avro(schema: dict[str, Any], order: dict[str, Any]) -> bytes:
    """As the client of a registry writes it, without the prefix."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), order)
    return stream.getvalue()


def test_avro_is_read_by_the_schema_whose_id_it_names(spark: SparkSession) -> None:
    old, new = avro(OLD, {"customer": "7"}), avro(NEW, {"customer": "8", "cents": 9})
    known = AvroBody(schemas={7: json.dumps(OLD), 300: json.dumps(NEW)})

    found = bodies(
        spark, known, b"\0\0\0\0\7" + old, b"\0\0\0\1\x2c" + new, b"\0\0\0\0\x09" + old, b"\0\0\0\0\7", b"x", None
    )

    assert [({"customer": "7", "cents": 5}, False), ({"customer": "8", "cents": 9}, False)] == found[:2]
    assert [(None, True)] * 3 == found[2:5]
    assert (None, False) == found[5]
    assert [({"customer": "8", "cents": 9}, False)] == bodies(spark, AvroBody(schemas=json.dumps(NEW)), new)


def test_an_avro_record_of_nulls_is_none_that_could_not_be_read(spark: SparkSession) -> None:
    note = {"name": "note", "type": ["null", "string"]}
    schema = {"type": "record", "name": "Order", "fields": [note, {**note, "name": "more"}]}
    empty, good = avro(schema, {"note": None, "more": None}), avro(schema, {"note": "x", "more": None})

    found = bodies(spark, AvroBody(schemas=json.dumps(schema)), empty, good, empty[:1], good + b"?", b"\7", None)

    assert [({"note": None, "more": None}, False), ({"note": "x", "more": None}, False)] == found[:2]
    assert [(None, True)] * 3 == found[2:-1]
    assert (None, False) == found[-1]


def test_protobuf_is_read_behind_the_prefix_and_its_list_of_places(spark: SparkSession) -> None:
    file = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="customer", number=1, type=FieldDescriptorProto.TYPE_STRING, label=1)
    message.field.add(name="cents", number=2, type=FieldDescriptorProto.TYPE_INT64, label=1)
    message.field.add(name="tags", number=3, type=FieldDescriptorProto.TYPE_STRING, label=3)
    message.field.add(name="total", number=4, type=FieldDescriptorProto.TYPE_UINT64, label=1)
    pool = DescriptorPool()
    pool.Add(file)
    order = GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(
        customer="7", cents=9, tags=["a", "b"], total=2**64 - 1
    )
    packed = order.SerializeToString()
    descriptor = FileDescriptorSet(file=[file]).SerializeToString()

    plain = ProtobufBody(message="shop.Order", descriptor=descriptor)
    prefixed = ProtobufBody(message="shop.Order", descriptor=descriptor, has_prefix=True)

    good = ({"customer": "7", "cents": 9, "tags": ["a", "b"], "total": 2**64 - 1}, False)
    assert [good, (None, True), (None, False)] == bodies(spark, plain, packed, b"\xff\xff", None)
    places = (b"\0", b"\2\0", b"\4\2\0")
    assert [good] * 3 == bodies(spark, prefixed, *(b"\0\0\0\0\7" + place + packed for place in places))
    assert [(None, True)] == bodies(spark, prefixed, packed)
