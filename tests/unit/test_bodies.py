"""Typed bodies: what JSON makes of a value, what reads it back, and which types are refused when a handler is registered."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from importlib import import_module
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from txlayer import JSON, Codec
from txlayer.adapters.bodies import Body, function_of, read_json, write_json
from txlayer.errors import ConfigError, UsageError

Cents = NewType("Cents", int)


class Currency(Enum):
    EURO = "EUR"


class Level(IntEnum):
    HIGH = 2


@dataclass(frozen=True)
class Line:
    sku: str
    cents: Cents
    tags: frozenset[str] = frozenset()


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    total: Decimal
    at: datetime
    currency: Currency = Currency.EURO
    level: Level = Level.HIGH
    day: date | None = None
    open_from: time | None = None
    share: float = 0.5
    note: str | None = None
    place: tuple[int, str] = (0, "")
    many: tuple[int, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    kind: Literal["new", "old"] = "new"
    parent: Order | None = None
    seen: bool = dataclasses.field(default=False, init=False)


class Sale(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    cents: Annotated[int, Field(gt=0)]
    shop: str = Field(alias="shopName")


class Refund(BaseModel):
    kind: Literal["refund"]
    cents: int


class Purchase(BaseModel):
    kind: Literal["purchase"]
    cents: int


@dataclass
class Parcel:
    """A dataclass around a model."""

    sale: Sale
    others: list[Sale]


@dataclass
class Chain:
    """One inside another."""

    next: Chain | None = None


ORDER = Order(
    id=UUID(int=7),
    lines=[Line("a", Cents(1)), Line("b", Cents(2), frozenset({"x"}))],
    total=Decimal("19.90"),
    at=datetime(2026, 11, 26, 12, tzinfo=UTC),
    day=date(2026, 11, 26),
    open_from=time(9, 30),
    note="Grüße",
    place=(3, "left"),
    many=(1, 2),
    extra={"a": [1, None, {"b": True}]},
    parent=Order(UUID(int=8), [], Decimal(1), datetime(2026, 1, 1, tzinfo=UTC), share=1.0),
)


def written(value: Any) -> bytes:
    made = write_json(value)
    assert made is not None
    return made


def read(kind: Any, value: Any) -> Any:
    """What a handler of `kind` is given for plain values."""
    return Body(kind)(json.dumps(value).encode(), None)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, ORDER),
        (list[Order], [ORDER]),
        (Sale, Sale(cents=3, shopName="corner")),
        (list[Sale], [Sale(cents=3, shopName="corner")]),
        (Sale | None, Sale(cents=3, shopName="corner")),
        (Parcel, Parcel(Sale(cents=1, shopName="a"), [Sale(cents=2, shopName="b")])),
        (Annotated[Refund | Purchase, Field(discriminator="kind")], Purchase(kind="purchase", cents=1)),
        (dict[str, int], {"a": 1}),
        (Mapping[str, Line], {"a": Line("a", Cents(1))}),
        (Sequence[int], [1, 2]),
        (set[int], {1}),
        (Any, [1, "a", None, True, 0.5]),
        (str, "text"),
        (int | str, 7),
        (Annotated[int, "a note"], 7),
    ],
    ids=repr,
)
def test_what_was_written_is_read_as_it_was(kind: Any, value: Any) -> None:
    assert value == Body(kind)(written(value), None)


TEXT = st.text(st.characters(codec="utf-8"))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)


@given(PLAIN)
def test_plain_json_comes_back_as_it_was(value: Any) -> None:
    raw = write_json(value)

    assert (raw is None) is (value is None)
    assert value == read_json(raw)
    assert value == Body(Any)(raw, None)


@given(st.binary())
def test_bytes_that_are_no_order_are_a_value_error_and_nothing_else(raw: bytes) -> None:
    for kind in (Line, Sale, dict[str, int]):
        with pytest.raises(ValueError, match="not readable as"):
            Body(kind)(raw, None)


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (Line, {"sku": "a"}, "Line: cents: it is missing"),
        (Line, {"sku": "a", "cents": "1"}, "Line: cents: int is needed, not str"),
        (Line, {"sku": "a", "cents": True}, "cents: int is needed, not bool"),
        (Line, [], r"an object \(Line\) is needed, not list"),
        (Line, None, "is needed, not null"),
        (dict[str, list[Line]], {"a": [{"sku": "a", "cents": 1}, {"sku": 1}]}, "a.1.cents: it is missing"),
        (Line | None, {"sku": "a"}, "cents: it is missing"),
        (int | str, 0.5, "int or str is needed, not float"),
        (tuple[int, str], [1], "a list of 2 is needed, not of 1"),
        (datetime, "noon", "datetime is needed"),
        (Decimal, "much", "Decimal is needed"),
        (Decimal, "sNaN", "Decimal is needed"),
        (float, 10**400, "float is needed"),
        (set[Any], [[]], "a set holds no lists and no objects"),
        (Currency, "USD", "a value of Currency is needed"),
        (Literal["a"], "b", "one of"),
        (float, "1", "float is needed, not str"),
        (set[int], {"a": 1}, "a list is needed, not dict"),
        (dict[str, int], [1], "an object is needed, not list"),
        (Sale, {"cents": 0, "shopName": "secret"}, "Sale: cents: Input should be greater than 0"),
        (Sale, {"cents": "secret", "shopName": "a"}, "Sale: cents: Input should be a valid integer"),
        (Parcel, {"sale": {"cents": 1}, "others": []}, "Parcel: sale.shopName: Field required"),
    ],
    ids=repr,
)
def test_what_does_not_fit_is_said_with_its_place_and_without_its_value(kind: Any, value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why) as raised:
        read(kind, value)

    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"\xff", b"\xef\xbb\xbf{}", b"NaN", b"1e999", b'["\\uD800"]', b"[" * 100_000, "{}".encode("utf-16")],
)
def test_what_is_no_json_in_utf_8_is_not_readable(raw: bytes) -> None:
    with pytest.raises(ValueError, match="not readable as dict: no JSON"):
        Body(dict)(raw, None)


def test_an_order_inside_too_many_orders_is_not_readable() -> None:
    depth = 600  # JSON is read that deep, and the reader makes two calls for each
    raw = b'{"next":' * depth + b"{}" + b"}" * depth

    with pytest.raises(ValueError, match="not readable as Chain: nested too deeply"):
        Body(Chain)(raw, None)


def test_a_message_without_a_value_is_read_by_a_type_that_allows_it() -> None:
    assert Body(Line | None)(None, None) is None
    assert Body(Sale | None)(None, None) is None
    for kind in (Line, Sale, dict):
        with pytest.raises(ValueError, match="not readable as"):
            Body(kind)(None, None)


def test_fields_that_a_type_does_not_know_are_ignored() -> None:
    assert Line("a", Cents(1)) == read(Line, {"sku": "a", "cents": 1, "later": True})


def test_a_value_error_of_the_type_itself_comes_out_as_it_is() -> None:
    @dataclass
    class Positive:
        cents: int

        def __post_init__(self) -> None:
            if self.cents < 0:
                raise ValueError("below zero")

    with pytest.raises(ValueError, match=r"^below zero$"):
        read(Positive, {"cents": -1})


class Node:
    """No dataclass and no model."""


@dataclass
class Unreadable:
    inner: list[dict[str, Node]]


@dataclass
class WithLength:
    lasts: timedelta


@dataclass
class WithMore:
    more: dataclasses.InitVar[int]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Node, "Node cannot be read from JSON"),
        (bytes, "bytes cannot be read from JSON"),
        (Unreadable, "inner: Node cannot be read from JSON"),
        (WithLength, "lasts: timedelta cannot be read from JSON"),
        (WithMore, "more: it is no field"),
        (dict[int, str], "the keys of an object of JSON are text, not int"),
        (Line | Order, "JSON does not say which of these it is: Line, Order"),
        ([Line], "is no type"),
    ],
    ids=repr,
)
def test_a_type_that_cannot_be_read_is_refused_at_once(kind: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        Body(kind)

    assert "\n" not in str(raised.value)


def test_a_union_of_dataclasses_is_read_through_a_field_that_says_which() -> None:
    kind = Annotated[Refund | Purchase, Field(discriminator="kind")]

    assert Refund(kind="refund", cents=1) == read(kind, {"kind": "refund", "cents": 1})


@pytest.mark.parametrize("value", [float("nan"), b"bytes", Node(), [Node()], {1: 2, (1,): 3}, "\ud800"])
def test_what_is_no_json_is_refused_before_anything_is_sent(value: Any) -> None:
    with pytest.raises(UsageError, match="Nothing was sent"):
        write_json(value)


def test_json_is_small_and_readable() -> None:
    assert '{"sku":"ä","cents":1,"tags":[]}'.encode() == write_json(Line("ä", Cents(1)))
    assert b'{"cents":3,"shopName":"a"}' == write_json(Sale(cents=3, shopName="a"))


# --- with another codec -----------------------------------------------------------------------------------------------


def test_a_deserializer_reads_first_and_its_plain_values_become_the_body() -> None:
    def doubled(raw: bytes | None, _context: Any) -> Any:
        assert raw is not None
        return {"sku": raw.decode(), "cents": 2}

    assert Line("a", Cents(2)) == Body(Line, doubled)(b"a", None)
    assert Sale(cents=2, shopName="b") == Body(Sale, lambda *_: {"cents": 2, "shopName": "b"})(b"", None)


def test_a_deserializer_may_make_the_body_itself_of_a_type_that_is_not_known_here() -> None:
    node = Node()
    body = Body(Node, lambda *_: node)

    assert node is body(b"", None)
    with pytest.raises(ValueError, match="Node is needed, not dict"):
        Body(Node, lambda *_: {})(b"", None)


def test_what_a_deserializer_raises_comes_out_as_it_is() -> None:
    def broken(_raw: bytes | None, _context: Any) -> Any:
        raise TimeoutError("no registry")

    with pytest.raises(TimeoutError, match="no registry"):
        Body(Line, broken)(b"", None)


def test_a_body_goes_to_another_process() -> None:
    for kind in (Line, list[Line], Line | None, Sale):
        again = pickle.loads(pickle.dumps(Body(kind, read_json)))

        assert (Body, (kind, None)) == again.__reduce__()


def test_a_codec_is_a_codec() -> None:
    def serializer(*_: Any) -> bytes:
        return b""

    assert function_of(Codec(serializer), "serializer") is serializer
    assert function_of(Codec(serializer), "deserializer") is None
    assert function_of(None, "deserializer") is None
    assert (write_json, read_json) == (JSON.serializer, JSON.deserializer)
    with pytest.raises(ConfigError, match="a Codec, such as"):
        function_of(serializer, "serializer")


# --- msgspec ----------------------------------------------------------------------------------------------------------


def test_structs_of_msgspec_are_written_and_read() -> None:
    msgspec: Any = pytest.importorskip("msgspec")
    sold: Any = msgspec.defstruct("Sold", [("cents", int), ("at", datetime), ("shop", str, "corner")], rename="camel")
    value = sold(3, datetime(2026, 1, 1, tzinfo=UTC))

    assert b'{"cents":3,"at":"2026-01-01T00:00:00Z","shop":"corner"}' == write_json(value)
    for kind in (sold, sold | None):
        assert value == Body(kind)(written(value), None)
    several: Any = list.__class_getitem__(sold)
    assert [value] == Body(several)(written([value]), None)
    assert value == Body(sold, lambda *_: {"cents": 3, "at": "2026-01-01T00:00:00Z"})(b"", None)
    assert Body(sold | None)(None, None) is None
    for raw in (b'{"cents":"secret"}', b"\xff", None, b"{}"):
        with pytest.raises(ValueError, match="not readable as Sold") as raised:
            Body(sold)(raw, None)
        assert "secret" not in str(raised.value)


def test_a_struct_inside_a_dataclass_is_read_too() -> None:
    msgspec: Any = pytest.importorskip("msgspec")
    sold: Any = msgspec.defstruct("Sold", [("cents", int)])
    parcel = dataclasses.make_dataclass("Parcel", [("sold", sold)])

    assert parcel(sold(1)) == Body(parcel)(written(parcel(sold(1))), None)
    with pytest.raises(ValueError, match="sold: Expected `int`"):
        read(parcel, {"sold": {"cents": "1"}})


@pytest.mark.parametrize("model", ["pydantic", "msgspec"])
def test_no_model_is_loaded_for_a_dataclass(model: str) -> None:
    program = (
        "import sys, dataclasses; from txlayer.adapters.bodies import Body, write_json;"
        "T = dataclasses.make_dataclass('T', [('a', int)]); Body(T)(write_json(T(1)), None);"
        f"assert {model!r} not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert import_module("txlayer").JSON is JSON
