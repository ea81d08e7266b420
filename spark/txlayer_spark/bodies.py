"""Values → the column `body`: JSON, Avro and Protobuf, with or without a schema registry's prefix."""

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NewType, Protocol, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.avro.functions import from_avro

from txlayer.errors import UsageError

_CORRUPT = "_corrupt_record"
_PREFIX_BYTES = 5  # of a registry: a zero byte, and the schema's id in four
_PERMISSIVE = {"mode": "PERMISSIVE"}


class BodyCodec(Protocol):
    """How a value is decoded."""

    def decode(self, value: Column) -> tuple[Column, Column]:
        """The body, and whether the value is malformed; for a null value, the body is null, and the other null or False."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonBody:
    """JSON with a schema: fields that the schema lacks are left out, and those that the JSON lacks are null."""

    schema: str | T.StructType | type
    """A text such as `customer STRING, cents BIGINT`; a type of Spark's; or the producer's type of the body: a dataclass, or a model
    of pydantic or msgspec. The type's checks and defaults are not applied."""
    has_prefix: bool = False
    """Whether a schema registry's prefix is before the text."""

    def decode(self, value: Column) -> tuple[Column, Column]:
        fields: Any = T.StructType.fromDDL(self.schema) if isinstance(self.schema, str) else self.schema
        if isinstance(fields, type):
            fields = _struct_of_class(fields, ())
        schema = T.StructType([*fields.fields]).add(_CORRUPT, T.StringType())
        text = (_behind(value, _PREFIX_BYTES) if self.has_prefix else value).cast("string")
        found = F.from_json(text, schema, {**_PERMISSIVE, "columnNameOfCorruptRecord": _CORRUPT})
        is_wrong = F.isnotnull(found[_CORRUPT]) | (F.isnotnull(value) & F.isnull(found)) | ~F.is_valid_utf8(text)
        return F.when(~is_wrong, found.dropFields(_CORRUPT)), is_wrong


_SIMPLE: Mapping[Any, T.DataType] = {  # types by what a producer's `JSON` makes of them
    str: T.StringType(),
    int: T.LongType(),
    float: T.DoubleType(),
    bool: T.BooleanType(),
    datetime: T.TimestampType(),
    date: T.DateType(),
    # Text in JSON: a number of Spark's has fewer digits than some of these.
    **dict.fromkeys((Decimal, UUID, time), T.StringType()),
}


def _struct_of_class(kind: type, within: tuple[type, ...]) -> T.StructType:
    """What JSON holds of a dataclass, or of a model of pydantic or msgspec; `within` are the classes around it.

    Raises:
        UsageError: its schema cannot be derived.
    """
    if kind in within:
        raise UsageError(f"{kind.__name__} contains itself, which Spark's types cannot say")
    made: Any = kind
    if hasattr(kind, "__pydantic_validator__"):
        fields = {each.serialization_alias or name: each.annotation for name, each in made.model_fields.items()}
    elif hasattr(kind, "__struct_fields__") and not made.__struct_config__.array_like:
        hints = get_type_hints(kind)
        names = zip(made.__struct_fields__, made.__struct_encode_fields__, strict=True)
        fields = {on_wire: hints[name] for name, on_wire in names}
    elif dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        fields = {each.name: hints[each.name] for each in dataclasses.fields(kind)}
    else:
        raise UsageError(f"{kind.__name__} has no type of Spark's: give a schema as text")
    return T.StructType([T.StructField(name, _type_of(each, (*within, kind))) for name, each in fields.items()])


def _type_of(kind: Any, within: tuple[type, ...]) -> T.DataType:
    """The type of what JSON holds of a value of this one."""
    kind = getattr(kind, "__supertype__", kind) if isinstance(kind, NewType) else getattr(kind, "__value__", kind)
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in _SIMPLE:
        return _SIMPLE[origin]
    if origin is Annotated:
        return _type_of(parts[0], within)
    if origin in (Union, types.UnionType, Literal):
        given = [type(part) for part in parts] if origin is Literal else parts
        return _one_type(kind, [part for part in given if part is not type(None)], within)
    if origin in (list, Sequence, tuple, set, frozenset) and parts:
        return T.ArrayType(_one_type(kind, [part for part in parts if part is not ...], within))
    if origin in (dict, Mapping) and parts and parts[0] is str:
        return T.MapType(T.StringType(), _type_of(parts[1], within))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _one_type(kind, [type(member.value) for member in kind], within)
    if isinstance(kind, type) and origin is kind:
        return _struct_of_class(kind, within)
    raise UsageError(f"{kind} has no type of Spark's: give a schema as text")


def _one_type(kind: Any, parts: Sequence[Any], within: tuple[type, ...]) -> T.DataType:
    found = [_type_of(part, within) for part in parts]
    if not found or found != found[:1] * len(found):
        raise UsageError(f"{kind} is of several types, and a column has one: give a schema as text")
    return found[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroBody:
    """Avro of one schema; or of several, whose ids are in a schema registry's prefix of each value."""

    schemas: str | Mapping[int, str]
    """The schema as JSON; or {id in the registry: schema}, and each value begins with its id."""
    reader: str | None = None
    """The schema that the body has; by default that of the highest id."""

    def decode(self, value: Column) -> tuple[Column, Column]:
        """See `BodyCodec`. A value with another id is malformed."""
        if isinstance(self.schemas, str):
            found = self._read(value, self.schemas, self.reader or self.schemas)
        else:
            reader = self.reader or self.schemas[max(self.schemas)]
            each = [
                self._read(F.when(_schema_id(value) == number, _behind(value, _PREFIX_BYTES)), schema, reader)
                for number, schema in self.schemas.items()
            ]
            found = F.coalesce(*each)
        is_read = F.coalesce(found["end"] == 1, F.lit(False))
        return F.when(is_read, found["body"]), F.isnotnull(value) & ~is_read

    def _read(self, value: Column, schema: str, reader: str) -> Column:
        # Spark returns a record without fields if it cannot read one: a record of ours around it shows whether it was read to its end.
        writer, wanted = (
            f'{{"type": "record", "name": "ReadToTheEnd", "fields": [{{"name": "body", "type": {each}}}, '
            '{"name": "end", "type": "int"}]}'
            for each in (schema, reader)
        )
        return from_avro(F.concat(value, F.lit(b"\2")), writer, {**_PERMISSIVE, "avroSchema": wanted})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtobufBody:
    """Protobuf of one message type, by the package `protobuf`: Python runs for each row, on the executors.

    Enums become their names; an unsigned number becomes the next larger signed type. Recursive types are refused.
    """

    message: str
    """Its full name."""
    descriptor: bytes
    """What `protoc --descriptor_set_out --include_imports` writes."""
    has_prefix: bool = False
    """Whether a schema registry's prefix, and its list of places, are before the message."""

    def decode(self, value: Column) -> tuple[Column, Column]:
        data = value
        if self.has_prefix:
            # [0], which is usual, is one zero byte; others are their number and each place, of one byte below 64.
            count = F.conv(F.hex(F.substring(value, _PREFIX_BYTES + 1, 1)), 16, 10).cast("int")
            data = _behind(value, _PREFIX_BYTES + 1, F.shiftright(count, 1))
        body = _protobuf(self.descriptor, self.message)(data)
        return body, F.isnotnull(value) & F.isnull(body)


def _protobuf(descriptor: bytes, name: str) -> Callable[[Column], Column]:
    """A function of a column that reads messages of that type; null for what is none."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool

    def message_type() -> Any:
        pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(descriptor).file:
            pool.Add(file)
        return pool.FindMessageTypeByName(name)

    known: dict[str, Any] = {}

    # Within this function, so that executors need no txlayer.
    def row_of(message: Any) -> dict[str, Any]:
        return {
            field.name: value_of(field, getattr(message, field.name), message) for field in message.DESCRIPTOR.fields
        }

    def value_of(field: Any, value: Any, message: Any) -> Any:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            each = field.message_type.fields_by_name["value"]
            return {key: value_of(each, one, None) for key, one in value.items()}
        if field.is_repeated:
            return [single(field, one) for one in value]
        is_absent = message is not None and field.has_presence and not message.HasField(field.name)
        return None if is_absent else single(field, value)

    def single(field: Any, value: Any) -> Any:
        if field.message_type is not None:
            return row_of(value)
        if field.enum_type is not None:
            known_one = field.enum_type.values_by_number.get(value)
            return str(value) if known_one is None else known_one.name
        return Decimal(value) if field.type in _UNSIGNED else value

    def read(data: bytes | None) -> dict[str, Any] | None:
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        if data is None:
            return None
        if not known:
            known["class"] = GetMessageClass(message_type())
        try:
            return row_of(known["class"].FromString(bytes(data)))
        except DecodeError:
            return None

    schema = _struct_of(message_type(), ())
    decoding: Callable[[Column], Column] = F.udf(read, schema, useArrow=False)
    return decoding


_UNSIGNED = (4, 6)  # uint64, fixed64
_BY_NUMBER: Mapping[int, T.DataType] = {  # types by the numbers that a descriptor has for them
    1: T.DoubleType(),
    2: T.FloatType(),
    8: T.BooleanType(),
    9: T.StringType(),
    12: T.BinaryType(),
    **dict.fromkeys((5, 15, 17), T.IntegerType()),  # int32, sfixed32, sint32
    **dict.fromkeys((3, 7, 13, 16, 18), T.LongType()),  # int64, fixed32, uint32, sfixed64, sint64
    **dict.fromkeys(_UNSIGNED, T.DecimalType(20, 0)),
}


def _struct_of(message_type: Any, within: tuple[str, ...]) -> T.StructType:
    if message_type.full_name in within:
        raise UsageError(f"{message_type.full_name} contains itself, which Spark's types cannot say")
    inner = (*within, message_type.full_name)

    def type_of(field: Any) -> T.DataType:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            by_name = field.message_type.fields_by_name
            return T.MapType(single(by_name["key"]), single(by_name["value"]))
        return T.ArrayType(single(field)) if field.is_repeated else single(field)

    def single(field: Any) -> T.DataType:
        if field.message_type is not None:
            return _struct_of(field.message_type, inner)
        return T.StringType() if field.enum_type is not None else _BY_NUMBER[field.type]

    return T.StructType([T.StructField(field.name, type_of(field)) for field in message_type.fields])


def with_body(rows: DataFrame, codec: BodyCodec) -> DataFrame:
    """The rows with `body` and `body_error`, which is null or says why a value has no body."""
    body, is_wrong = codec.decode(F.col("value"))
    error = F.when(is_wrong, F.lit(f"the value is no {type(codec).__name__.removesuffix('Body')} of this schema"))
    return rows.withColumns({"body": body, "body_error": error})


def _behind(value: Column, length: int, more: Column | None = None) -> Column:
    """What is behind a registry's prefix; null where there is none."""
    start = F.lit(length + 1) if more is None else more + length + 1
    has_prefix = (F.length(value) >= length) & (F.substring(value, 1, 1) == F.lit(b"\0"))
    return F.when(has_prefix, F.substring(value, start, F.length(value)))


def _schema_id(value: Column) -> Column:
    return F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("bigint")
